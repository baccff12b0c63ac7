"""One suite for every optimizer that conf/optimizer offers: each yaml as it stands, through the update of the loop."""

import copy
import io
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from symlab.cli.listing import config_dir
from symlab.cli.validation import bind
from symlab.optim.coverage import coverage_table
from symlab.rundir import BadInput
from symlab.training.factories import UsesBatch
from symlab.training.losses import auto
from symlab.training.update import DivergedError, update

NAMES = sorted(path.stem for path in (config_dir() / "optimizer").glob("*.yaml"))
NODES = {name: yaml.safe_load((config_dir() / "optimizer" / f"{name}.yaml").read_text()) for name in NAMES}
RATES: dict[str, dict[str, Any]] = {  # what suits the small problems below; the yaml's own values for all others
    "gd": {"lr": 0.3},
    "sgd": {"lr": 0.05},
    "muon": {"lr": 0.02, "adamw_lr": 0.01},
    "shampoo": {"lr": 0.1},
    "soap": {"lr": 0.01},
    "kron": {"lr": 0.01},
    "symo": {"lr": 0.02},
    "symo_momentum": {"lr": 0.02},
    "gauss_newton": {"lr": 0.5, "damping": 0.1},
    "newton": {"lr": 0.5, "damping": 0.1},
}
OF_TORCH = {"gd", "sgd", "adam", "adamw"}
"""torch's own: outside of symlab's loop a NaN gradient makes NaN weights, as torch documents of no check."""

STATELESS = {"gd", "gauss_newton", "newton"}
LINE_SEARCH = {"lbfgs"}
"""The length of a step is not proportional to lr, which is the first length that is tried."""

LAYERS_ONLY = {"kfac_icml2025"}
"""The released code has a rule for linear and convolution layers alone: a model with anything else is refused."""

pytest.importorskip("pytorch_optimizer")


def build(name: str, model: nn.Module, inputs: Tensor, **changes: Any) -> torch.optim.Optimizer:
    """The optimizer of one yaml, composed as the command line does."""
    node = NODES[name] | RATES.get(name, {}) | changes
    others = {key: {"_target_": target} for key, target in OTHER_GROUPS.items()}
    arguments, _ = bind("benchmark", {**others, "optimizers": {name: node}}, Path.cwd())
    return arguments["optimizers"][name](model, inputs)


OTHER_GROUPS = {
    "model": "symlab.models.mlp.mlp",
    "data": "symlab.data.digits.digits",
    "loss": "symlab.training.losses.auto",
}


def tanh_regression() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    inputs = torch.randn(40, 6)
    return model, inputs, torch.tanh(inputs @ torch.randn(6, 3) / 2)


def relu_classification() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
    targets = torch.arange(40) % 4
    return model, torch.randn(4, 8)[targets] + 0.5 * torch.randn(40, 8), targets


def small_conv(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A net with batch norm, without it for the optimizers that take layers only."""
    torch.manual_seed(2)
    middle = nn.Identity() if name in LAYERS_ONLY else nn.BatchNorm2d(3)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), middle, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    )
    targets = torch.arange(24) % 3
    return model, torch.randn(3, 1, 5, 5)[targets] + 0.5 * torch.randn(24, 1, 5, 5), targets


class Odd(nn.Module):
    """A scalar, a vector, two names of one matrix, a convolution with a frozen bias; an empty tensor on request."""

    def __init__(self, empty: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv = nn.Conv1d(2, 3, 2)
        self.conv.bias.requires_grad_(False)
        self.first, self.second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight
        self.shift = nn.Parameter(torch.zeros(6))
        self.scale = nn.Parameter(torch.ones(()))
        if empty:
            self.empty = nn.Parameter(torch.zeros(0, 4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.conv(x).flatten(1))  # [B, 6]
        return self.scale * self.second(torch.tanh(self.first(hidden))) + self.shift


PROBLEMS = {
    "tanh_regression": lambda _: tanh_regression(),
    "relu_classification": lambda _: relu_classification(),
    "small_conv": small_conv,
}
every_optimizer = pytest.mark.parametrize("name", NAMES)
every_general_one = pytest.mark.parametrize("name", [name for name in NAMES if name not in LAYERS_ONLY])


def go(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor, count: int) -> list[float]:
    return [update(model, optimizer, auto, inputs, targets, step) for step in range(count)]


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors of a state, at any depth."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(tensors, value.values()))
    elif isinstance(value, (list, tuple)):
        yield from itertools.chain.from_iterable(map(tensors, value))


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    pairs = list(zip(first, second, strict=True))
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def finite(values: Any) -> bool:
    return all(bool(t.isfinite().all()) for t in tensors(values))


@pytest.mark.parametrize("name", sorted(LAYERS_ONLY))
def test_an_optimizer_of_layers_refuses_other_tensors_by_name(name):
    for model, inputs in ((small_conv("any")[0], torch.zeros(8, 1, 5, 5)), (Odd(), torch.zeros(8, 2, 3))):
        with pytest.raises(BadInput, match=r"layers only, not (1\.weight|shift) "):
            build(name, model, inputs)


@every_optimizer
@pytest.mark.parametrize("problem", list(PROBLEMS))
def test_the_loss_falls(name, problem):
    model, inputs, targets = PROBLEMS[problem](name)
    losses = go(model, build(name, model, inputs), inputs, targets, 40)
    assert losses[-1] < 0.6 * losses[0]
    assert finite(weights(model))


def through_disk(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@every_optimizer
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_run_goes_on_exactly_in_the_middle(name, dtype):
    """Weights bit for bit, and every tensor of the state with its dtype and shape, in a new model and optimizer."""
    model, inputs, targets = small_conv(name)
    model, inputs = model.to(dtype), inputs.to(dtype)
    optimizer = build(name, model, inputs)
    go(model, optimizer, inputs, targets, 5)
    twin = copy.deepcopy(model)
    fresh = build(name, twin, inputs, lr=0.7)  # the loaded rate counts
    fresh.load_state_dict(through_disk(optimizer))
    mine, loaded = (list(tensors(o.state_dict()["state"])) for o in (optimizer, fresh))
    assert same(mine, loaded)
    assert (len(mine) > 0) == (name not in STATELESS)
    random = torch.get_rng_state()
    go(model, optimizer, inputs, targets, 5)
    torch.set_rng_state(random)
    go(twin, fresh, inputs, targets, 5)
    assert same(weights(model), weights(twin))
    assert same(*(list(tensors(o.state_dict()["state"])) for o in (optimizer, fresh)))


@every_general_one
def test_scalars_vectors_kernels_tied_and_frozen_parameters(name):
    model, inputs = Odd(), torch.randn(8, 2, 3, generator=torch.Generator().manual_seed(0))
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    optimizer = build(name, model, inputs)
    go(model, optimizer, inputs, torch.ones(8, 6), 4)
    changed = {key for key, p in model.named_parameters() if not torch.equal(p, before[key])}
    assert changed == {"conv.weight", "first.weight", "shift", "scale"}
    assert model.second.weight is model.first.weight
    assert finite(weights(model))
    rows = {row.tensor: row for row in coverage_table(model, optimizer)}
    assert rows["conv.bias"].rule == "frozen"
    assert {key: row.weights for key, row in rows.items()} == {key: p.numel() for key, p in model.named_parameters()}


@every_general_one
def test_an_empty_parameter_is_left_alone_or_refused_by_name(name):
    model, inputs = Odd(empty=True), torch.randn(8, 2, 3, generator=torch.Generator().manual_seed(0))
    try:
        optimizer = build(name, model, inputs)
    except BadInput as error:
        assert "empty" in str(error)  # noqa: PT017 - symo's trace of the model takes none
        assert name.startswith("symo")
        return
    go(model, optimizer, inputs, torch.ones(8, 6), 3)
    assert finite(weights(model))
    assert model.empty.shape == (0, 4)


@every_optimizer
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_bad_batch_in_the_loop_changes_nothing(name, bad):
    model, inputs, targets = tanh_regression()
    optimizer = build(name, model, inputs)
    go(model, optimizer, inputs, targets, 3)
    before, state = weights(model), copy.deepcopy(list(tensors(optimizer.state_dict())))
    with pytest.raises(DivergedError):
        update(model, optimizer, auto, inputs, targets.clone().fill_(bad), 3)
    assert same(before, weights(model))
    assert same(state, list(tensors(optimizer.state_dict())))
    losses = go(model, optimizer, inputs, targets, 3)
    assert all(map(math.isfinite, losses))


@every_optimizer
def test_one_bad_gradient_outside_of_the_loop(name):
    """torch's own take it in; every other raises, naming the parameter, and has changed nothing."""
    model, inputs, targets = tanh_regression()
    optimizer = build(name, model, inputs)
    go(model, optimizer, inputs, targets, 3)
    optimizer.zero_grad()
    auto(model(inputs), targets).backward()
    if isinstance(optimizer, UsesBatch):
        optimizer.observe(auto, inputs, targets)
    model[2].weight.grad[0, 0] = math.nan
    before, state = weights(model), copy.deepcopy(list(tensors(optimizer.state_dict())))
    if name in OF_TORCH:
        optimizer.step()
        assert bool(model[2].weight.isnan().any())
        return
    with pytest.raises(FloatingPointError, match=r"2\.weight"):
        optimizer.step()
    assert same(before, weights(model))
    assert same(state, list(tensors(optimizer.state_dict())))


@every_optimizer
def test_zero_gradients_give_no_update_but_decay(name):
    model, inputs, _ = tanh_regression()
    optimizer = build(name, model, inputs)
    targets = model(inputs).detach()
    before = weights(model)
    for step in range(4):
        targets = model(inputs).detach()
        assert update(model, optimizer, auto, inputs, targets, step) == 0
    decay = max(group["lr"] * group.get("weight_decay", 0.0) for group in optimizer.param_groups)
    for old, new in zip(before, weights(model), strict=True):
        torch.testing.assert_close(new, old * (1 - decay) ** 4, rtol=1e-6, atol=0)


@every_optimizer
def test_statistics_of_rank_one_give_finite_bounded_updates(name):
    """Every row is the same: the gradient of each matrix has rank one, at every step; one unit of the ReLU is dead."""
    model, _, _ = relu_classification()
    model[0].bias.data[0] = -100.0
    inputs, targets = torch.ones(8, 8), torch.zeros(8, dtype=torch.long)
    optimizer = build(name, model, inputs)
    for step in range(10):
        before = weights(model)
        update(model, optimizer, auto, inputs, targets, step)
        moved = [float((new - old).abs().max()) for old, new in zip(before, weights(model), strict=True)]
        assert max(moved) < 10, moved
    assert finite(optimizer.state_dict()["state"])


@pytest.mark.parametrize("name", [name for name in NAMES if "damping" in NODES[name]])
def test_without_damping_rank_one_is_finite_or_refused(name):
    model, inputs, _ = relu_classification()
    try:
        optimizer = build(name, model, inputs, damping=0.0)
        for step in range(10):
            update(model, optimizer, auto, torch.ones_like(inputs), torch.zeros(40, dtype=torch.long), step)
    except (BadInput, FloatingPointError) as error:
        assert "damping" in str(error)  # noqa: PT017
        return
    assert finite(weights(model))


@every_optimizer
def test_a_schedule_acts(name):
    """A factor on `lr` in the groups is used: none at 0, a shorter step at 1/2."""
    model, inputs, targets = tanh_regression()
    optimizer = build(name, model, inputs)
    go(model, optimizer, inputs, targets, 2)
    start, saved, lengths = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()), {}
    base = [group["lr"] for group in optimizer.param_groups]
    for factor in (1.0, 0.5, 0.0):
        model.load_state_dict(start)
        optimizer.load_state_dict(copy.deepcopy(saved))  # torch's loader keeps the tensors that it is given
        for group, lr in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = factor * lr
        before = weights(model)
        update(model, optimizer, auto, inputs, targets, 2)
        lengths[factor] = math.sqrt(
            sum(float((a - b).square().sum()) for a, b in zip(before, weights(model), strict=True))
        )
    assert lengths[0.0] == 0
    if name in LINE_SEARCH:
        assert lengths[0.5] != lengths[1.0]
    else:
        assert lengths[0.5] == pytest.approx(0.5 * lengths[1.0], rel=0.01)


@every_optimizer
def test_a_bfloat16_model_steps_and_stays_finite(name):
    model, inputs, targets = small_conv(name)
    model, inputs = model.to(torch.bfloat16), inputs.to(torch.bfloat16)
    optimizer = build(name, model, inputs)
    losses = go(model, optimizer, inputs, targets, 12)
    assert losses[-1] < losses[0]
    assert finite(weights(model))
    assert finite(optimizer.state_dict()["state"])
    assert all(p.dtype is torch.bfloat16 for p in model.parameters())


@every_optimizer
def test_two_instances_share_nothing(name):
    """A run beside another one is the run alone, and no tensor of their states lies in the same memory."""
    model, inputs, targets = tanh_regression()
    go(model, build(name, model, inputs), inputs, targets, 4)
    first, second = tanh_regression()[0], relu_classification()
    one, two = build(name, first, inputs), build(name, second[0], second[1])
    for step in range(4):
        update(first, one, auto, inputs, targets, step)
        update(second[0], two, auto, second[1], second[2], step)
    assert same(weights(model), weights(first))
    places = [{t.data_ptr() for t in tensors(o.state_dict()["state"]) if t.numel()} for o in (one, two)]
    assert not places[0] & places[1]


@every_optimizer
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, "fast", 1e3, None])
def test_a_rate_out_of_range_is_refused_by_all_alike(name, value):
    model, inputs, _ = tanh_regression()
    with pytest.raises(BadInput, match=rf"^optimizers\.{name}\.lr=.*: (lr must be|expected a number)"):
        build(name, model, inputs, lr=value)
