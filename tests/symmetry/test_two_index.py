"""An axis that indexes two dimensions of one tensor: the exact algebra against averages over all group elements."""

import itertools
import pickle

import numpy as np
import pytest
import torch

from symlab.symmetry import Group, WeightSymmetry
from symlab.symmetry.two_index import two_index_pieces
from tests import reference
from tests import reference_two_index as two

KIND = {"S": Group.PERMUTATION, "B": Group.SIGNED_PERMUTATION, "O": Group.ORTHOGONAL}
FAMILY = {"S": reference.permutation_matrices, "B": reference.signed_permutation_matrices}


def plain(**rows):
    """Tensors of plain axes for the reference: W="hh" is W[h, h]."""
    return {name: tuple(((label,),) for label in row) for name, row in rows.items()}


def symmetry_of(tensors, sizes, groups):
    axes = {name: tuple(dimension[0][0] for dimension in dimensions) for name, dimensions in tensors.items()}
    shapes = {name: two.shape_of(dimensions, sizes) for name, dimensions in tensors.items()}
    return WeightSymmetry(axes, shapes, {label: KIND[kind] for label, kind in groups.items()})


RECURRENT = plain(Wi="hi", W="hh", b="h", Wo="oh")
TWO_AXES = plain(W="hh", V="kk", U="kh")
BESIDE = plain(W="hhkf", b="h", c="k", V="hkh")

SYSTEMS = [
    *((RECURRENT, {"h": n, "i": 2, "o": 2}, {"h": "S"}) for n in (1, 2, 3, 4, 5)),
    *((RECURRENT, {"h": n, "i": 2, "o": 2}, {"h": "B"}) for n in (1, 2, 3)),
    (TWO_AXES, {"h": 3, "k": 2}, {"h": "S", "k": "S"}),
    (TWO_AXES, {"h": 4, "k": 3}, {"h": "S", "k": "S"}),
    (TWO_AXES, {"h": 3, "k": 2}, {"h": "S", "k": "B"}),
    (TWO_AXES, {"h": 2, "k": 2}, {"h": "B", "k": "B"}),
    (BESIDE, {"h": 3, "k": 2, "f": 2}, {"h": "S", "k": "S"}),
    (BESIDE, {"h": 3, "k": 2, "f": 2}, {"h": "S", "k": "B"}),
    (BESIDE, {"h": 2, "k": 3, "f": 1}, {"h": "B", "k": "S"}),
    (plain(W="hhkk", b="h", V="kk"), {"h": 3, "k": 2}, {"h": "S", "k": "S"}),
]


def check_against(symmetry, C, v, expected, expected_mean):
    P = symmetry.num_parameters
    np.testing.assert_allclose(symmetry.project_dense(torch.from_numpy(C)).dense(), expected, atol=1e-12)
    tensors = symmetry.unflatten(torch.from_numpy(v)[None])
    mean = symmetry.flatten({n: x[None] for n, x in symmetry.project_mean(tensors).items()})[0]
    np.testing.assert_allclose(mean, expected_mean, atol=1e-12)
    assert sum(b.copies * b.dimension for b in symmetry.blocks) == P


@pytest.mark.parametrize(("tensors", "sizes", "groups"), SYSTEMS)
def test_equals_average_over_all_elements(tensors, sizes, groups):
    symmetry = symmetry_of(tensors, sizes, groups)
    rng = np.random.default_rng(0)
    P = symmetry.num_parameters
    C, v = rng.normal(size=(P, P)), rng.normal(size=P)
    check_against(symmetry, C, v, *two.averages(C, v, two.all_representations(tensors, sizes, groups)))
    vectors = symmetry.unflatten(torch.from_numpy(v)[None])
    expected, _ = two.averages(np.outer(v, v), v, two.all_representations(tensors, sizes, groups))
    np.testing.assert_allclose(symmetry.project(vectors).dense(), expected, atol=1e-12)
    counts = two.numbers(two.all_representations(tensors, sizes, groups))
    np.testing.assert_allclose((symmetry.num_factors, symmetry.num_mean_factors), counts, atol=1e-9)


@pytest.mark.parametrize(
    ("tensors", "sizes", "labels"),
    [
        *((plain(Wi="hi", W="hh", b="h"), {"h": n, "i": 1}, "h") for n in (1, 2, 3)),
        (plain(W="hh", V="kk", U="kh"), {"h": 2, "k": 2}, "hk"),
        (plain(W="hhf"), {"h": 2, "f": 2}, "h"),
    ],
)
def test_orthogonal_group_equals_projection_on_its_invariants(tensors, sizes, labels):
    symmetry = symmetry_of(tensors, sizes, dict.fromkeys(labels, "O"))
    rng = np.random.default_rng(0)
    P = symmetry.num_parameters
    C, v = rng.normal(size=(P, P)), rng.normal(size=P)
    matrices, vectors = (two.invariant_basis(tensors, sizes, labels, rng, power) for power in (2, 1))
    expected = (matrices @ (matrices.T @ C.ravel())).reshape(P, P)
    check_against(symmetry, C, v, expected, vectors @ (vectors.T @ v))
    assert vectors.shape[1] == symmetry.num_mean_factors
    assert matrices.shape[1] == sum(block.copies**2 for block in symmetry.blocks)


# --- the pieces themselves ---

DIMENSIONS = {  # group, n -> kind: dimension, number of copies
    ("S", 1): {None: (1, 1)},
    ("S", 2): {None: (1, 2), "": (1, 2)},
    ("S", 3): {None: (1, 2), "": (2, 3), "antisymmetric": (1, 1)},
    ("S", 4): {None: (1, 2), "": (3, 3), "symmetric": (2, 1), "antisymmetric": (3, 1)},
    ("S", 5): {None: (1, 2), "": (4, 3), "symmetric": (5, 1), "antisymmetric": (6, 1)},
    ("S", 7): {None: (1, 2), "": (6, 3), "symmetric": (14, 1), "antisymmetric": (15, 1)},
    ("B", 1): {None: (1, 1)},
    ("B", 2): {None: (1, 1), "diagonal": (1, 1), "symmetric": (1, 1), "antisymmetric": (1, 1)},
    ("B", 3): {None: (1, 1), "diagonal": (2, 1), "symmetric": (3, 1), "antisymmetric": (3, 1)},
    ("O", 1): {None: (1, 1)},
    ("O", 2): {None: (1, 1), "symmetric": (2, 1), "antisymmetric": (1, 1)},
    ("O", 4): {None: (1, 1), "symmetric": (9, 1), "antisymmetric": (6, 1)},
}


@pytest.mark.parametrize(("kind", "n"), DIMENSIONS)
def test_dimensions_and_copies(kind, n):
    found = {}
    for piece in two_index_pieces(KIND[kind], n):
        dimension, copies = found.get(piece.kind, (piece.dimension, 0))
        assert dimension == piece.dimension
        found[piece.kind] = (dimension, copies + 1)
    assert found == DIMENSIONS[kind, n]
    assert sum(dimension * copies for dimension, copies in found.values()) == n * n


def maps(kind, n):
    """Of each piece: its kind, and the map [N, n^2] from matrices to its coordinates, as `extract` gives it."""
    eye = torch.eye(n * n, dtype=torch.float64).reshape(n * n, n, n)
    return [(p, p.extract(eye).reshape(n * n, -1).mT.numpy()) for p in two_index_pieces(KIND[kind], n)]


@pytest.mark.parametrize(("kind", "n"), DIMENSIONS)
def test_pieces_are_orthogonal_and_fill_the_space(kind, n):
    found = maps(kind, n)
    for piece, E in found:
        projection = E.T @ E
        np.testing.assert_allclose(projection @ projection, projection, atol=1e-13)
        np.testing.assert_allclose(np.trace(projection), piece.dimension, atol=1e-12)
        rows = torch.from_numpy(E.T.copy()).reshape(n * n, *[[1, 1], [n, 1], [n, n]][piece.indices])
        embedded = piece.embed(rows, n).reshape(n * n, n * n)  # extract, then embed: the projection
        np.testing.assert_allclose(embedded, projection, atol=1e-13)
    for (_, E), (_, F) in itertools.combinations(found, 2):
        np.testing.assert_allclose((E.T @ E) @ (F.T @ F), 0, atol=1e-13)
    np.testing.assert_allclose(sum(E.T @ E for _, E in found), np.eye(n * n), atol=1e-13)


@pytest.mark.parametrize(("kind", "n"), [("S", n) for n in (1, 2, 3, 4, 5)] + [("B", n) for n in (1, 2, 3)])
def test_pieces_are_irreducible_and_equivalent_only_within_a_kind(kind, n):
    """Inner products of characters over the whole group: 1 for pieces of one kind, 0 for others.

    The defining representation of a vector b[h] takes part: its pieces are trivial and "" (S_n), or one of its own.
    """
    elements = list(FAMILY[kind](n))
    families = [[E @ np.kron(g, g) @ E.T for g in elements] for _, E in maps(kind, n)]
    kinds = [piece.kind for piece, _ in maps(kind, n)]
    if kind == "S" and n > 1:
        centre = np.eye(n) - 1 / n
        families.append([centre @ g @ centre for g in elements])
        kinds.append("")
    if kind == "B":
        families.append(elements)
        kinds.append("of b[h]")
    expected = [[float(a == b) for b in kinds] for a in kinds]
    np.testing.assert_allclose(two.character_products(families), expected, atol=1e-12)


@pytest.mark.parametrize(("kind", "n"), [("S", 4), ("B", 3), ("O", 4)])
def test_coordinates_move_with_the_axis(kind, n):
    """extract(g X g^T) = extract(X), g extract(X) or g extract(X) g^T; with |g| for the diagonal under signs."""
    g = two.haar(n, -1, np.random.default_rng(0)) if kind == "O" else list(FAMILY[kind](n))[13]
    g = torch.from_numpy(g)
    X = torch.randn(n, n, dtype=torch.float64)
    for piece in two_index_pieces(KIND[kind], n):
        x = piece.extract(X)
        expected = {0: lambda x: x, 1: lambda x: g @ x, 2: lambda x: g @ x @ g.mT}[piece.indices](x)
        if piece.kind == "diagonal":
            expected = g.abs() @ x
        torch.testing.assert_close(piece.extract(g @ X @ g.mT), expected)


# --- what it is not ---


def test_two_independent_axes_are_the_wrong_structure():
    """W[h, h] taken as W[rows, columns]: 24 elements average to a matrix that the wrong structure cannot hold."""
    sizes, groups = {"h": 4, "i": 2, "o": 2}, {"h": "S"}
    rng = np.random.default_rng(0)
    exact = symmetry_of(RECURRENT, sizes, groups)
    P = exact.num_parameters
    C = rng.normal(size=(P, P))
    average, _ = two.averages(C, C[0], two.all_representations(RECURRENT, sizes, groups))
    axes = {**exact.axes, "W": ("h", "columns")}
    naive = WeightSymmetry(axes, exact.shapes, {"h": Group.PERMUTATION, "columns": Group.PERMUTATION})
    held = {
        name: np.linalg.norm(s.project_dense(torch.from_numpy(average)).dense().numpy() - average)
        for name, s in (("exact", exact), ("naive", naive))
    }
    assert held["exact"] < 1e-12 * np.linalg.norm(average)
    assert held["naive"] > 0.1 * np.linalg.norm(average)
    assert naive.num_factors < exact.num_factors


def test_signs_and_rotations_have_different_structures_on_a_repeated_axis():
    axes, shapes = {"W": ("h", "h")}, {"W": (4, 4)}
    counts = {kind: WeightSymmetry(axes, shapes, {"h": KIND[kind]}).num_factors for kind in "SBO"}
    assert counts == {"S": 3 + 6 + 1 + 1, "B": 4, "O": 3}


@pytest.mark.parametrize("activation", ["relu", "tanh", "linear"])
def test_gradients_of_transformed_recurrent_nets(activation):
    """The second moment over all transformed copies of a recurrent net is the projection of one copy's gradient."""
    f = {"relu": torch.relu, "tanh": torch.tanh, "linear": lambda x: x}[activation]
    kind = "S" if activation == "relu" else "B"
    sizes, groups = {"h": 3, "i": 2, "o": 2}, {"h": kind}
    symmetry = symmetry_of(RECURRENT, sizes, groups)
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(symmetry.num_parameters, generator=generator, dtype=torch.float64)
    X = torch.randn(4, 5, 2, generator=generator, dtype=torch.float64)  # [time, batch, in]

    def gradient(vector):
        vector = vector.clone().requires_grad_()
        p = {name: x[0] for name, x in symmetry.unflatten(vector[None]).items()}
        h = torch.zeros(5, 3, dtype=torch.float64)
        for x in X:
            h = f(x @ p["Wi"].mT + h @ p["W"].mT + p["b"])
        loss = ((h @ p["Wo"].mT - 1) ** 2).mean()
        return torch.autograd.grad(loss, vector)[0].numpy()

    moved = [gradient(torch.from_numpy(R) @ theta) for R in two.all_representations(RECURRENT, sizes, groups)]
    average = np.mean([np.outer(g, g) for g in moved], axis=0)
    one = {n: x[0] for n, x in symmetry.unflatten(torch.from_numpy(gradient(theta))[None]).items()}
    np.testing.assert_allclose(symmetry.project(one).dense(), average, atol=1e-12 * np.abs(average).max())


# --- the other methods ---


def test_split_is_isometric_and_invertible_and_act_is_the_representation():
    tensors, sizes, groups = BESIDE, {"h": 5, "k": 3, "f": 2}, {"h": "S", "k": "B"}
    symmetry = symmetry_of(tensors, sizes, groups)
    generator = torch.Generator().manual_seed(0)
    x = symmetry.unflatten(torch.randn(3, symmetry.num_parameters, generator=generator, dtype=torch.float64))
    pieces = symmetry.split(x)
    torch.testing.assert_close(symmetry.flatten(symmetry.merge(pieces)), symmetry.flatten(x))
    norms = sum(rows.square().sum((1, 2)) for rows in pieces)
    torch.testing.assert_close(norms, symmetry.flatten(x).square().sum(1))
    element = symmetry.random_element(generator)
    R = two.representation({a: g.numpy() for a, g in element.items()}, tensors, sizes)
    torch.testing.assert_close(symmetry.flatten(symmetry.act(element, x)), symmetry.flatten(x) @ torch.from_numpy(R).mT)


def test_restrict_coarsen_with_groups_and_pickle():
    symmetry = symmetry_of(RECURRENT, {"h": 5, "i": 3, "o": 2}, {"h": "S"})
    assert [str(b) for b in symmetry.restrict(["W", "b"]).blocks] == [
        "{}: 3 x 3, each 1-fold (W, b)",
        "{h}: 4 x 4, each 4-fold (W, b)",
        "{h:antisymmetric}: 1 x 1, each 6-fold (W)",
        "{h:symmetric}: 1 x 1, each 5-fold (W)",
    ]
    free = symmetry.with_groups({"h": Group.TRIVIAL})
    assert free.groups == {}
    assert [b.copies for b in free.blocks] == [symmetry.num_parameters]
    signed = symmetry.with_groups({"h": Group.SIGNED_PERMUTATION, "i": Group.PERMUTATION})
    assert signed.groups == {"h": Group.SIGNED_PERMUTATION, "i": Group.PERMUTATION}
    with pytest.raises(ValueError, match=r"not axes of the symmetry: \['x'\]; it has \['h', 'i', 'o'\]"):
        symmetry.with_groups({"x": Group.TRIVIAL})
    coarse = free.coarsen(6)  # h first, the largest: it indexes W twice
    assert coarse.groups == {"h": Group.ORTHOGONAL}
    assert [b.copies for b in coarse.blocks] == [1, 6, 1, 1]
    x = symmetry.unflatten(torch.randn(2, symmetry.num_parameters, dtype=torch.float64))
    torch.testing.assert_close(coarse.project_dense(free.project(x).dense()).dense(), coarse.project(x).dense())
    copy = pickle.loads(pickle.dumps(symmetry))
    torch.testing.assert_close(copy.project(x).dense(), symmetry.project(x).dense())


def test_coarsen_leaves_an_axis_that_occurs_three_times():
    symmetry = WeightSymmetry({"T": ("h", "h", "h", "i")}, {"T": (3, 3, 3, 2)}, {})
    assert symmetry.coarsen(1).groups == {"i": Group.ORTHOGONAL}


def test_powers_of_a_recurrent_operator_against_dense():
    symmetry = symmetry_of(RECURRENT, {"h": 4, "i": 2, "o": 1}, {"h": "S"})
    P = symmetry.num_parameters
    operator = symmetry.project(symmetry.unflatten(torch.randn(P + 3, P, dtype=torch.float64)))
    dense = operator.dense().numpy()
    np.testing.assert_allclose(
        operator.power(-0.5, 0.1).dense(), reference.symmetric_power(dense + 0.1 * np.eye(P), -0.5)
    )
    values, times = operator.eigenvalues()
    np.testing.assert_allclose(values.repeat_interleave(times).flip(0), np.linalg.eigvalsh(dense), rtol=1e-9)


@pytest.mark.parametrize("kind", ["S", "B", "O"])
def test_vectorised_over_models_and_differentiable(kind):
    """split and merge under torch.func.vmap; the gradient of |split(x)|^2 is 2 x."""
    symmetry = symmetry_of(RECURRENT, {"h": 5, "i": 2, "o": 1}, {"h": kind})
    x = symmetry.unflatten(torch.randn(4, symmetry.num_parameters, dtype=torch.float64))
    batches = {name: tensor[:, None] for name, tensor in x.items()}  # [models, 1, *shape]
    pieces = torch.func.vmap(symmetry.split)(batches)
    for found, expected in zip(pieces, symmetry.split(x), strict=True):
        torch.testing.assert_close(found[:, 0], expected)
    torch.testing.assert_close(torch.func.vmap(symmetry.merge)(pieces), batches)
    leaf = x["W"].clone().requires_grad_()
    sum(rows.square().sum() for rows in symmetry.split({**x, "W": leaf})).backward()
    torch.testing.assert_close(leaf.grad, 2 * x["W"])
