"""L-BFGS on the batch it is shown: the optimum of convex problems, torch's own path, resume, overflow."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn

from symlab.optim.lbfgs import lbfgs
from symlab.training.losses import auto, cross_entropy, half_mean_squared_error
from symlab.training.update import DivergedError, update
from tests.optim.test_gauss_newton import F64, net, randn


def run(model, optimizer, x, y, first, last, loss=auto):
    return [update(model, optimizer, loss, x, y, step) for step in range(first, last)]


def test_reaches_the_optimum_of_a_convex_problem():
    """Least squares with condition number 1e3, from the normal equations."""
    x = randn(30, 5, seed=1) * torch.logspace(0, -1.5, 5, dtype=F64)
    y, model = randn(30, 2, seed=2), nn.Linear(5, 2, bias=False).double()
    run(model, lbfgs(model, x, lr=1.0), x, y, 0, 40)
    solution = torch.linalg.solve(x.T @ x, x.T @ y).T
    torch.testing.assert_close(model.weight.detach(), solution, rtol=1e-5, atol=1e-6)


def test_logistic_regression_ends_at_a_zero_gradient():
    x, y = randn(30, 4, seed=1), torch.randint(0, 3, (30,), generator=torch.Generator().manual_seed(0))
    model = nn.Linear(4, 3).double()
    run(model, lbfgs(model, x, lr=1.0), x, y, 0, 40, cross_entropy)
    cross_entropy(model(x), y).backward()
    assert float(model.weight.grad.abs().max()) < 1e-5


def test_a_step_of_torch_optimizer_with_one_iteration_is_retraced():
    x, y = randn(20, 4, seed=1), randn(20, 3, seed=2)
    model, twin = net(), net()
    theirs = torch.optim.LBFGS(
        twin.parameters(), lr=0.8, max_iter=1, max_eval=26, tolerance_grad=0.0, tolerance_change=1e-30,
        history_size=4, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure():
        theirs.zero_grad()
        loss = half_mean_squared_error(twin(x), y)
        loss.backward()
        return loss

    right = [float(theirs.step(closure).detach()) for _ in range(12)]
    assert run(model, lbfgs(model, x, lr=0.8, history=4), x, y, 0, 12) == right
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


def through_disk(model, optimizer, x):
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    fresh = lbfgs(model, x, lr=0.3, history=4)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return model, fresh


@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16])
@pytest.mark.parametrize(
    "way",
    [
        through_disk,
        lambda model, optimizer, x: copy.deepcopy((model, optimizer)),
        lambda model, optimizer, x: pickle.loads(pickle.dumps((model, optimizer))),
    ],
    ids=["disk", "deepcopy", "pickle"],
)
def test_goes_on_bit_for_bit(way, dtype):
    x, y = randn(20, 4, seed=1).to(dtype), randn(20, 3, seed=2).to(dtype)
    losses = []
    for interrupted in (False, True):
        model = net().to(dtype)
        optimizer = lbfgs(model, x, lr=1.0, history=4)
        losses.append(run(model, optimizer, x, y, 0, 6))
        if interrupted:
            model, optimizer = way(model, optimizer, x)
        losses[-1] += run(model, optimizer, x, y, 6, 12)
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]


def test_all_evaluations_of_an_update_have_the_dropout_masks_of_its_gradient():
    torch.manual_seed(0)
    x, y = randn(20, 4, seed=1), randn(20, 3, seed=2)
    base = net()
    model = nn.Sequential(base[0], base[1], nn.Dropout(0.5), base[2])
    seen = []

    def loss(outputs, targets):
        value = half_mean_squared_error(outputs, targets)
        seen.append(float(value.detach()))
        return value

    update(model, lbfgs(model, x, lr=1.0), loss, x, y, 0)
    assert seen[1] == seen[0]  # the optimizer's first evaluation is that of the forward pass
    assert len(seen) > 2
    assert min(seen[2:]) < seen[0]


def test_observe_and_step_leave_the_gradient_as_it_was():
    model, x, y = net(), randn(20, 4, seed=1), randn(20, 3, seed=2)
    optimizer = lbfgs(model, x, lr=1.0)
    half_mean_squared_error(model(x), y).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    optimizer.observe(half_mean_squared_error, x, y)
    optimizer.step()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    with pytest.raises(RuntimeError, match=r"call observe\(loss, inputs, targets\) before each step"):
        optimizer.step()


class Cliff(nn.Module):
    """f = log(1 + w) x, which is NaN for w < -1."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0], dtype=F64))

    def forward(self, x):
        return torch.log(1 + self.w) * x


@pytest.mark.parametrize("lr", [1.0, 100.0])
def test_a_trial_beyond_a_cliff_is_turned_back(lr):
    """The first trial is at NaN; the line search bisects until it is back, and ends at the minimum w = exp(-1) - 1."""
    model, x, y = Cliff(), torch.full((3, 1), 3.0, dtype=F64), torch.full((3, 1), -3.0, dtype=F64)
    optimizer = lbfgs(model, x, lr=lr)
    trial = 1.0 - lr * 1.0  # the first step has length lr min(1, 1 / |g|) |g|
    assert trial <= 0.0
    losses = run(model, optimizer, x, y, 0, 15)
    assert float(model.w.detach()) == pytest.approx(math.exp(-1) - 1, abs=1e-5)
    assert losses[-1] < 1e-8


def test_a_loss_that_is_not_finite_changes_nothing():
    model, x, y = net(), randn(20, 4, seed=1), randn(20, 3, seed=2)
    optimizer = lbfgs(model, x, lr=1.0)
    run(model, optimizer, x, y, 0, 3)
    before = copy.deepcopy((list(model.parameters()), optimizer.state_dict()["state"]))
    with pytest.raises(DivergedError):
        update(model, optimizer, auto, x * math.nan, y, 3)
    half_mean_squared_error(model(x), y).backward()
    optimizer.observe(half_mean_squared_error, x * math.nan, y)
    with pytest.raises(FloatingPointError, match="the loss of the batch is inf: nothing was changed"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before[0], strict=True))
    assert torch.equal(optimizer.state_dict()["state"][0]["d"], before[1][0]["d"])
    assert optimizer.state_dict()["state"][0]["n_iter"] == before[1][0]["n_iter"]
    losses = run(model, optimizer, x, y, 3, 8)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("key", ["lr", "history", "evaluations"])
def test_numbers_out_of_range_are_refused_by_name(key):
    for value in (0, -1, math.nan, True, "1"):
        with pytest.raises((ValueError, TypeError), match=rf"^{key} must be"):
            lbfgs(net(), torch.zeros(2, 4), **({"lr": 1.0} | {key: value}))
