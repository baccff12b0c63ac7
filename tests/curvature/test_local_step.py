"""Steps of exact local curvature, against dense numpy matrices and averages over all group elements."""

import math

import numpy as np
import pytest
import torch

from symlab.curvature.local_step import REFERENCES, LocalCurvature, QuadraticModel, Reference, cosine
from symlab.symmetry import Group, WeightSymmetry
from tests import reference, reference_local

AXES, SHAPES = reference.mlp_axes([2, 3, 2], bias=True)
P = 17
GROUPS = {"S": Group.PERMUTATION, "B": Group.SIGNED_PERMUTATION}
DAMPING = 1e-2


def local(groups, seed=0):
    """Random g, H (indefinite), GGN and E (both singular)."""
    rng = np.random.default_rng(seed)
    H, J, R = rng.normal(size=(P, P)), rng.normal(size=(6, P)), rng.normal(size=(9, P))
    matrices = {"hessian": H + H.T, "ggn": J.T @ J, "empirical_fisher": R.T @ R}
    symmetry = WeightSymmetry(AXES, SHAPES, groups)
    tensors = {name: torch.from_numpy(matrix) for name, matrix in matrices.items()}
    return LocalCurvature(torch.from_numpy(rng.normal(size=P)), tensors, symmetry)


def test_the_names_are_told_apart():
    assert len({reference.name for reference in REFERENCES}) == len(REFERENCES) == 10
    with pytest.raises(ValueError, match="exponent must lie in"):
        Reference("wrong", "hessian", 0.5)


@pytest.mark.parametrize("letter", ["S", "B"])
@pytest.mark.parametrize("which", REFERENCES, ids=lambda r: r.name)
def test_directions(which, letter):
    here = local({"h1": GROUPS[letter]})
    g = here.gradient.numpy()
    C = np.outer(g, g) if which.curvature == "gradient" else here.matrices[which.curvature].numpy()
    if which.structured:
        C = reference.group_average(C, AXES, SHAPES, {"h1": letter})
    expected = reference_local.damped_power(C, which.exponent, DAMPING) @ g
    np.testing.assert_allclose(here.direction(which, DAMPING).numpy(), expected, rtol=1e-9, atol=1e-12)


def test_without_a_group_structured_is_exact():
    here = local({})
    by_name = {r.name: here.direction(r, DAMPING) for r in REFERENCES}
    for name in ("hessian", "ggn", "ggn_root", "empirical_fisher_root"):
        torch.testing.assert_close(by_name[f"structured_{name}"], by_name[name], rtol=1e-9, atol=1e-12)
    assert cosine(by_name["structured_gradient_root"], here.gradient) == pytest.approx(1.0)


def test_without_damping_a_convex_loss_gives_newtons_step():
    here = local({"h1": Group.PERMUTATION})
    convex = here.matrices["hessian"] @ here.matrices["hessian"]
    newton = torch.linalg.solve(convex, here.gradient)
    hessian = next(r for r in REFERENCES if r.name == "hessian")
    found = LocalCurvature(here.gradient, {"hessian": convex}, here.symmetry).direction(hessian, 1e-14)
    torch.testing.assert_close(found, newton, rtol=1e-6, atol=1e-9)


def test_share_is_that_of_the_best_step():
    here = local({"h1": Group.PERMUTATION})
    model = QuadraticModel.of(here, DAMPING)
    g = here.gradient.numpy()
    B = reference_local.damped_power(here.matrices["hessian"].numpy(), 1.0, DAMPING)
    most = g @ np.linalg.solve(B, g) / 2
    assert model.most == pytest.approx(most)
    for d in np.random.default_rng(1).normal(size=(5, P)):
        expected = reference_local.best_decrease_along(g, B, d) / most
        assert model.share(torch.from_numpy(d)) == pytest.approx(expected, abs=1e-9)
        assert 0 <= model.share(torch.from_numpy(d)) < 1
    best = next(r for r in REFERENCES if r.name == "hessian")
    assert model.share(3e-7 * here.direction(best, DAMPING)) == pytest.approx(1.0)
    assert model.share(-here.gradient) == 0.0
    assert math.isnan(model.share(torch.zeros(P, dtype=torch.float64)))


def test_the_predicted_decrease_of_a_quadratic_loss_is_exact():
    here = local({"h1": Group.PERMUTATION})
    H, theta = here.matrices["hessian"], torch.linspace(-1, 1, P, dtype=torch.float64)

    def loss(x):
        return float(here.gradient @ x + (x - theta) @ H @ (x - theta) / 2)

    step = torch.linspace(0.3, -0.2, P, dtype=torch.float64)
    predicted = QuadraticModel.of(here, DAMPING).decrease(step)
    assert predicted == pytest.approx(loss(theta) - loss(theta - step))


def test_cosine():
    a, b = torch.tensor([3.0, 4.0], dtype=torch.float64), torch.tensor([4.0, 3.0], dtype=torch.float64)
    assert cosine(a, b) == pytest.approx(24 / 25)
    assert cosine(1e-200 * a, -1e200 * b) == pytest.approx(-24 / 25)
    assert math.isnan(cosine(a, 0 * b))


def test_curvature_of_zeros_gives_the_gradient():
    zeros = {name: torch.zeros(P, P, dtype=torch.float64) for name in ("hessian", "ggn", "empirical_fisher")}
    here = LocalCurvature(local({}).gradient, zeros, WeightSymmetry(AXES, SHAPES, {"h1": Group.PERMUTATION}))
    for which in REFERENCES[:-1]:
        assert cosine(here.direction(which, DAMPING), here.gradient) == pytest.approx(1.0)


@pytest.mark.parametrize("damping", [0.0, -1.0, math.nan, math.inf])
def test_damping_must_be_positive(damping):
    here = local({})
    with pytest.raises(ValueError, match="damping must be positive"):
        here.direction(REFERENCES[1], damping)
    with pytest.raises(ValueError, match="damping must be positive"):
        QuadraticModel.of(here, damping)
