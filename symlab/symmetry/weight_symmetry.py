"""The symmetry of a set of parameter tensors: axes, the group of each, and what commutes with them.

Source of the mathematics: Bernacchia, "Global curvature for second-order optimization of neural networks" (ICML 2025),
in the more general form that a block decomposition per axis gives.

Legend: P  number of weights;  S  number of samples;  k  isotypic block;  D_k  dimension of its irreducible piece;
m_k  number of copies;  G_k [m_k, N_k]  the pieces of a gradient in block k;  M_k [m_k, m_k]  structured matrix.
"""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from symlab.symmetry.blocks import Block, build_blocks
from symlab.symmetry.groups import Group, random_matrix
from symlab.symmetry.invariant_operator import InvariantOperator
from symlab.symmetry.layout import Axis, Part, TensorLayout, axis_sizes, plain_if_single, tensor_layouts
from symlab.symmetry.stacks import Stack, merge_parts, split_parts, stacks_of


class WeightSymmetry:
    """Sigma = direct sum over blocks k of M_k (x) I_{D_k}: every matrix on weight space that commutes with the group.

    Two dimensions of two tensors carry the same axis label when they index the same units. A dimension indexed by
    several axes (a concatenation, a flattened product) carries a `Composite`. Each axis has a group (absent in
    `groups`: free). The full group is the product over axes.

    Args:
        axes: parameter name -> its axes, one label or `Composite` per dimension. `()` for a 0-d parameter, which is a
            single invariant coordinate.
        shapes: parameter name -> its shape. The order of `axes` is the order of the dense matrix.
        groups: axis label -> its group.
        sizes: axis label -> number of units, for the labels that occur in composites only.

    An axis of size 1 under a permutation group has no standard piece (S_1 is trivial) and is treated as free; under
    signed permutations or O(1) it keeps its sign flip. An axis that indexes two dimensions of one tensor (a recurrent
    matrix W[h, h], tied weights) acts on both at once: see two_index for its pieces. One that occurs three times or
    more in one tensor (in one part of it, if its dimensions are composite) is treated as free everywhere, with a
    warning.

    Raises:
        ValueError: names of `axes` and `shapes` differ, number of labels and dimensions differ, one label has two
            sizes or none, the segments of a composite do not add up to the dimension, a tensor is empty, or `groups`
            names an axis that no tensor has.
    """

    def __init__(
        self,
        axes: Mapping[str, Sequence[Axis]],
        shapes: Mapping[str, Sequence[int]],
        groups: Mapping[str, Group],
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.axes: dict[str, tuple[Axis, ...]] = {
            name: tuple(plain_if_single(axis) for axis in row) for name, row in axes.items()
        }
        self.shapes: dict[str, tuple[int, ...]] = {name: tuple(shapes[name]) for name in axes if name in shapes}
        self.sizes = axis_sizes(self.axes, shapes, sizes or {})  # label -> size
        self.layouts: dict[str, TensorLayout] = tensor_layouts(self.axes, self.shapes, self.sizes)
        parts = [(name, part) for name, layout in self.layouts.items() for part in layout.parts]
        self.groups: dict[str, Group] = _nontrivial_groups(parts, self.sizes, groups)  # non-free axes only
        self.blocks: tuple[Block, ...] = build_blocks(parts, self.sizes, self.groups)
        self.stacks: tuple[Stack, ...] = stacks_of([part for _, part in parts], self.blocks)

    def __repr__(self) -> str:
        groups = ", ".join(f"{label}[{self.sizes[label]}]: {g.value}" for label, g in self.groups.items())
        return f"WeightSymmetry({len(self.axes)} tensors, {len(self.blocks)} blocks, {groups or 'all axes free'})"

    @property
    def num_parameters(self) -> int:
        """P, the number of weights."""
        return sum(_numel(shape) for shape in self.shapes.values())

    @property
    def num_factors(self) -> int:
        """sum over k of m_k (m_k + 1) / 2: independent numbers of a symmetric matrix with this symmetry."""
        return sum(block.copies * (block.copies + 1) // 2 for block in self.blocks)

    @property
    def num_mean_factors(self) -> int:
        """m of the block without axes: independent numbers of an invariant vector, such as the mean gradient."""
        return sum(block.copies for block in self.blocks if not block.axes)

    def restrict(self, names: Sequence[str]) -> "WeightSymmetry":
        """The symmetry of some of the tensors, in the order given; axes that none of them has are dropped.

        Raises:
            ValueError: a name is not part of the symmetry.
        """
        missing = [name for name in names if name not in self.axes]
        if missing:
            raise ValueError(f"not part of the symmetry: {missing}; it has {list(self.axes)}")
        axes = {name: self.axes[name] for name in names}
        labels = {label for name in names for part in self.layouts[name].parts for label in part.labels}
        groups = {label: g for label, g in self.groups.items() if label in labels}
        return WeightSymmetry(axes, {name: self.shapes[name] for name in names}, groups, self.sizes)

    def renamed(self, names: Mapping[str, str]) -> "WeightSymmetry":
        """The same with other names of tensors, old -> new, in the order of `names`; labels of axes stay.

        Raises:
            ValueError: a tensor of the symmetry has no new name.
        """
        missing = [name for name in self.axes if name not in names]
        if missing:
            raise ValueError(f"no new name for {missing}")
        kept = {old: new for old, new in names.items() if old in self.axes}
        axes = {new: self.axes[old] for old, new in kept.items()}
        shapes = {new: self.shapes[old] for old, new in kept.items()}
        return WeightSymmetry(axes, shapes, self.groups, self.sizes)

    def with_groups(self, groups: Mapping[str, Group]) -> "WeightSymmetry":
        """The same axes under other groups: those of `groups` for the labels that it names, as before for the rest.

        A smaller group than the model's (`TRIVIAL` makes an axis free) has a larger commutant: what commutes with the
        model's group is still represented exactly. A larger one than the model's is an approximation, as in `coarsen`:
        `project` then averages over transformations that do change the function.

        Raises:
            ValueError: a label is not part of the symmetry.
        """
        unknown = sorted(set(groups) - set(self.sizes))
        if unknown:
            raise ValueError(f"not axes of the symmetry: {unknown}; it has {list(self.sizes)}")
        return WeightSymmetry(self.axes, self.shapes, {**self.groups, **groups}, self.sizes)

    def coarsen(self, max_block: int) -> "WeightSymmetry":
        """A larger group whose blocks have m_k <= `max_block` where that can be had.

        As long as a block is larger, its largest free axis is treated as if it were under O(n): one scalar in place of
        n x n numbers, along that axis. A block of many small tensors without a free axis larger than 1 stays.

        Raises:
            ValueError: max_block < 1.
        """
        if not max_block >= 1:
            raise ValueError(f"max_block must be at least 1, got {max_block}")
        symmetry = self
        while True:
            large = {piece.part for block in symmetry.blocks if block.copies > max_block for piece in block.pieces}
            parts = [part for layout in symmetry.layouts.values() for part in layout.parts]
            often = {label for part in parts for label in part.labels if part.labels.count(label) > 2}
            free = [
                label
                for number in sorted(large)
                for label in parts[number].labels
                if label not in symmetry.groups and symmetry.sizes[label] > 1 and label not in often
            ]
            if not free:
                return symmetry
            symmetry = symmetry.with_groups({max(free, key=symmetry.sizes.__getitem__): Group.ORTHOGONAL})

    def random_element(self, generator: torch.Generator) -> dict[str, Tensor]:
        """A uniformly random group element: axis label -> matrix g [n, n] (float64, CPU), for the non-free axes."""
        return {label: random_matrix(g, self.sizes[label], generator) for label, g in self.groups.items()}

    def act(self, element: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """T'[i, j, ...] = sum g_a[i, i'] g_b[j, j'] ... T[i', j', ...] for each part of a tensor with axes (a, b, ...).

        `element` maps axis labels to matrices [n, n]; an axis that it lacks is left alone. `tensors` may hold any
        subset of the parameters, each with an optional leading sample dimension.
        """
        moved = {}
        for name, tensor in tensors.items():
            layout = self.layouts[name]
            lead = tensor.shape[: tensor.ndim - len(layout.shape)]
            batch = tensor.reshape(-1, *layout.shape)  # [S, *shape]
            parts = [_act_on(element, part, x) for part, x in zip(layout.parts, layout.cut(batch), strict=True)]
            moved[name] = layout.join(parts).reshape((*lead, *layout.shape))
        return moved

    def split(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """G_k [S, m_k, N_k] for each block k, from tensors [S, *shape] (one sample dimension, always there).

        A result may share memory with the tensor that it comes from.
        """
        parts = [part for name, layout in self.layouts.items() for part in layout.cut(tensors[name])]
        return split_parts(self.stacks, self.blocks, parts)

    def merge(self, pieces: Sequence[Tensor]) -> dict[str, Tensor]:
        """The inverse of `split`: tensors [S, *shape] from G_k [S, m_k, N_k].

        The rows of G_k are combinations of rows that `split` gives: mean free along permutation axes, symmetric in a
        block "h:symmetric", and so on.
        """
        sums = merge_parts(self.stacks, self.blocks, pieces)  # number of the part -> sum of its pieces
        return {name: layout.join([sums[i] for i in layout.numbers]) for name, layout in self.layouts.items()}

    def project(self, tensors: Mapping[str, Tensor]) -> InvariantOperator:
        """The Reynolds operator on an outer product: average over g of (g v)(g v)^T; M_k = G_k G_k^T / D_k.

        Tensors [*shape], or [S, *shape]: then the mean over the S samples. Forms no P x P matrix.

        Raises:
            ValueError: a tensor is missing or has another shape.
        """
        pieces = self.split(self.with_sample_dimension(tensors))
        matrices = [
            torch.einsum("sin,sjn->ij", rows, rows) / (block.dimension * rows.shape[0])
            for block, rows in zip(self.blocks, pieces, strict=True)
        ]
        return InvariantOperator(self, matrices)

    def project_dense(self, matrix: Tensor) -> InvariantOperator:
        """The Reynolds operator on a matrix C [P, P]: average over g of g C g^T: M_k[i, j] = tr(C's (i, j) part) / D_k.

        Raises:
            ValueError: C is not [P, P].
        """
        P = self.num_parameters
        if matrix.shape != (P, P):
            raise ValueError(f"matrix must be [{P}, {P}], got {list(matrix.shape)}")
        row_pieces = self.split(self.unflatten(matrix.mT))  # per block [P, m, N]: the first index of C split
        matrices = []
        for k, (block, rows) in enumerate(zip(self.blocks, row_pieces, strict=True)):
            m, n = block.copies, block.coordinates
            both = self.split(self.unflatten(rows.reshape(P, m * n).mT))[k]  # [m * n, m, n]
            matrices.append(torch.einsum("iaja->ij", both.reshape(m, n, m, n)) / block.dimension)
        return InvariantOperator(self, matrices)

    def project_mean(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The Reynolds operator on a vector: average over g of g v: the part in the block without axes.

        Tensors [*shape], or [S, *shape]: then the mean over the S samples is projected.
        """
        batch = {name: x.mean(0, keepdim=True) for name, x in self.with_sample_dimension(tensors).items()}
        pieces = self.split(batch)
        invariant = [
            rows if not block.axes else torch.zeros_like(rows) for block, rows in zip(self.blocks, pieces, strict=True)
        ]
        return {name: x[0] for name, x in self.merge(invariant).items()}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Vectors [S, P] from tensors [S, *shape], in the order of `axes`, row-major."""
        return torch.cat([tensors[name].reshape(tensors[name].shape[0], -1) for name in self.axes], dim=1)

    def unflatten(self, vectors: Tensor) -> dict[str, Tensor]:
        """Tensors [S, *shape] from vectors [S, P]: the inverse of `flatten`."""
        chunks = vectors.split([_numel(self.shapes[name]) for name in self.axes], dim=1)
        return {name: chunk.reshape(-1, *self.shapes[name]) for name, chunk in zip(self.axes, chunks, strict=True)}

    def with_sample_dimension(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Checked tensors [S, *shape], in the order of `axes`, from those or from [*shape] (then S = 1).

        Raises:
            ValueError: a tensor is missing or has another shape, or numbers of samples differ.
        """
        missing = [name for name in self.axes if name not in tensors]
        if missing:
            raise ValueError(f"tensors missing: {missing}")
        batch = {}
        for name, shape in self.shapes.items():
            x = tensors[name]
            if x.shape != shape and x.shape[1:] != shape:
                raise ValueError(
                    f"{name} must be {list(shape)}, or that behind a sample dimension, got {list(x.shape)}"
                )
            batch[name] = x.unsqueeze(0) if x.ndim == len(shape) else x
        samples = {name: x.shape[0] for name, x in batch.items()}
        if len(set(samples.values())) > 1:
            raise ValueError(f"all tensors must have the same number of samples, got {samples}")
        return batch


def _numel(shape: Sequence[int]) -> int:
    return int(torch.Size(shape).numel())


def _act_on(element: Mapping[str, Tensor], part: Part, x: Tensor) -> Tensor:
    """The element on each dimension of a batch of parts [S, *part.shape]."""
    for d, label in enumerate(part.labels):
        if label in element:
            x = torch.tensordot(x, element[label].to(x), dims=([d + 1], [1])).movedim(-1, d + 1)
    return x


def _nontrivial_groups(
    parts: Sequence[tuple[str, Part]], sizes: Mapping[str, int], groups: Mapping[str, Group]
) -> dict[str, Group]:
    unknown = sorted(set(groups) - set(sizes))
    if unknown:
        raise ValueError(f"groups names axes that no tensor has: {unknown}; the axes are {list(sizes)}")
    often = {a: name for name, part in parts for a in part.labels if part.labels.count(a) > 2}
    kept: dict[str, Group] = {}
    for label, n in sizes.items():
        group = groups.get(label, Group.TRIVIAL)
        if group is Group.TRIVIAL or (group is Group.PERMUTATION and n == 1):
            continue
        if label in often:
            warnings.warn(
                f"axis {label!r} occurs more than twice in {often[label]}: treated as free (its symmetry needs a "
                "larger algebra)",
                stacklevel=3,
            )
            continue
        kept[label] = group
    return kept
