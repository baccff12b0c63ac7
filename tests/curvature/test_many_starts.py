"""Gradient descent of many starts at once, against torch's own optimizer one by one."""

import itertools
import math

import pytest
import torch

from symlab.curvature.many_starts import ManyStarts, Vectors
from symlab.models.normalised_resnet import normalised_resnet
from symlab.training.losses import cross_entropy, half_mean_squared_error

LR = 0.3


def net(**keys):
    return normalised_resnet((5,), 3, torch.Generator().manual_seed(0), widths=(4, 3), **keys).double()


def problem(loss=cross_entropy):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(4, 5, dtype=torch.float64, generator=generator)
    if loss is cross_entropy:
        return inputs, torch.tensor([0, 1, 2, 0]), loss
    return inputs, torch.randn(4, 3, dtype=torch.float64, generator=generator), loss


def starts(lr=LR, scales=(0.1, 1.0, 5.0), loss=cross_entropy, **keys):
    model = net(**keys)
    weights = torch.stack([scale * Vectors.of(model).read(model) for scale in scales])
    return ManyStarts(model, *problem(loss), lr, weights)


def one_by_one(scale, steps, lr=LR, **keys):
    """Losses, gradients and weights of torch.optim.SGD before every update and after the last."""
    model = net(**keys)
    inputs, targets, loss = problem()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    seen = []
    for _ in range(steps + 1):
        optimizer.zero_grad()
        value = loss(model(inputs), targets)
        value.backward()
        slope = torch.cat([p.grad.flatten() for p in model.parameters()])
        seen.append((float(value.detach()), slope, torch.cat([p.detach().flatten() for p in model.parameters()])))
        optimizer.step()
    return seen


def test_paths_are_those_of_each_net_alone():
    many = starts(skip=False, branch_norm=None)
    for _ in range(6):
        many.advance()
    assert many.step == 6
    for s, scale in enumerate((0.1, 1.0, 5.0)):
        seen = one_by_one(scale, 6, skip=False, branch_norm=None)
        values = [value for value, _, _ in seen]
        torch.testing.assert_close(many.weights[s], seen[-1][2], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(many.gradients[s], seen[-1][1], rtol=1e-9, atol=1e-12)
        assert float(many.losses[s]) == pytest.approx(values[-1], rel=1e-10)
        pairs = list(itertools.pairwise(seen))
        ratios = [float((b[1] - a[1]).norm() / (b[2] - a[2]).norm()) for a, b in pairs]
        assert float(many.lipschitz[s]) == pytest.approx(max(ratios), rel=1e-8)
        assert int(many.rises[s]) == sum(b[0] > a[0] + 1e-12 * (1 + a[0]) for a, b in pairs)


def test_rises_are_counted_and_forgetting_forgets():
    many = starts(lr=30.0, normalisation="none", branch_norm=None)
    losses = [many.losses]
    for _ in range(5):
        many.advance()
        losses.append(many.losses)
    rise = torch.stack(losses).diff(dim=0)
    assert int(many.rises.sum()) > 0
    torch.testing.assert_close(many.rises, (rise > 1e-12).sum(0))
    torch.testing.assert_close(many.largest_rise, rise.clamp(min=0).max(0).values)
    many.forget()
    assert not bool(many.lipschitz.any())


def test_one_start_that_blows_up_leaves_the_others_alone():
    keys = {"normalisation": "none", "branch_norm": None, "activation": "softplus", "loss": half_mean_squared_error}
    many, small = starts(lr=0.02, scales=(0.1, 1e4), **keys), starts(lr=0.02, scales=(0.1,), **keys)
    for _ in range(12):
        many.advance()
        small.advance()
    assert many.alive.tolist() == [True, False]
    assert bool(many.weights.isfinite().all() & many.losses.isfinite().all())
    torch.testing.assert_close(many.weights[0], small.weights[0], rtol=1e-12, atol=1e-14)


def test_a_start_that_is_not_finite_is_dead_from_the_beginning():
    model = net()
    weights = Vectors.of(model).read(model).repeat(2, 1)
    weights[1, 0] = math.nan
    many = ManyStarts(model, *problem(), LR, weights)
    many.advance()
    assert many.alive.tolist() == [True, False]


def test_going_on_from_a_state_is_exact():
    whole, half = starts(), starts()
    for _ in range(3):
        whole.advance()
        half.advance()
    state = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in half.state().items()}
    other = starts()
    other.restore(state)
    for _ in range(3):
        whole.advance()
        other.advance()
    assert other.step == 6
    for name in ("weights", "losses", "gradients", "alive", "rises", "largest_rise", "lipschitz"):
        assert torch.equal(getattr(whole, name), getattr(other, name)), name


def test_vectors():
    model = net()
    vectors = Vectors.of(model)
    vector = vectors.read(model)
    assert len(vector) == vectors.size == sum(p.numel() for p in model.parameters())
    assert torch.equal(vector[vectors.slices()["first.parametrizations.weight.original"]].view(4, 5), raw_first(model))
    vectors.write(model, 2 * vector)
    assert torch.equal(vectors.read(model), 2 * vector)
    model.first.requires_grad_(False)
    assert Vectors.of(model).size == vectors.size - 20


def raw_first(model):
    return model.first.parametrizations.weight.original.detach()
