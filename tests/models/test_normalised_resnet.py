"""Normalised residual nets: their function, and what holds at all weights."""

import math

import numpy as np
import pytest
import torch

from symlab.models.normalised_resnet import SMOOTH, EntryNormalised, WeightNormalised, normalised_resnet, shrinking
from tests import reference_convergence as reference

SIZES = {"input_shape": (5,), "output_size": 2}


def build(seed=0, *, widths=(4, 3), **keys):
    generator = torch.Generator().manual_seed(seed)
    return normalised_resnet((5,), 2, generator, widths=widths, **keys).double()


def taken_apart(model):
    """The raw weights, and the form of the net, for the reference."""
    weights = [p.detach().numpy() for p in model.parameters()]
    return weights, [block.factor for name, block in model.named_children() if name.startswith("block")]


@pytest.mark.parametrize("normalisation", ["weight", "entry", "none"])
@pytest.mark.parametrize("skip", [True, False])
def test_forward_is_the_formula_computed_by_loops(normalisation, skip):
    model = build(normalisation=normalisation, skip=skip, epsilon=0.3, activation="softplus")
    weights, factors = taken_apart(model)
    form = {"normalisation": normalisation, "epsilon": 0.3, "skip": skip, "factors": factors, "activation": "softplus"}
    rows = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = reference.outputs(weights, rows.numpy(), form)
    np.testing.assert_allclose(model(rows).detach().numpy(), expected, rtol=1e-12, atol=1e-13)


def test_layers_and_raw_weights():
    model = build(inner=7)
    assert list(dict(model.named_children())) == ["flatten", "first", "block2", "block3"]
    assert [tuple(p.shape) for p in model.parameters()] == [(4, 5), (7, 4), (3, 7), (7, 3), (2, 7)]
    plain = build(inner=7, normalisation="none", skip=False)
    for raw, own in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(raw, own)
    first = model.first.weight
    assert torch.allclose(first, own_en(next(model.parameters()), 1.0))


def own_en(w, epsilon):
    return w / (epsilon + w * w).sqrt()


def test_weights_come_from_the_generator_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    for same, other, a in zip(build(3).parameters(), build(4).parameters(), first.parameters(), strict=True):
        assert torch.equal(same, a)
        assert not torch.equal(other, a)


@pytest.mark.parametrize("normalisation", ["weight", "entry"])
@pytest.mark.parametrize("activation", SMOOTH)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_branches_are_contractions_at_all_weights(normalisation, activation, scale):
    """Random weights, and all equal ones, which come nearest to the bounds of the two norms."""
    for equal in (False, True):
        model = build(1, normalisation=normalisation, activation=activation, branch_norm=0.9, inner=6)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.ones_like(p) if equal else p).mul_(scale)
        model.requires_grad_(False)
        for block in (model.block2, model.block3):
            size = block.down.in_features
            for x in (torch.zeros(size, dtype=torch.float64), torch.full((size,), 0.3, dtype=torch.float64)):
                jacobian = torch.func.jacrev(lambda v, b=block: b.branch(v))(x)
                assert float(torch.linalg.matrix_norm(jacobian, 2)) < 0.9
                whole = torch.func.jacrev(lambda v, b=block: b(v))(x)
                assert float(torch.linalg.svdvals(whole)[-1]) > 1 - 0.9


def test_the_bound_of_the_norm_is_the_best_one():
    """All weights equal and very large: wn and en come as near to it as one likes."""
    for kind, epsilon in ((WeightNormalised, 1.0), (EntryNormalised, 1.0)):
        matrix = kind(epsilon)(torch.full((3, 4), 1e8, dtype=torch.float64))
        norm = float(torch.linalg.matrix_norm(matrix, 2))
        assert norm == pytest.approx(kind.norm_bound(3, 4), rel=1e-10)
        assert norm <= kind.norm_bound(3, 4)


@pytest.mark.parametrize("kind", ["first", "average"])
@pytest.mark.parametrize(("rows", "columns"), [(3, 3), (3, 7), (1, 4), (5, 6), (7, 3)])
def test_the_skip_has_all_singular_values_one(kind, rows, columns):
    matrix = shrinking(rows, columns, kind)
    assert matrix.shape == (rows, columns)
    torch.testing.assert_close(torch.linalg.svdvals(matrix), torch.ones(min(rows, columns)))


def test_average_takes_the_mean_of_neighbours():
    expected = torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1]]) / math.sqrt(2)
    torch.testing.assert_close(shrinking(2, 4, "average"), expected)
    model = build(shrink="average", widths=(4, 2))
    for p in (*model.block2.parameters(),):
        torch.nn.init.zeros_(p)
    x = torch.tensor([[1.0, 3.0, 5.0, -1.0]], dtype=torch.float64)
    torch.testing.assert_close(model.block2(x).detach(), torch.tensor([[4.0, 4.0]], dtype=torch.float64) / math.sqrt(2))


def test_raw_weights_train_and_the_state_is_restored():
    model, other = build(0), build(5)
    x = torch.randn(3, 5, dtype=torch.float64)
    model(x).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), model(x))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"normalisation": "batch"}, ["normalisation", "batch", "entry"]),
        ({"activation": "relu"}, ["activation", "relu", "tanh", "smooth"]),
        ({"activation": "gelu"}, ["activation", "gelu"]),  # its derivative exceeds 1
        ({"epsilon": 0.0}, ["epsilon", "0"]),
        ({"epsilon": math.nan}, ["epsilon", "nan"]),
        ({"branch_norm": 1.5}, ["branch_norm", "1.5"]),
        ({"shrink": "max"}, ["shrink", "max"]),
        ({"widths": [4, 0]}, ["widths", "0"]),
        ({"inner": 0}, ["inner", "0"]),
    ],
)
def test_bad_values_are_named(keys, words):
    with pytest.raises(ValueError, match=words[0]) as caught:
        build(**keys)
    assert all(word in str(caught.value) for word in words)


def test_activations_have_a_derivative_of_at_most_one():
    from symlab.models.activations import activation_module

    x = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    for name in SMOOTH:
        slopes = torch.func.vmap(torch.func.grad(activation_module(name)))(x)
        assert float(slopes.abs().max()) <= 1 + 1e-12
