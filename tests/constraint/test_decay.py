"""Decay on the factors is the penalty that theory says: the lasso, the group lasso, the nuclear norm; and the costs."""

import numpy
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import Lasso
from torch import Tensor, nn

from symlab.constraint.constrain import collapse, constrain, constrained
from symlab.constraint.cost import census, cost, zero_share
from symlab.constraint.decay import parameter_groups
from symlab.constraint.factored import Projector
from symlab.constraint.projectors.elementwise import Elementwise
from symlab.constraint.projectors.equal_neurons import EqualNeurons
from symlab.constraint.projectors.groups import Groups
from symlab.constraint.projectors.low_rank import LowRank


def regression(outputs: int = 1) -> tuple[Tensor, Tensor]:
    """Inputs [40, 6], targets [40, outputs] of a sparse linear map with noise."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(40, 6, generator=generator, dtype=torch.float64)
    truth = torch.tensor([1.5, 0.0, -2.0, 0.0, 0.3, 0.0], dtype=torch.float64)[:, None].expand(6, outputs)
    return x, x @ truth + 0.3 * torch.randn(40, outputs, generator=generator, dtype=torch.float64)


def trained(layer: nn.Module, x: Tensor, y: Tensor, decay: float, steps: int, by_size: bool = False) -> None:
    groups = parameter_groups(layer, decay=decay, by_size=by_size)
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.8)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(layer(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_decay_a_on_both_factors_is_the_lasso_with_half_of_it(alpha: float) -> None:
    x, y = regression()
    layer = constrain(nn.Linear(6, 1, bias=False, dtype=torch.float64), Elementwise())
    trained(layer, x, y, decay=2 * alpha, steps=500)
    theirs = Lasso(alpha=alpha, fit_intercept=False, tol=1e-14, max_iter=10**6).fit(x.numpy(), y[:, 0].numpy()).coef_
    ours = collapse(layer, 1e-6).weight[0].detach().numpy()
    assert ours == pytest.approx(theirs, abs=1e-7)
    assert ((ours == 0) == (theirs == 0)).all()
    assert 0 < (ours == 0).sum() < 6


@pytest.mark.parametrize("by_size", [False, True])
def test_decay_on_scales_and_weights_is_the_group_lasso(by_size: bool) -> None:
    """Zero is a group's minimum iff the gradient's norm there is at most a; elsewhere grad = -a theta / ||theta||."""
    x, y = regression(outputs=3)
    layer = constrain(nn.Linear(6, 3, bias=False, dtype=torch.float64), Groups(1))
    trained(layer, x, y, decay=0.4, steps=400, by_size=by_size)
    a = 0.4 * (3**0.5 if by_size else 1)
    theta = collapse(layer, 1e-6).weight.detach().numpy()  # [3, 6]
    gradient = 2 / y.numel() * (x.numpy() @ theta.T - y.numpy()).T @ x.numpy()  # [3, 6]
    sizes = numpy.linalg.norm(theta, axis=0)
    assert 0 < (sizes == 0).sum() < 6
    for column in range(6):
        if sizes[column] == 0:
            assert numpy.linalg.norm(gradient[:, column]) < a
        else:
            assert gradient[:, column] == pytest.approx(-a * theta[:, column] / sizes[column], abs=1e-7)


def test_decay_on_both_matrices_is_the_nuclear_norm() -> None:
    """Of ||theta - M||^2 / n the minimum lowers every singular value of M by n a / 2."""
    generator = torch.Generator().manual_seed(0)
    M = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    layer = constrain(nn.Linear(4, 3, bias=False, dtype=torch.float64), LowRank())
    trained(layer, torch.eye(4, dtype=torch.float64), M, decay=0.25, steps=2000)
    left, s, right = torch.linalg.svd(M, full_matrices=False)
    lowered = (s - 12 * 0.25 / 2).clamp(min=0)
    assert 0 < int((lowered > 0).sum()) < 3
    flat = collapse(layer, 1e-5).weight.detach()
    assert torch.allclose(flat, (left * lowered @ right).mT, atol=1e-6)
    assert torch.linalg.matrix_rank(flat) == int((lowered > 0).sum())


def test_decay_on_differences_makes_neurons_equal_and_leaves_their_mean() -> None:
    x, y = regression(outputs=4)
    layer = constrain(nn.Linear(6, 4, bias=False, dtype=torch.float64), EqualNeurons(whole=True))
    trained(layer, x, y, decay=1.0, steps=250)
    flat = collapse(layer, 1e-6)
    assert census(flat)[0]["distinct_outputs"] == 1
    expected = numpy.linalg.lstsq(x.numpy(), y.mean(1).numpy(), rcond=None)[0]
    assert flat.weight[2].detach().numpy() == pytest.approx(expected, abs=1e-7)  # not shrunk


def least_decay(kind: Projector, theta: numpy.ndarray) -> float:
    """min (||u||^2 + ||w||^2) / 2 over all parts that make theta, by a general solver from three starts."""
    layer = nn.Linear(theta.shape[1], theta.shape[0], bias=False, dtype=torch.float64)
    layer.weight = nn.Parameter(torch.tensor(theta))
    found = next(constrained(constrain(layer, kind)))
    sizes, shapes = [part.numel() for part in found.parts], [part.shape for part in found.parts]
    start = torch.cat([part.detach().flatten() for part in found.parts]).numpy()

    def parts(z: numpy.ndarray) -> list[Tensor]:
        return [own.view(shape) for own, shape in zip(torch.tensor(z).split(sizes), shapes, strict=True)]

    decayed = sizes[0] + sizes[1]
    arguments = {
        "jac": lambda z: numpy.where(numpy.arange(len(z)) < decayed, z, 0.0),
        "constraints": {
            "type": "eq",
            "fun": lambda z: found.parametrization(*parts(z)).numpy().ravel() - theta.ravel(),
        },
        "method": "SLSQP",
        "options": {"maxiter": 300, "ftol": 1e-11},
    }
    random = numpy.random.default_rng(0)
    starts = [start + 0.1 * random.standard_normal(len(start)) for _ in range(3)]
    return min(minimize(lambda z: float((z[:decayed] ** 2).sum() / 2), z, **arguments).fun for z in starts)


THETA = numpy.random.default_rng(1).standard_normal((3, 2))


def around_one_row(theta: numpy.ndarray) -> float:
    return minimize(lambda row: numpy.linalg.norm(theta - row, axis=1).sum(), theta.mean(0)).fun


@pytest.mark.parametrize(
    ("kind", "penalty"),
    [
        (Elementwise(), numpy.abs(THETA).sum()),
        (Groups(0), numpy.linalg.norm(THETA, axis=1).sum()),
        (LowRank(), numpy.linalg.svd(THETA, compute_uv=False).sum()),
        (EqualNeurons(), numpy.abs(THETA - numpy.median(THETA, axis=0)).sum()),
        (EqualNeurons(whole=True), around_one_row(THETA)),
    ],
    ids=["elementwise", "filters", "low_rank", "equal_neurons", "equal_whole_neurons"],
)
def test_the_least_decay_of_a_weight_is_the_penalty(kind: Projector, penalty: float) -> None:
    assert least_decay(kind, THETA) == pytest.approx(penalty, rel=1e-6)


def test_groups_for_an_optimizer_hold_every_parameter_once() -> None:
    model = nn.Sequential(nn.Linear(4, 9), nn.LayerNorm(9), nn.Linear(9, 2))
    constrain(model, EqualNeurons(whole=True))
    groups = parameter_groups(model, decay=0.1, free_decay=0.01, by_size=True)
    named = {id(p): name for name, p in model.named_parameters()}
    found = [({named[id(p)] for p in group["params"]}, group["weight_decay"]) for group in groups]
    factor = "{}.parametrizations.weight.original{}"
    assert found[0] == ({factor.format(0, k) for k in (0, 1)}, pytest.approx(0.1 * 2))
    assert found[1] == ({factor.format(2, k) for k in (0, 1)}, pytest.approx(0.1 * 3))
    rest = {"0.bias", "1.weight", "1.bias", "2.bias", factor.format(0, 2), factor.format(2, 2)}
    assert found[2] == (rest, 0.01)
    assert len(groups) == 3
    for bad in ({"decay": -1.0}, {"decay": 0.1, "free_decay": float("nan")}):
        with pytest.raises(ValueError, match="must be finite and at least 0"):
            parameter_groups(model, **bad)
    with pytest.raises(ValueError, match="no weight of this model is constrained"):
        parameter_groups(nn.Linear(2, 2), decay=0.1)


def test_costs_count_parameters_bytes_and_the_optimizers_state() -> None:
    model = constrain(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), Groups(0))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    found = cost(model, optimizer, repeats=2)
    assert (found.plain_parameters, found.parameters, found.extra_parameters) == (23, 28, 5)
    assert found.extra_bytes == 5 * 4
    assert found.optimizer_bytes == 2 * 28 * 4 + 4 * len(list(model.parameters()))  # two moments, a count per tensor
    assert found.weights_time_s is not None
    assert 0 < found.weights_time_s < 1
    assert cost(model).weights_time_s is None
    with pytest.raises(ValueError, match="no weight of this model is constrained"):
        cost(nn.Linear(2, 2))


def test_a_census_counts_zeros_neurons_and_features() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Conv2d(2, 2, 1))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0, 2], [1, 0, 2], [0, 0, 0]]))
    first, second = census(model)
    assert first == {
        "tensor": "0.weight",
        "entries": 9,
        "zeros": 5,
        "outputs": 3,
        "zero_outputs": 1,
        "distinct_outputs": 2,
        "inputs": 3,
        "zero_inputs": 1,
    }
    assert (second["tensor"], second["entries"], second["zeros"]) == ("1.weight", 4, 0)


def test_the_share_of_zeros_counts_constrained_weights_alone() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.0, 1e-7], [1e-3, -2.0]]))
        model[1].weight.zero_()
    assert zero_share(model) is None
    constrain(model, Elementwise(), where="0.weight")
    assert zero_share(model) == 0.5
    assert zero_share(model, 0.01) == 0.75
