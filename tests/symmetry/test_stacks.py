"""Parts of one shape are cut together: the pieces are those of each tensor by itself, in its own place."""

import math

import pytest
import torch
from torch import Tensor

from symlab.symmetry import Group, WeightSymmetry, stacks

N, S = 3, 2
AXES = {
    "w1": ("h1", "x"),
    "b1": ("h1",),
    "w2": ("h2", "h1"),
    "b2": ("h2",),
    "w3": ("h3", "h2"),
    "b3": ("h3",),
    "r2": ("h2", "h2"),
    "r3": ("h3", "h3"),
}


@pytest.fixture(name="symmetry")
def _symmetry() -> WeightSymmetry:
    shapes = {name: tuple(2 if a == "x" else N for a in row) for name, row in AXES.items()}
    return WeightSymmetry(AXES, shapes, {f"h{i}": Group.PERMUTATION for i in (1, 2, 3)})


def _tensors(symmetry: WeightSymmetry) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = symmetry.shapes
    return {name: torch.randn(S, *shapes[name], generator=generator, dtype=torch.float64) for name in shapes}


def _rows(symmetry: WeightSymmetry, split: list[Tensor], tensor: str, axes: tuple[str, ...]) -> Tensor:
    """Those of one tensor [S, rows, N_k] in the block of these axes."""
    (k,) = [k for k, block in enumerate(symmetry.blocks) if block.axes == axes]
    return torch.cat([split[k][:, p.start : p.stop] for p in symmetry.blocks[k].pieces if p.tensor == tensor], dim=1)


def test_tensors_of_one_shape_are_in_one_stack(symmetry: WeightSymmetry) -> None:
    names = [name for name, layout in symmetry.layouts.items() for _ in layout.parts]
    found = {frozenset(names[i] for i in stack.parts) for stack in symmetry.stacks}
    assert found == {frozenset(group) for group in ({"w1"}, {"b1", "b2", "b3"}, {"w2", "w3"}, {"r2", "r3"})}


@pytest.mark.parametrize("most", [0, 2**14])
def test_pieces_are_those_of_each_tensor_by_itself(
    symmetry: WeightSymmetry, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "MOST_ENTRIES", most)
    tensors = _tensors(symmetry)
    split = symmetry.split(tensors)
    for i in (1, 2, 3):
        b = tensors[f"b{i}"]
        torch.testing.assert_close(_rows(symmetry, split, f"b{i}", ())[:, 0, 0], b.sum(1) / math.sqrt(N))
        centred = torch.stack([row - sum(row.tolist()) / N for row in b])
        torch.testing.assert_close(_rows(symmetry, split, f"b{i}", (f"h{i}",))[:, 0], centred)
    for i in (2, 3):
        w = tensors[f"w{i}"]  # [S, h_i, h_(i-1)]
        remove = torch.eye(N, dtype=w.dtype) - 1 / N
        torch.testing.assert_close(_rows(symmetry, split, f"w{i}", ())[:, 0, 0], w.sum((1, 2)) / N)
        means = torch.stack([remove @ x.sum(1) / math.sqrt(N) for x in w])
        torch.testing.assert_close(_rows(symmetry, split, f"w{i}", (f"h{i}",))[:, 0], means)
        means = torch.stack([remove @ x.sum(0) / math.sqrt(N) for x in w])
        torch.testing.assert_close(_rows(symmetry, split, f"w{i}", (f"h{i - 1}",))[:, 0], means)
        both = torch.stack([remove @ x @ remove for x in w]).reshape(S, -1)
        torch.testing.assert_close(_rows(symmetry, split, f"w{i}", (f"h{i}", f"h{i - 1}"))[:, 0], both)


@pytest.mark.parametrize("most", [0, 2**14])
def test_merge_puts_every_piece_back_in_its_tensor(
    symmetry: WeightSymmetry, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks, "MOST_ENTRIES", most)
    tensors = _tensors(symmetry)
    merged = symmetry.merge(symmetry.split(tensors))
    for name, x in tensors.items():
        torch.testing.assert_close(merged[name], x)
