"""KFAC as an optimizer of any net: the tensors it covers, exact resume, copies, dtypes, bad and degenerate numbers."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

from symlab.optim.kfac import kfac
from symlab.training.losses import auto
from symlab.training.update import update


def net(dtype=torch.float32, seed=0):
    """A convolution, batch norm and two linear layers on 6 x 6 images of one channel."""
    torch.manual_seed(seed)
    layers = (nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    return nn.Sequential(*layers, nn.Linear(4, 3, bias=False)).to(dtype)


def batch(dtype=torch.float32, rows=12, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 1, 6, 6, generator=generator).to(dtype), torch.arange(rows) % 3


def train(model, optimizer, first, last, dtype=torch.float32):
    return [update(model, optimizer, auto, *batch(dtype, seed=step % 2), step) for step in range(first, last)]


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [tensor for item in items for tensor in tensors_of(item)]


def through_disk(model, optimizer, options):
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    fresh = net(next(model.parameters()).dtype, seed=5)
    fresh.load_state_dict(weights)
    other = kfac(fresh, batch(next(model.parameters()).dtype)[0], **(options | {"lr": 0.3}))
    other.load_state_dict(state)
    for a, b in zip(tensors_of(optimizer.state_dict()), tensors_of(other.state_dict()), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a, b)
        assert a.data_ptr() != b.data_ptr()
    return fresh, other


def copied(model, optimizer, options):
    return copy.deepcopy((model, optimizer))


def pickled(model, optimizer, options):
    return pickle.loads(pickle.dumps((model, optimizer)))


EVERYTHING = {"momentum": 0.9, "weight_decay": 0.1, "kl_clip": 1e-3, "inverses_every": 3, "factors_every": 2}


@pytest.mark.parametrize(
    ("way", "dtype", "changes"),
    [
        *((through_disk, dtype, {}) for dtype in (torch.float32, torch.bfloat16, torch.float64)),
        *((through_disk, dtype, EVERYTHING) for dtype in (torch.float32, torch.bfloat16)),
        (copied, torch.float32, EVERYTHING),
        (pickled, torch.float32, EVERYTHING),
    ],
)
def test_goes_on_bit_for_bit(way, dtype, changes):
    options = {"lr": 0.1, "damping": 0.1, **changes}
    model = net(dtype)
    optimizer = kfac(model, batch(dtype)[0], **options)
    train(model, optimizer, 0, 5, dtype)
    twin, other = way(model, optimizer, options)
    assert train(model, optimizer, 5, 10, dtype) == train(twin, other, 5, 10, dtype)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert other.param_groups[0]["params"][0] is next(twin.parameters())


def test_factors_of_a_bfloat16_net_are_float32():
    model = net(torch.bfloat16)
    optimizer = kfac(model, batch(torch.bfloat16)[0], lr=0.1, damping=0.1, momentum=0.5, inverses_every=2)
    losses = train(model, optimizer, 0, 30, torch.bfloat16)
    assert losses[-1] < 0.3 * losses[0]
    assert {tensor.dtype for tensor in tensors_of(optimizer.state_dict()["state"])} == {torch.float32}
    assert all(p.dtype is torch.bfloat16 for p in model.parameters())


def test_state_of_another_width_is_refused():
    model = net()
    optimizer = kfac(model, batch()[0], lr=0.1)
    train(model, optimizer, 0, 1)
    other = nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(75, 4), nn.Linear(4, 3, False))
    with pytest.raises(ValueError, match=r"saved factors of 0.weight are of sizes \(10, 3\), this layer's \(5, 3\)"):
        kfac(other, batch()[0], lr=0.1).load_state_dict(optimizer.state_dict())


def test_all_rates_follow_a_schedule_from_their_own_base():
    model = net()
    optimizer = kfac(model, batch()[0], lr=0.1, other_lr=0.02)
    assert [(group["rule"], group["lr"]) for group in optimizer.param_groups] == [
        ("kronecker", 0.1),
        ("gradient", 0.02),
    ]
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    train(model, optimizer, 0, 1)
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.01]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, 1, 2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


class Mixed(nn.Module):
    """Every kind of tensor that KFAC has a rule for."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.shared = nn.Linear(4, 7, bias=True)
        self.shared.weight = self.embedding.weight
        self.grouped = nn.Conv1d(4, 4, 1, groups=2)
        self.image = nn.Conv2d(4, 4, 1, groups=2)
        self.transposed = nn.ConvTranspose2d(4, 4, 1)
        self.plain = nn.Linear(4, 4)
        self.frozen_weight = nn.Linear(4, 4)
        self.frozen_weight.weight.requires_grad_(False)
        self.frozen_bias = nn.Linear(4, 4)
        self.frozen_bias.bias.requires_grad_(False)
        self.functional = nn.Linear(4, 4, bias=False)
        self.unused = nn.Linear(4, 4, bias=False)
        self.scale = nn.Parameter(torch.ones(()))
        self.empty = nn.Parameter(torch.zeros(0, 3))

    def forward(self, tokens):
        x = self.embedding(tokens).squeeze(1)  # [B, 4]
        x = self.grouped(x.unsqueeze(-1)).unsqueeze(-1)
        x = self.transposed(self.image(x)).flatten(1)
        x = self.frozen_bias(self.frozen_weight(self.plain(x).tanh()).tanh())
        return self.shared(functional.linear(x, self.functional.weight)) * self.scale


def test_coverage_names_every_tensor_and_its_rule():
    torch.manual_seed(0)
    model = Mixed()
    tokens = torch.arange(14).remainder(7).unsqueeze(1)
    rules = {row.tensor: row.rule for row in kfac(model, tokens, lr=0.1).coverage()}
    other = "gradient descent: "
    assert rules == {
        "scale": other + "not of a linear or convolution layer",
        "embedding.weight": other + "shared by several layers",
        "shared.bias": other + "its layer's weight has no factors",
        "grouped.weight": other + "not of a linear or convolution layer",
        "grouped.bias": other + "not of a linear or convolution layer",
        "image.weight": other + "grouped convolution",
        "image.bias": other + "grouped convolution",
        "transposed.weight": other + "not of a linear or convolution layer",
        "transposed.bias": other + "not of a linear or convolution layer",
        "plain.weight": "Kronecker factors 5 and 4",
        "plain.bias": "Kronecker factors 5 and 4",
        "frozen_weight.bias": other + "its layer's weight has no factors",
        "frozen_bias.weight": "Kronecker factors 4 and 4",
        "functional.weight": other + "its layer is not called",
        "unused.weight": other + "its layer is not called",
    }


def test_other_tensors_descend_along_their_gradient_and_unused_ones_stay():
    torch.manual_seed(0)
    model = Mixed()
    tokens, labels = torch.arange(14).remainder(7).unsqueeze(1), torch.arange(14).remainder(7)
    optimizer = kfac(model, tokens, lr=0.1, other_lr=0.05)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    update(model, optimizer, auto, tokens, labels, 0)
    moved = {name: p.detach() - before[name] for name, p in model.named_parameters()}
    for name in ("scale", "embedding.weight", "image.weight", "functional.weight", "frozen_weight.bias"):
        gradient = model.get_parameter(name).grad
        torch.testing.assert_close(moved[name], -0.05 * gradient, rtol=1e-4, atol=1e-7)
    for name in ("unused.weight", "frozen_weight.weight", "frozen_bias.bias"):
        assert not moved[name].any()
    losses = [update(model, optimizer, auto, tokens, labels, step) for step in range(60)]
    assert losses[-1] < 0.7 * losses[0]


def test_a_model_without_a_layer_of_its_own_is_gradient_descent():
    class Weights(nn.Module):
        def __init__(self):
            super().__init__()
            self.vector = nn.Parameter(torch.tensor([1.0, -2.0]))

        def forward(self, x):
            return x * self.vector

    model, x, y = Weights(), torch.ones(3, 2), torch.zeros(3, 2)
    update(model, kfac(model, x, lr=0.1), auto, x, y, 0)
    torch.testing.assert_close(model.vector.detach(), torch.tensor([0.9, -1.8]))


def test_building_and_observing_leave_the_net_as_it_was():
    torch.manual_seed(0)
    model = net().train()
    model[1].eval()  # a mode of its own
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    optimizer = kfac(model, batch()[0], lr=0.1)
    auto(model(batch()[0]), batch()[1]).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    optimizer.observe(auto, *batch())
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert not model[1].training
    assert all(not module._forward_hooks for module in model.modules())
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["gradient", "factor"])
def test_one_bad_number_raises_and_changes_nothing(bad, where):
    model = net()
    optimizer = kfac(model, batch()[0], lr=0.1, damping=0.1, momentum=0.9)
    train(model, optimizer, 0, 3)
    inputs, labels = batch()
    optimizer.zero_grad()
    auto(model(inputs), labels).backward()
    if where == "gradient":
        model[4].weight.grad[1, 2] = bad
        optimizer.observe(auto, inputs, labels)
        message = r"the gradient of 4.weight holds NaN or inf: nothing was changed"
    else:
        inputs[0, 0, 0, 0] = bad
        optimizer.observe(auto, inputs, labels)
        message = r"the Kronecker factors of 0.weight hold NaN or inf: nothing was changed"
    before = copy.deepcopy((list(model.parameters()), optimizer.state_dict()))
    with pytest.raises(FloatingPointError, match=message):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before[0], model.parameters(), strict=True))
    for a, b in zip(tensors_of(before[1]), tensors_of(optimizer.state_dict()), strict=True):
        assert torch.equal(a, b)
    losses = train(model, optimizer, 3, 30)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "inputs", [torch.zeros(4, 5), torch.ones(4, 5), torch.randn(1, 5, generator=torch.Generator())]
)
@pytest.mark.parametrize("damping", [1e-12, 1e-3])
@pytest.mark.filterwarnings("ignore:a .* matrix with damping .* is not positive definite in torch.float32")
def test_zero_and_rank_one_statistics_give_finite_steps(inputs, damping):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, 3))
    with torch.no_grad():
        model[0].weight[0].zero_()  # a dead unit
    optimizer = kfac(model, inputs, lr=0.5, damping=damping, samples=None)
    targets = torch.full((len(inputs), 3), 0.3)
    losses = [update(model, optimizer, auto, inputs, targets, step) for step in range(10)]
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert losses[-1] < 0.1 * losses[0]
    for state in optimizer.state.values():
        for key in ("input_factor", "output_factor"):
            if key in state:
                assert torch.equal(state[key], state[key].mT)
                assert float(torch.linalg.eigvalsh(state[key].double())[0]) > -1e-5


def test_a_zero_gradient_moves_nothing():
    model = nn.Linear(3, 2, bias=False)
    optimizer = kfac(model, torch.ones(2, 3), lr=1.0)
    before = model.weight.detach().clone()
    x = torch.randn(5, 3)
    update(model, optimizer, auto, x, model(x).detach(), 0)
    assert torch.equal(model.weight, before)


def test_an_indefinite_factor_is_taken_again_in_float64_with_a_warning():
    torch.manual_seed(0)
    model = nn.Linear(40, 2, bias=False)
    x = torch.randn(1, 40).expand(6, 40) * 1e3
    optimizer = kfac(model, x, lr=1.0, damping=1e-16, pi=False)
    with pytest.warns(UserWarning, match="is not positive definite in torch.float32: its root is taken in float64"):
        update(model, optimizer, auto, x, torch.ones(6, 2), 0)
    assert bool(model.weight.isfinite().all())


@pytest.mark.parametrize("samples", [1, None])
def test_trains_a_convolutional_net_faster_than_gradient_descent(samples):
    losses = {}
    for name in ("kfac", "gd"):
        model = net()
        if name == "kfac":
            optimizer = kfac(model, batch()[0], lr=0.3, damping=0.03, samples=samples, other_lr=0.1)
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        losses[name] = train(model, optimizer, 0, 25)[-1]
    assert losses["kfac"] < 0.5 * losses["gd"]
