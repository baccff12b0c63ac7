"""Forms of a matrix, their descent and random streams, against autograd, torch's SGD and the closed 1-D threshold."""

import numpy as np
import pytest
import torch

from symlab.protocols.matrix_forms import (
    FORMS,
    MATRIX,
    PRODUCT,
    RESIDUAL,
    SHIFTED,
    Draws,
    MatrixDescent,
    normal_draw,
    random_factors,
    targets,
)
from tests.reference_rotation import growth_rate

LIKE = torch.empty(0, dtype=torch.float64)
WRITTEN = {
    "U W": lambda u, w: u @ w,
    "I + U W": lambda u, w: torch.eye(3, dtype=u.dtype) + u @ w,
    "(I + U)(I + W)": lambda u, w: (torch.eye(3, dtype=u.dtype) + u) @ (torch.eye(3, dtype=u.dtype) + w),
    "one matrix": lambda u, w: u + 0 * w,
}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", FORMS)
def test_descent_is_sgd_with_weight_decay_on_u_and_w(name):
    goal, factors, decays = normal(2, 3, 3), normal(2, 2, 3, 3, seed=1), torch.tensor([0.1, 0.4], dtype=torch.float64)
    kicks = normal(2, 2, 3, 3, seed=2)
    descent = MatrixDescent(FORMS[name], (factors[0], factors[1]), 0.05, decays)
    for _ in range(5):
        descent.step(descent.matrix() - goal, (kicks[0], kicks[1]))
    for s, decay in enumerate(decays.tolist()):
        u, w = factors[0, s].clone().requires_grad_(), factors[1, s].clone().requires_grad_()
        optimizer = torch.optim.SGD([u, w], lr=0.05, weight_decay=decay)
        for _ in range(5):
            optimizer.zero_grad()
            loss = 0.5 * (WRITTEN[name](u, w) - goal[s]).square().sum()
            (loss + (u * kicks[0, s]).sum() + (w * kicks[1, s]).sum()).backward()
            optimizer.step()
        torch.testing.assert_close(descent.u[s], u.detach())
        torch.testing.assert_close(descent.w[s], w.detach())
        torch.testing.assert_close(descent.matrix()[s], WRITTEN[name](u, w).detach())


@pytest.mark.parametrize("name", FORMS)
def test_factors_give_the_matrix_back(name):
    p = normal(4, 3, 3)
    torch.testing.assert_close(FORMS[name].matrix(*FORMS[name].factors(p)), p)


def test_factors_have_the_least_norm_of_many():
    """Of U W: ||U||^2 + ||W||^2 = 2 x nuclear norm; of (I + U)(I + W): no rotation of the middle is smaller."""
    p = normal(3, 3)
    u, w = PRODUCT.factors(p)
    assert float((u**2).sum() + (w**2).sum()) == pytest.approx(2 * np.linalg.norm(p.numpy(), "nuc"))
    u, w = SHIFTED.factors(p)
    size, eye = float((u**2).sum() + (w**2).sum()), torch.eye(3, dtype=p.dtype)
    for turn in torch.linalg.qr(normal(200, 3, 3, seed=5))[0]:
        other = ((eye + u) @ turn.T - eye).square().sum() + (turn @ (eye + w) - eye).square().sum()
        assert float(other) >= size - 1e-12


def test_shifted_form_without_decay_retraces_the_product_and_decay_parts_them():
    goal, noise = targets((0,), 4, 0.1, LIKE), normal(30, 1, 4, 4)
    apart = {}
    for decay in (0.0, 0.3):
        decays = torch.tensor([decay], dtype=torch.float64)
        pair = [MatrixDescent(form, form.factors(goal), 0.1, decays) for form in (PRODUCT, SHIFTED)]
        for e in noise:
            for descent in pair:
                descent.step(descent.matrix() - goal - 0.5 * e)
        apart[decay] = float((pair[0].matrix() - pair[1].matrix()).abs().max())
    assert apart[0.0] < 1e-10
    assert apart[0.3] > 0.1


def test_one_dimension_collapses_exactly_where_the_growth_rate_at_zero_is_negative():
    cases = [(0.5, 0.0), (1.6, 0.0), (3.0, 0.0), (0.5, 0.15), (0.5, 0.4), (1.6, 0.15)]  # noise, decay
    rates = [growth_rate(0.2, decay, noise, 0.1) for noise, decay in cases]
    assert min(map(abs, rates)) > 1e-3  # all are decided
    assert {rate < 0 for rate in rates} == {True, False}
    start = (torch.full((96, 1, 1), 0.2**0.5, dtype=torch.float64),) * 2
    decay = torch.tensor([decay for _, decay in cases], dtype=torch.float64).repeat_interleave(16)
    noise = torch.tensor([noise for noise, _ in cases], dtype=torch.float64).repeat_interleave(16)
    descent = MatrixDescent(PRODUCT, start, 0.1, decay)
    for e in normal(6000, 96, 1, 1, seed=3):
        descent.step(descent.matrix() - 0.2 - noise[:, None, None] * e)
    gone = (descent.matrix().abs().view(6, 16) < 1e-4).all(1)
    assert gone.tolist() == [rate < 0 for rate in rates]


def test_what_is_no_longer_finite_stops_and_the_others_go_on():
    start = (torch.full((2, 2, 2), 1.0), torch.full((2, 2, 2), 1.0))
    descent = MatrixDescent(PRODUCT, start, 1.0, torch.zeros(2))
    bad = torch.zeros(2, 2, 2)
    bad[0, 0, 0] = float("nan")
    descent.step(bad)
    descent.step(torch.ones(2, 2, 2))
    assert descent.alive.tolist() == [False, True]
    assert torch.equal(descent.u[0], start[0][0])
    assert not torch.equal(descent.u[1], start[0][1])


def test_streams_depend_on_the_seed_alone():
    both = Draws((3, 7), normal_draw(2, 2), LIKE, block=4)
    alone = Draws((7,), normal_draw(2, 2), LIKE, block=4)
    drawn = [(both.next(), alone.next()) for _ in range(10)]
    assert all(torch.equal(a[1], b[0]) for a, b in drawn)
    assert not torch.equal(drawn[0][0][0], drawn[0][0][1])
    assert not torch.equal(drawn[0][1], drawn[4][1])  # a new block
    assert drawn[0][0].dtype == torch.float64


def test_targets_have_the_spectrum_and_differ_between_seeds():
    goal = targets((0, 1), 5, 0.1, LIKE)
    expected = np.tile(10.0 ** -(np.arange(5) / 4), (2, 1))
    np.testing.assert_allclose(np.linalg.svd(goal.numpy(), compute_uv=False), expected)
    assert not torch.allclose(goal[0], goal[1])
    np.testing.assert_allclose(np.linalg.svd(targets((0,), 4, 1.0, LIKE).numpy(), compute_uv=False), np.ones((1, 4)))


def test_random_factors_are_the_same_function_for_all_forms_but_the_residual():
    u, w = random_factors((0, 1), 3, PRODUCT, LIKE)
    for form in (SHIFTED, MATRIX):
        torch.testing.assert_close(form.matrix(*random_factors((0, 1), 3, form, LIKE)), u @ w)
    torch.testing.assert_close(random_factors((1,), 3, RESIDUAL, LIKE)[0][0], u[1])
