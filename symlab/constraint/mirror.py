"""Mirror symmetries of a parameter space: what they reflect, the set that they make a trap for training, distances.

A loss with l(theta) = l(R theta), R = I - 2 O O^T, O [P, k] with orthonormal columns, has on the set O^T theta = 0
(1) a gradient with O^T g = 0, so that SGD never leaves it, (2) a Hessian with O^T H (I - O O^T) = 0, and weight decay
that is strong enough favours the set (3) near by and (4) over all parameters.
Source: Ziyin, "Symmetry induces structure and constraint of learning" (ICML 2024), definition 1 and theorem 1.

A point of the space is a mapping name -> tensor; names that a mirror does not move are allowed. All tensors may have
the same leading dimensions [...] (a stack of nets); distances are then [...].

Legend: P  number of weights that a mirror moves;  k  dimensions that it reflects;  O [P, k];  R  the reflection.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Point = Mapping[str, Tensor]
Shapes = Mapping[str, Sequence[int]]


class Mirror(ABC):
    """R: a reflection of the tensors `shapes` (name -> shape): linear, symmetric, and its own inverse."""

    name: str
    shapes: dict[str, tuple[int, ...]]

    @abstractmethod
    def _image(self, point: dict[str, Tensor]) -> dict[str, Tensor]:
        """R theta [..., *shape], from tensors of exactly the names of `shapes`."""

    def reflect(self, point: Point) -> dict[str, Tensor]:
        """R theta = (I - 2 O O^T) theta; tensors that the mirror does not move are passed on as they are.

        Raises ValueError for a tensor that is missing or of another shape.
        """
        return {**point, **self._image(self._moved(point))}

    def on(self, point: Point) -> dict[str, Tensor]:
        """(I - O O^T) theta = (theta + R theta) / 2: the nearest point of the set O^T theta = 0."""
        own = self._moved(point)
        image = self._image(own)
        return {**point, **{name: (x + image[name]) / 2 for name, x in own.items()}}

    def off(self, point: Point) -> dict[str, Tensor]:
        """O O^T theta = (theta - R theta) / 2: what leads away from the set; zero for tensors that are not moved.

        Of a gradient: its part across the set, which is zero on the set.
        """
        own = self._moved(point)
        image = self._image(own)
        rest = {name: torch.zeros_like(x) for name, x in point.items() if name not in own}
        return {**rest, **{name: (x - image[name]) / 2 for name, x in own.items()}}

    def distance(self, point: Point) -> Tensor:
        """||O^T theta||, [...]: the Euclidean distance to the set O^T theta = 0."""
        away = self.off(self._moved(point))
        lead = self._lead(away)
        flat = torch.cat([away[name].reshape(*lead, math.prod(shape)) for name, shape in self.shapes.items()], -1)
        return torch.linalg.vector_norm(flat, dim=-1)

    def dense(self) -> Tensor:
        """O [P, k] in float64, rows in the order of `shapes`, row-major: for small P, as it takes a P x P matrix."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        chunks = torch.eye(sum(sizes), dtype=torch.float64).split(sizes, dim=1)
        rows = {n: c.reshape(-1, *shape) for (n, shape), c in zip(self.shapes.items(), chunks, strict=True)}
        away = self.off(rows)
        projector = torch.cat([away[name].reshape(sum(sizes), -1) for name in self.shapes], dim=1)  # [P, P], O O^T
        values, vectors = torch.linalg.eigh(projector)
        return vectors[:, values > 0.5]

    def _moved(self, point: Point) -> dict[str, Tensor]:
        """The tensors that the mirror moves, checked."""
        if missing := [name for name in self.shapes if name not in point]:
            raise ValueError(f"mirror {self.name}: the point lacks {missing}; it has {list(point)}")
        own = {name: point[name] for name in self.shapes}
        lead = self._lead(own)
        for name, x in own.items():
            if tuple(x.shape) != (*lead, *self.shapes[name]):
                wanted = [*lead, *self.shapes[name]]
                raise ValueError(f"mirror {self.name}: {name} must be {wanted}, got {list(x.shape)}")
        return own

    def _lead(self, own: Mapping[str, Tensor]) -> tuple[int, ...]:
        name, shape = next(iter(self.shapes.items()))
        return tuple(own[name].shape[: max(0, own[name].ndim - len(shape))])


class MirrorSymmetry(Mirror):
    """R = I - 2 O O^T from a dense O [P, k] with orthonormal columns (one vector [P] is one column).

    `shapes` says how the P weights are laid out, tensor after tensor, each row-major; without it they are one vector
    named "theta". O is used in the dtype and on the device of the point.

    Raises ValueError if O is not floating [P, k] with 1 <= k <= P or is not finite, if its columns are not orthonormal
    to `rtol` (largest entry of |O^T O - I|; None: the square root of the machine epsilon), and if `shapes` has another
    size.
    """

    def __init__(
        self,
        O: Tensor,  # noqa: E741
        shapes: Shapes | None = None,
        *,
        name: str = "O",
        rtol: float | None = None,
    ) -> None:
        columns = O[:, None] if O.ndim == 1 else O
        if columns.ndim != 2 or not 1 <= columns.shape[1] <= columns.shape[0] or not O.is_floating_point():
            raise ValueError(
                f"mirror {name}: O must be real floating [P, k], 1 <= k <= P, got {O.dtype} {list(O.shape)}"
            )
        P, k = columns.shape
        allowed = torch.finfo(columns.dtype).eps ** 0.5 if rtol is None else rtol
        exact = columns.detach().double()
        error = (exact.mT @ exact - torch.eye(k, dtype=torch.float64, device=exact.device)).abs().max().item()
        if not error <= allowed:
            remedy = "take Q of torch.linalg.qr(O)"
            raise ValueError(f"mirror {name}: the columns of O must be orthonormal, off by {error:.2g}: {remedy}")
        given: dict[str, tuple[int, ...]] = {"theta": (P,)}
        if shapes is not None:
            given = {n: tuple(shape) for n, shape in shapes.items()}
        if sum(math.prod(shape) for shape in given.values()) != P:
            raise ValueError(f"mirror {name}: O has {P} rows, the tensors {given} have another number of weights")
        self.name, self.shapes, self.columns = name, given, columns.detach()

    def _image(self, point: dict[str, Tensor]) -> dict[str, Tensor]:
        lead = self._lead(point)
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        flat = torch.cat([point[n].reshape(*lead, size) for n, size in zip(self.shapes, sizes, strict=True)], -1)
        own = self.columns.to(flat)
        image = flat - 2 * (flat @ own) @ own.mT  # [..., P]
        chunks = image.split(sizes, dim=-1)
        return {n: c.reshape(*lead, *self.shapes[n]) for n, c in zip(self.shapes, chunks, strict=True)}


class StructuredMirror(Mirror):
    """A mirror given by what R does to the tensors of `shapes`, without a dense O.

    `image`: tensors [..., *shape] -> R of them. It must be linear and its own inverse; R must be symmetric.
    """

    def __init__(self, name: str, shapes: Shapes, image: Callable[[dict[str, Tensor]], Mapping[str, Tensor]]) -> None:
        self.name = name
        self.shapes = {n: tuple(shape) for n, shape in shapes.items()}
        self._given = image

    def _image(self, point: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict(self._given(point))


def rescaling_mirror(shapes: Shapes, u: str, w: str, index: tuple[int, ...] | None = None) -> StructuredMirror:
    """(u, w) -> (-u, -w): the mirror rho = -1 in the rescalings (rho u, w / rho). Its set: u = w = 0, that is sparsity.

    For a loss of the product u w, where rho may have either sign: u * w elementwise, a number u times a group of
    weights w, a neuron without activation. With `index` only the entries u[index] and w[index] (elementwise products:
    each entry has a mirror of its own); without it both whole tensors (which may then differ in shape). A ReLU neuron
    allows rho > 0 only: -1 is no symmetry of it. Other rho give no mirror: (rho, 1 / rho) is no reflection.

    Raises ValueError for names or an index that the tensors do not have.
    """
    own = _pair(shapes, u, w)
    _check_index(own, index)

    def image(point: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: _replaced(x, index, -x) for name, x in point.items()}

    return StructuredMirror(f"rescaling of {u} and {w}{_at(index)}", own, image)


def exchange_mirror(
    shapes: Shapes, u: str, w: str, index: tuple[int, ...] | None = None, *, negative: bool = False
) -> StructuredMirror:
    """(u, w) -> (w, u), or (-w, -u) if `negative`: mirrors of an elementwise product u * w. Their sets: u = w, u = -w.

    They are no rescalings, but a loss of u * w with equal decay on both has them too; the two sets meet in that of
    `rescaling_mirror`, u = w = 0, and R of that one is the product of the two. With `index` for one entry alone.

    Raises ValueError for names or an index that the tensors do not have, and for different shapes.
    """
    own = _pair(shapes, u, w)
    _check_index(own, index)
    if own[u] != own[w]:
        raise ValueError(f"{u} {list(own[u])} and {w} {list(own[w])} cannot be exchanged: their shapes differ")
    sign = -1 if negative else 1

    def image(point: dict[str, Tensor]) -> dict[str, Tensor]:
        first, second = sign * point[w], sign * point[u]
        return {u: _replaced(point[u], index, first), w: _replaced(point[w], index, second)}

    return StructuredMirror(f"exchange of {u} and {'-' if negative else ''}{w}{_at(index)}", own, image)


def _pair(shapes: Shapes, u: str, w: str) -> dict[str, tuple[int, ...]]:
    if u == w or u not in shapes or w not in shapes:
        raise ValueError(f"a pair needs two tensors of {list(shapes)}, got {u!r} and {w!r}")
    return {name: tuple(shapes[name]) for name in (u, w)}


def _check_index(own: Mapping[str, tuple[int, ...]], index: tuple[int, ...] | None) -> None:
    for name, shape in own.items():
        fits = index is None or (
            len(index) == len(shape) and all(0 <= i < n for i, n in zip(index, shape, strict=True))
        )
        if not fits:
            raise ValueError(f"{name} {list(shape)} has no entry {index}: one number from 0 per dimension")


def _replaced(x: Tensor, index: tuple[int, ...] | None, other: Tensor) -> Tensor:
    """x with the entry `index`, behind any leading dimensions, from `other`; without an index, `other`."""
    if index is None:
        return other
    mask = torch.zeros(x.shape[x.ndim - len(index) :], dtype=torch.bool, device=x.device)
    mask[index] = True
    return torch.where(mask, other, x)


def _at(index: tuple[int, ...] | None) -> str:
    return "" if index is None else f" at {list(index)}"
