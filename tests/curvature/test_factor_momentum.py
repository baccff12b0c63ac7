"""Running averages of structured factors, and correlations between nets, against loops over units and pairs."""

import math

import numpy as np
import pytest
import torch

from symlab.curvature.factor_momentum import (
    ALL,
    FactorLayout,
    RunningAverage,
    mean_of_others,
    pairwise_correlation,
)
from symlab.curvature.measures import correlations
from symlab.symmetry import Group, WeightSymmetry
from tests import reference_momentum as reference

SHAPES = {"w1": (4, 3), "w2": (2, 4)}
AXES = {"w1": ("h", "in"), "w2": ("out", "h")}


def samples(count, size=9, seed=0):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_gradients(count, shapes=SHAPES):
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(count, *shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()
    }


def test_factors_of_an_odd_net_are_averages_over_its_units():
    layout = FactorLayout.of(WeightSymmetry(AXES, SHAPES, {"h": Group.SIGNED_PERMUTATION}))
    gradients = random_gradients(3)
    found = layout.entries(gradients)
    assert found.shape == (3, layout.size)
    assert layout.parts == {
        ALL: slice(0, 19),
        "w1 x w1": slice(0, 9),
        "w1 x w2": slice(9, 15),
        "w2 x w2": slice(15, 19),
    }
    for net in range(3):
        expected = reference.factors(gradients["w1"][net].numpy(), gradients["w2"][net].numpy())
        np.testing.assert_allclose(found[net].numpy(), expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("group", [Group.PERMUTATION, Group.SIGNED_PERMUTATION, Group.TRIVIAL])
def test_every_factor_is_there_once(group):
    """The entries of the projected operators, with both triangles of what is within one tensor."""
    shapes = {"w1": (4, 3), "b1": (4,), "w2": (2, 4)}
    axes = {"w1": ("h", "in"), "b1": ("h",), "w2": ("out", "h")}
    symmetry = WeightSymmetry(axes, shapes, {"h": group})
    gradients = random_gradients(2, shapes)
    layout = FactorLayout.of(symmetry)
    found = layout.entries(gradients)
    for net in range(2):
        matrices = symmetry.project({name: g[net] for name, g in gradients.items()}).matrices
        every = sorted(float(value) for matrix in matrices for value in matrix.flatten())
        own = [found[net, where] for part, where in layout.parts.items() if part != ALL]
        twice = [x for part, x in zip(list(layout.parts)[1:], own, strict=True) if len(set(part.split(" x "))) == 2]
        assert sorted(torch.cat([*own, *twice]).tolist()) == pytest.approx(every, abs=1e-14)


def test_squared_norms():
    layout = FactorLayout.of(WeightSymmetry(AXES, SHAPES, {"h": Group.PERMUTATION}))
    gradients = random_gradients(2)
    expected = [sum(float((g[net] ** 2).sum()) for g in gradients.values()) for net in range(2)]
    assert layout.squared_norms(gradients).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_running_average_is_the_weighted_mean(beta):
    values = samples(6)
    running = RunningAverage(beta)
    for t, value in enumerate(values):
        running.update(value)
        expected = reference.running_average(values[: t + 1].numpy(), beta)
        np.testing.assert_allclose(running.value().numpy(), expected, rtol=1e-12, atol=1e-15)
    assert torch.equal(values, samples(6)), "what is averaged must stay as it is"


def test_running_average_refuses_what_is_no_decay():
    for beta in (1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"beta must lie in \[0, 1\)"):
            RunningAverage(beta)
    with pytest.raises(ValueError, match="call update first"):
        RunningAverage(0.5).value()


def test_pairwise_correlation():
    x = samples(5) + torch.linspace(0, 3, 9, dtype=torch.float64)
    found = pairwise_correlation(x)
    assert (found.mean, found.std) == pytest.approx(reference.pairwise(x.numpy()), abs=1e-14)
    assert found.error == pytest.approx(reference.pairwise_error(x.numpy()), abs=1e-14)
    scaled = pairwise_correlation(x * torch.tensor([[1e-9], [1.0], [2.0], [1e5], [7.0]], dtype=torch.float64))
    assert scaled.mean == pytest.approx(found.mean, abs=1e-9)  # so the bias correction changes nothing


def test_a_gain_is_paired():
    """Two sets of the same nets that differ by a little have a difference that is known much better than each."""
    x = samples(6, 40) + 2 * samples(1, 40, seed=3)
    y = x + 0.01 * samples(6, 40, seed=4)
    a, b = pairwise_correlation(x), pairwise_correlation(y)
    gain, error = a.gain(b)
    assert gain == pytest.approx(a.mean - b.mean)
    assert error < 0.2 * a.error
    assert a.gain(a) == (0.0, 0.0)


def test_two_nets_have_one_pair_and_no_error():
    x = samples(2)
    found = pairwise_correlation(x)
    assert found.mean == pytest.approx(np.corrcoef(x.numpy())[0, 1])
    assert math.isnan(found.std)
    assert math.isnan(found.error)
    with pytest.raises(ValueError, match="at least 2, got 1"):
        pairwise_correlation(x[:1])


def test_agreement_with_the_other_nets():
    x, truth = samples(4), samples(4, seed=5)
    expected = reference.with_others(x.numpy(), truth.numpy())
    np.testing.assert_allclose(correlations(x, mean_of_others(truth)).numpy(), expected, atol=1e-14)
    assert bool(correlations(x, torch.ones(9, dtype=torch.float64)).isnan().all())
