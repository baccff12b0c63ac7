"""WeightSymmetry and InvariantOperator against the brute-force average over all group elements."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from symlab.symmetry import Group, InvariantOperator, WeightSymmetry
from tests import reference

KIND = {"S": Group.PERMUTATION, "B": Group.SIGNED_PERMUTATION}


def mlp_symmetry(sizes, bias, group):
    axes, shapes = reference.mlp_axes(sizes, bias)
    return WeightSymmetry(axes, shapes, {f"h{i}": group for i in range(1, len(sizes) - 1)})


def random_tensors(symmetry, seed, samples=None):
    g = torch.Generator().manual_seed(seed)
    lead = () if samples is None else (samples,)
    return {n: torch.randn((*lead, *s), generator=g, dtype=torch.float64) for n, s in symmetry.shapes.items()}


def random_psd(symmetry, seed):
    """A positive definite invariant operator."""
    return symmetry.project(random_tensors(symmetry, seed, samples=symmetry.num_parameters + 5))


@pytest.mark.parametrize("kind", ["S", "B"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", [(2, 3, 2), (2, 2, 2, 2), (2, 2, 3, 2), (1, 2, 2, 2, 1)])
def test_equals_average_over_all_elements(sizes, bias, kind):
    symmetry = mlp_symmetry(sizes, bias, KIND[kind])
    axes, shapes = reference.mlp_axes(sizes, bias)
    groups = dict.fromkeys(symmetry.groups, kind)
    P = symmetry.num_parameters
    rng = np.random.default_rng(0)
    C, v = rng.normal(size=(P, P)), rng.normal(size=(2, P))
    vectors = symmetry.unflatten(torch.from_numpy(v))
    expected = reference.group_average(C, axes, shapes, groups)
    np.testing.assert_allclose(symmetry.project_dense(torch.from_numpy(C)).dense(), expected, atol=1e-13)
    outer = v.T @ v / 2
    expected = reference.group_average(outer, axes, shapes, groups)
    np.testing.assert_allclose(symmetry.project(vectors).dense(), expected, atol=1e-13)
    mean = symmetry.flatten({n: x[None] for n, x in symmetry.project_mean(vectors).items()})[0]
    np.testing.assert_allclose(mean, reference.group_average_vector(v.mean(0), axes, shapes, groups), atol=1e-13)


@pytest.mark.parametrize("activation", ["tanh", "relu", "linear"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", [(3, 3, 2), (2, 2, 3, 2)])
def test_gradients_of_transformed_nets(sizes, bias, activation):
    """The second moment over all transformed copies of a net is the projection of one copy's gradient."""
    f, df = {
        "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
        "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0).astype(float)),
        "linear": (lambda z: z, np.ones_like),
    }[activation]
    kind = "S" if activation == "relu" else "B"
    symmetry = mlp_symmetry(sizes, bias, Group.ORTHOGONAL if activation == "linear" else KIND[kind])
    axes, shapes = reference.mlp_axes(sizes, bias)
    rng = np.random.default_rng(1)
    theta = rng.normal(size=symmetry.num_parameters)
    X, Y = rng.normal(size=(7, sizes[0])), rng.normal(size=(7, sizes[-1]))

    def gradient(vector):
        parts = symmetry.unflatten(torch.from_numpy(vector)[None])
        W = [parts[f"W{i}"][0].numpy() for i in range(1, len(sizes))]
        b = [parts[f"b{i}"][0].numpy() for i in range(1, len(sizes))] if bias else None
        dW, db = reference.mlp_gradient(W, b, f, df, X, Y)
        named = {f"W{i + 1}": w for i, w in enumerate(dW)} | {f"b{i + 1}": x for i, x in enumerate(db)}
        return np.concatenate([named[name].ravel() for name in axes])

    sizes_of = dict(symmetry.sizes)
    moments = [
        np.outer(gradient(R @ theta), gradient(R @ theta))
        for e in reference.all_elements(sizes_of, dict.fromkeys(symmetry.groups, kind))
        for R in [reference.representation(e, axes, shapes)]
    ]
    projected = symmetry.project(
        {n: x[0] for n, x in symmetry.unflatten(torch.from_numpy(gradient(theta))[None]).items()}
    )
    np.testing.assert_allclose(projected.dense(), np.mean(moments, axis=0), atol=1e-13)


# Bernacchia (ICML 2025), and counted by hand: sizes, group, bias, P, covariance factors, mean factors
COUNTS = [
    ((5, 5, 5), "B", True, 60, 81, 5),
    ((5, 9, 5), "B", False, 90, 55, 0),
    ((5, 5, 5), "B", False, 50, 55, 0),
    ((5, 5, 5, 5), "B", True, 90, 58, 5),
    ((5, 5, 5, 5), "B", False, 75, 31, 0),
    ((5, 5, 5, 5, 5), "B", False, 100, 32, 0),
    ((10, 7, 4), "B", True, 109, 130, 4),
    ((10, 7, 4), "B", False, 98, 105, 0),
    ((5, 5, 5), "S", False, 50, 110, 10),
    ((5, 5, 5), "S", True, 60, 202, 16),
    ((5, 5, 5, 5), "S", False, 75, 109, 11),
    ((5, 5, 5, 5), "S", True, 90, 228, 18),
    ((5, 5, 5, 5, 5), "S", False, 100, 125, 12),
    ((100, 70, 40), "B", False, 9800, 9870, 0),
]


@pytest.mark.parametrize(("sizes", "kind", "bias", "P", "factors", "mean_factors"), COUNTS)
def test_factor_counts(sizes, kind, bias, P, factors, mean_factors):
    symmetry = mlp_symmetry(sizes, bias, KIND[kind])
    assert (symmetry.num_parameters, symmetry.num_factors, symmetry.num_mean_factors) == (P, factors, mean_factors)


@pytest.mark.parametrize(
    ("sizes", "kind", "bias", "multiplicities"),
    [
        ((5, 5, 5), "B", True, {5: 11, 1: 5}),
        ((5, 5, 5, 5), "B", True, {25: 1, 5: 12, 1: 5}),
        ((5, 5, 5, 5), "S", False, {16: 1, 4: 12, 1: 11}),
    ],
)
def test_eigenvalue_multiplicities(sizes, kind, bias, multiplicities):
    symmetry = mlp_symmetry(sizes, bias, KIND[kind])
    operator = random_psd(symmetry, 0)
    values, times = operator.eigenvalues()
    counted = {int(t): int((times == t).sum()) for t in times.unique()}
    assert counted == multiplicities
    dense = torch.linalg.eigvalsh(operator.dense())
    np.testing.assert_allclose(values.repeat_interleave(times).flip(0), dense, rtol=1e-9)


def test_orthogonal_and_signed_permutation_give_the_same_structure():
    signed, orthogonal = (mlp_symmetry((3, 4, 4, 2), True, g) for g in (Group.SIGNED_PERMUTATION, Group.ORTHOGONAL))
    tensors = random_tensors(signed, 0)
    np.testing.assert_allclose(signed.project(tensors).dense(), orthogonal.project(tensors).dense(), atol=1e-14)


@st.composite
def symmetries(draw):
    labels = ["a", "b", "c", "d"]
    sizes = {a: draw(st.integers(1, 4)) for a in labels}
    groups = {a: draw(st.sampled_from(list(Group))) for a in labels}
    axes = {}
    for i in range(draw(st.integers(1, 4))):
        axes[f"t{i}"] = tuple(draw(st.permutations([*labels, *labels]))[: draw(st.integers(0, 3))])  # no axis thrice
    used = {a for row in axes.values() for a in row}
    shapes = {name: tuple(sizes[a] for a in row) for name, row in axes.items()}
    return WeightSymmetry(axes, shapes, {a: g for a, g in groups.items() if a in used})


@settings(max_examples=60, deadline=None, derandomize=True)
@given(symmetries(), st.integers(0, 2**31))
def test_identities_of_random_symmetries(symmetry, seed):
    tensors = random_tensors(symmetry, seed, samples=3)
    flat = symmetry.flatten(tensors)
    operator = symmetry.project(tensors)
    dense = operator.dense()
    # merge inverts split; the dense and the sample paths agree; a projection of a projection changes nothing
    torch.testing.assert_close(symmetry.flatten(symmetry.merge(symmetry.split(tensors))), flat)
    torch.testing.assert_close(symmetry.project_dense(flat.mT @ flat / 3).dense(), dense)
    torch.testing.assert_close(symmetry.project_dense(dense).dense(), dense)
    # g C g^T = C for a random group element, and the act is orthogonal
    eye = symmetry.unflatten(torch.eye(symmetry.num_parameters, dtype=torch.float64))
    R = symmetry.flatten(symmetry.act(symmetry.random_element(torch.Generator().manual_seed(seed)), eye)).mT
    torch.testing.assert_close(R @ R.mT, torch.eye(len(R), dtype=torch.float64))
    torch.testing.assert_close(R @ dense @ R.mT, dense)
    # norms, traces, products
    torch.testing.assert_close(operator.trace(), dense.trace())
    torch.testing.assert_close(operator.frobenius_norm(), torch.linalg.matrix_norm(dense))
    other = symmetry.project(random_tensors(symmetry, seed + 1))
    torch.testing.assert_close(operator.inner(other), (dense * other.dense()).sum())
    torch.testing.assert_close((operator + 2.0 * other - operator * 0.5).dense(), 0.5 * dense + 2 * other.dense())
    torch.testing.assert_close((operator @ other).dense(), dense @ other.dense())
    torch.testing.assert_close(symmetry.flatten(operator.matvec(tensors)), flat @ dense)
    assert sum(b.copies * b.dimension for b in symmetry.blocks) == symmetry.num_parameters


@settings(max_examples=25, deadline=None, derandomize=True)
@given(symmetries(), st.integers(0, 2**31), st.sampled_from([-1.0, -0.5, -0.25, 0.5, 2.0]), st.floats(0, 1))
def test_powers_against_dense(symmetry, seed, exponent, damping):
    operator = random_psd(symmetry, seed)
    dense = operator.dense().numpy() + damping * np.eye(symmetry.num_parameters)
    expected = reference.symmetric_power(dense, exponent)
    np.testing.assert_allclose(operator.power(exponent, damping).dense(), expected, rtol=1e-6, atol=1e-8)


def test_inverse_and_inverse_sqrt():
    operator = random_psd(mlp_symmetry((3, 4, 2), True, Group.PERMUTATION), 3)
    eye = torch.eye(operator.symmetry.num_parameters, dtype=torch.float64)
    torch.testing.assert_close(operator.inverse().dense() @ operator.dense(), eye)
    root = operator.inverse_sqrt(damping=0.1).dense()
    torch.testing.assert_close(root @ root @ (operator.dense() + 0.1 * eye), eye)


def test_singular_operator_needs_damping_or_cutoff():
    symmetry = mlp_symmetry((3, 4, 2), False, Group.SIGNED_PERMUTATION)  # block of 5 in dimension 4: rank deficient
    operator = symmetry.project(random_tensors(symmetry, 0))
    with pytest.raises(ValueError, match="damping or cutoff"):
        operator.inverse()
    pseudo = operator.inverse(cutoff=1e-10).dense()
    expected = np.linalg.pinv(operator.dense().numpy(), rcond=1e-10, hermitian=True)
    np.testing.assert_allclose(pseudo, expected, rtol=1e-6, atol=1e-9)
    zero = 0.0 * operator
    assert zero.power(0.5).trace() == 0
    assert zero.inverse(cutoff=1e-10).trace() == 0
    with pytest.raises(ValueError, match=r"cutoff must lie in \[0, 1\), got 1.5"):
        operator.inverse(cutoff=1.5)
    with pytest.raises(ValueError, match="damping must be at least 0, got nan"):
        operator.inverse(damping=math.nan)
    with pytest.raises(ValueError, match="fractional power"):
        (-1.0 * operator).power(0.5)


def test_product_need_not_be_symmetric():
    symmetry = mlp_symmetry((3, 4, 2), True, Group.PERMUTATION)
    product = random_psd(symmetry, 0) @ random_psd(symmetry, 1)
    assert not product.is_symmetric
    with pytest.raises(ValueError, match="not symmetric"):
        product.map_spectrum(torch.abs)
    with pytest.raises(FloatingPointError, match="NaN or inf"):
        (math.nan * product).eigenvalues()


def test_dense_projection_of_a_matrix_that_is_not_symmetric():
    axes, shapes = reference.mlp_axes((2, 3, 2), True)
    symmetry = WeightSymmetry(axes, shapes, {"h1": Group.PERMUTATION})
    C = torch.randn(symmetry.num_parameters, symmetry.num_parameters, dtype=torch.float64)
    expected = reference.group_average(C.numpy(), axes, shapes, {"h1": "S"})
    np.testing.assert_allclose(symmetry.project_dense(C).dense(), expected, atol=1e-13)


def test_matvec_and_project_form_no_dense_matrix():
    """A net of 2.6 million weights: a P x P matrix would take 27 TB."""
    symmetry = mlp_symmetry((200, 1500, 1500, 30), True, Group.PERMUTATION)
    g = torch.Generator().manual_seed(0)
    tensors = {n: torch.randn(*s, generator=g) for n, s in symmetry.shapes.items()}
    operator = symmetry.project(tensors)
    product = operator.matvec(tensors)
    assert product["W2"].shape == (1500, 1500)
    values, times = operator.eigenvalues()
    assert int(times.sum()) == symmetry.num_parameters > 2.5e6
    torch.testing.assert_close((values * times).sum(), operator.trace())


# --- special axes and tensors ---


def test_axis_of_size_one():
    permuted = WeightSymmetry({"W": ("h", "i")}, {"W": (1, 3)}, {"h": Group.PERMUTATION})
    assert permuted.groups == {}
    assert permuted.num_factors == 6
    signed = WeightSymmetry({"W": ("h", "i"), "b": ("i",)}, {"W": (1, 3), "b": (3,)}, {"h": Group.SIGNED_PERMUTATION})
    assert signed.num_factors == 6 + 6  # the sign flip of the one unit still decouples W from b
    v = torch.arange(6.0, dtype=torch.float64)
    expected = reference.group_average(np.outer(v, v), signed.axes, signed.shapes, {"h": "B"})
    np.testing.assert_allclose(signed.project({"W": v[None, :3], "b": v[3:]}).dense(), expected)


def test_scalar_parameter_is_one_invariant_coordinate():
    symmetry = WeightSymmetry({"s": (), "W": ("h", "i")}, {"s": (), "W": (3, 2)}, {"h": Group.PERMUTATION})
    assert symmetry.num_mean_factors == 1 + 2
    tensors = random_tensors(symmetry, 0)
    expected = reference.group_average(
        np.outer(*[symmetry.flatten({n: x[None] for n, x in tensors.items()})[0]] * 2),
        symmetry.axes,
        symmetry.shapes,
        {"h": "S"},
    )
    np.testing.assert_allclose(symmetry.project(tensors).dense(), expected, atol=1e-14)


def test_same_axis_three_times_is_free_with_a_warning():
    with pytest.warns(UserWarning, match=r"axis 'h' occurs more than twice in W.*free"):
        symmetry = WeightSymmetry(
            {"W": ("h", "h", "h"), "U": ("h", "i")}, {"W": (2, 2, 2), "U": (2, 2)}, {"h": Group.PERMUTATION}
        )
    assert symmetry.groups == {}
    assert symmetry.num_factors == 12 * 13 // 2


@pytest.mark.parametrize(
    ("axes", "shapes", "groups", "message"),
    [
        ({"W": ("a",)}, {"W": (2, 3)}, {}, r"W has 2 dimensions \[2, 3\] but 1 labels"),
        ({"W": ("a", "b")}, {"W": (2, 0)}, {}, r"W is empty: shape \[2, 0\]"),
        ({"W": ("a", "b"), "b": ("a",)}, {"W": (2, 3), "b": (4,)}, {}, r"axis 'a' has size 2 elsewhere but 4 in b"),
        ({"W": ("a",)}, {"V": (2,)}, {}, r"must name the same tensors, differ in \['V', 'W'\]"),
        ({"W": ("a",)}, {"W": (2,)}, {"c": Group.PERMUTATION}, r"groups names axes that no tensor has: \['c'\]"),
    ],
)
def test_wrong_description(axes, shapes, groups, message):
    with pytest.raises(ValueError, match=message):
        WeightSymmetry(axes, shapes, groups)


def test_wrong_tensors():
    symmetry = mlp_symmetry((3, 4, 2), False, Group.PERMUTATION)
    good = random_tensors(symmetry, 0)
    with pytest.raises(ValueError, match=r"tensors missing: \['W2'\]"):
        symmetry.project({"W1": good["W1"]})
    with pytest.raises(ValueError, match=r"W1 must be \[4, 3\].*got \[4, 4\]"):
        symmetry.project({**good, "W1": torch.zeros(4, 4)})
    with pytest.raises(ValueError, match="same number of samples"):
        symmetry.project({**good, "W1": torch.zeros(2, 4, 3)})
    with pytest.raises(ValueError, match=r"matrix must be \[20, 20\], got \[3, 3\]"):
        symmetry.project_dense(torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"got a matrix \[1, 1\]"):
        InvariantOperator(symmetry, [torch.zeros(1, 1) for _ in symmetry.blocks])


def test_restrict_and_coarsen():
    symmetry = mlp_symmetry((20, 6, 3), True, Group.SIGNED_PERMUTATION)
    assert [b.copies for b in symmetry.blocks] == [3, 24]
    assert [b.copies for b in symmetry.restrict(["W2", "b2"]).blocks] == [3, 3]
    with pytest.raises(ValueError, match=r"not part of the symmetry: \['W9'\]"):
        symmetry.restrict(["W9"])
    coarse = symmetry.coarsen(10)
    assert coarse.groups == {**symmetry.groups, "in": Group.ORTHOGONAL}
    assert sorted(b.copies for b in coarse.blocks) == [1, 3, 4]
    assert max(b.copies for b in symmetry.coarsen(1).blocks) == 1
    assert symmetry.coarsen(24).groups == symmetry.groups
    # the coarse projection is the projection of the fine one
    tensors = random_tensors(symmetry, 0)
    torch.testing.assert_close(
        coarse.project_dense(symmetry.project(tensors).dense()).dense(), coarse.project(tensors).dense()
    )
