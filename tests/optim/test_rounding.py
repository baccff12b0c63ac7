"""A block of nothing but rounding errors gets no update; a small gradient that is one keeps its full step."""

import pytest
import torch
from torch import nn

from symlab.optim import SymO
from symlab.optim.rounding import RoundingFloor
from symlab.symmetry import Group, WeightSymmetry

PAIR = WeightSymmetry({"w": ("h", "h")}, {"w": (5, 5)}, {"h": Group.PERMUTATION})
ANTISYMMETRIC = next(k for k, block in enumerate(PAIR.blocks) if block.axes == ("h:antisymmetric",))


def symmetric_gradients(dtype, count=12):
    """Of sum over h of h^T W h: symmetric up to the rounding of the products."""
    g = torch.Generator().manual_seed(0)
    for _ in range(count):
        h = torch.randn(40, 5, generator=g, dtype=torch.float64).to(dtype)
        w = torch.zeros(5, 5, dtype=dtype, requires_grad=True)
        ((h @ w) * (3 * h) / 3).sum().backward()
        yield w.grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_antisymmetric_part_of_a_quadratic_form_stays(dtype, momentum):
    w = nn.Parameter(torch.zeros(5, 5, dtype=dtype))
    optimizer = SymO([("w", w)], PAIR, lr=0.01, momentum=momentum)
    noisy = False
    for gradient in symmetric_gradients(dtype):
        noisy |= not torch.equal(gradient, gradient.mT)
        w.grad = gradient
        optimizer.step()
    assert noisy  # else there is nothing to blow up
    assert (w + w.mT).abs().max() > 0.02
    odd = PAIR.split({"w": (w - w.mT).detach()[None]})[ANTISYMMETRIC]
    assert odd.abs().max() < 1e-5 * w.abs().max()


@pytest.mark.parametrize("share", [1e-4, 1e-6])
def test_a_small_part_keeps_its_full_step(share):
    g = torch.Generator().manual_seed(0)
    a = torch.randn(5, 5, generator=g, dtype=torch.float64)
    w = nn.Parameter(torch.zeros(5, 5, dtype=torch.float64))
    optimizer = SymO([("w", w)], PAIR, lr=0.01)
    w.grad = (a + a.mT) + share * (a - a.mT)
    optimizer.step()
    odd = PAIR.split({"w": w.detach()[None]})[ANTISYMMETRIC]
    block = PAIR.blocks[ANTISYMMETRIC]
    torch.testing.assert_close(odd.norm(), torch.tensor(0.01 * block.dimension**0.5, dtype=torch.float64))


def test_a_block_is_compared_with_the_tensors_that_it_holds():
    """A tensor with a tiny gradient beside one with a large gradient is no rounding error."""
    axes = {"large": ("in", "a"), "small": ("b", "in2")}
    symmetry = WeightSymmetry(axes, {"large": (2, 4), "small": (3, 2)}, dict.fromkeys("ab", Group.ORTHOGONAL))
    floor = RoundingFloor.of(symmetry, torch.float32, torch.device("cpu"))
    moments = [torch.eye(block.copies, dtype=torch.float64) for block in symmetry.blocks]
    sizes = [1e-20 if "small" in {piece.tensor for piece in block.pieces} else 1.0 for block in symmetry.blocks]
    scaled = [size * moment for size, moment in zip(sizes, moments, strict=True)]
    assert floor.is_rounding(scaled).tolist() == [False] * len(symmetry.blocks)


def test_share_of_the_squared_norm():
    floor = RoundingFloor.of(PAIR, torch.float32, torch.device("cpu"))
    moments = [torch.eye(block.copies, dtype=torch.float64) for block in PAIR.blocks]
    k = ANTISYMMETRIC
    rest = sum(b.copies * b.dimension for i, b in enumerate(PAIR.blocks) if i != k)
    edge = (16 * torch.finfo(torch.float32).eps) ** 2 * rest / PAIR.blocks[k].dimension
    for factor, expected in ((0.9, True), (1.1, False)):
        moments[k] = torch.full((1, 1), factor * edge, dtype=torch.float64)
        found = floor.is_rounding(moments).tolist()
        assert found == [expected if i == k else False for i in range(len(found))]
