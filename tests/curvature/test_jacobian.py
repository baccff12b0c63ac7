"""Stretches of layers and their Jacobians, against loops of autograd and torch's singular values, in float64."""

import copy
import math

import pytest
import torch
from torch import nn

from symlab.curvature.jacobian import dense_plan, jacobians
from symlab.curvature.jacobian_spectrum import below, isometry, singular_values
from symlab.curvature.jacobian_stretch import Stretch
from tests.reference_spectrum import jacobian

F64 = torch.float64


class Block(nn.Module):
    """x + conv(relu(bn(x)))."""

    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.conv(torch.tanh(self.bn(x)))


class Net(nn.Module):
    """A small residual net with dropout and an in-place activation."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 3, padding=1)
        self.blocks = nn.Sequential(Block(2), Block(2))
        self.dropout = nn.Dropout(0.5)
        self.activation = nn.ELU(inplace=True)
        self.fc = nn.Linear(2 * 16, 3)

    def forward(self, x):
        x = self.activation(self.dropout(self.blocks(self.stem(x))))
        return self.fc(x.flatten(1))


@pytest.fixture(scope="module")
def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Net().double().train()
        net(torch.randn(20, 1, 4, 4, dtype=F64))  # running statistics that are not 0 and 1
    return net


@pytest.fixture(scope="module")
def inputs():
    return torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(1), dtype=F64)


def by_hand(net, batch_statistics):
    """blocks[1] -> outputs, written out with functional calls."""
    block = net.blocks[1]

    def function(x):
        state = (None, None) if batch_statistics else (block.bn.running_mean, block.bn.running_var)
        normed = nn.functional.batch_norm(x, *state, block.bn.weight, block.bn.bias, training=batch_statistics)
        x = x + nn.functional.conv2d(torch.tanh(normed), block.conv.weight, block.conv.bias, padding=1)
        return net.fc(nn.functional.elu(x).flatten(1))

    return function


@pytest.mark.parametrize("batch_statistics", [False, True])
def test_a_stretch_of_a_net_that_trains(net, inputs, batch_statistics):
    """Values and derivative; every mode, buffer, hook and the global random state is left as found."""
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    modes = [module.training for module in net.modules()]
    stretch = Stretch.of(net, inputs, "blocks.1", "logits", batch_statistics=batch_statistics)
    assert stretch.mixes == batch_statistics
    truth = by_hand(net, batch_statistics)
    torch.testing.assert_close(stretch(stretch.point), truth(stretch.point))
    torch.testing.assert_close(stretch.output, truth(stretch.point))
    exact = jacobian(truth, stretch.point)  # [9, 96]
    plan = dense_plan(stretch, False, 1.0)
    assert (plan.matrices, plan.outputs, plan.inputs, plan.by_rows) == (1, 9, 96, True)
    torch.testing.assert_close(jacobians(stretch, plan)[0], exact)
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert [module.training for module in net.modules()] == modes
    assert all(norm.track_running_stats for norm in (net.blocks[0].bn, net.blocks[1].bn))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in net.parameters())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("batch_statistics", [False, True])
@pytest.mark.parametrize("memory", [1.0, 1e-6], ids=["all at once", "one by one"])
def test_columns_where_the_input_is_smaller(net, inputs, batch_statistics, memory):
    stretch = Stretch.of(net, inputs, "inputs", "blocks.0", batch_statistics=batch_statistics)
    plan = dense_plan(stretch, False, memory)
    assert (plan.outputs, plan.inputs, plan.by_rows, plan.chunk) == (96, 48, False, 48 if memory == 1 else 1)
    torch.testing.assert_close(jacobians(stretch, plan)[0].mT, jacobian(stretch, inputs))


@pytest.mark.parametrize("batch_statistics", [False, True])
@pytest.mark.parametrize("end", ["logits", "blocks.0"])
def test_every_row_by_itself(net, inputs, batch_statistics, end):
    """dy_b / dx_b, also where the rows depend on each other."""
    stretch = Stretch.of(net, inputs, "inputs", end, batch_statistics=batch_statistics)
    plan = dense_plan(stretch, True, 1.0)
    found = jacobians(stretch, plan)
    found = found if plan.by_rows else found.mT  # [3, m, 16]
    whole = jacobian(stretch, inputs).reshape(3, plan.outputs, 3, 16)
    for b in range(3):
        torch.testing.assert_close(found[b], whole[b, :, b])
    assert bool(whole[0, :, 1].any()) == batch_statistics


@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize(("method", "tolerance"), [("gram", 1e-7), ("svd", 1e-12), ("auto", 1e-7)])
def test_singular_values(net, inputs, per_row, method, tolerance):
    stretch = Stretch.of(net, inputs, "blocks.1", "logits")
    found = singular_values(stretch, per_row=per_row, method=method)
    exact = jacobian(by_hand(net, False), stretch.point)
    parts = [exact.reshape(3, 3, 3, 32)[b, :, b] for b in range(3)] if per_row else [exact]
    truth = torch.cat([torch.linalg.svdvals(part) for part in parts]).sort().values
    torch.testing.assert_close(found.values, truth, rtol=0, atol=tolerance)
    torch.testing.assert_close(found.shares, torch.full((9,), 1 / 9, dtype=F64))
    assert found.method == ("gram" if method == "auto" else method)


def test_a_gram_matrix_says_what_it_cannot_resolve():
    net = nn.Linear(6, 4, bias=False).double()
    with torch.no_grad():
        random = torch.Generator().manual_seed(0)
        u = torch.linalg.qr(torch.randn(4, 4, dtype=F64, generator=random)).Q
        v = torch.linalg.qr(torch.randn(6, 4, dtype=F64, generator=random)).Q
        net.weight.copy_(u @ torch.diag(torch.tensor([2.0, 1.0, 1e-11, 0.0], dtype=F64)) @ v.mT)
    stretch = Stretch.of(net, torch.zeros(1, 6, dtype=F64))
    gram, svd = singular_values(stretch), singular_values(stretch, method="svd")
    assert 1e-9 < gram.resolution < 1e-6
    assert svd.resolution < 1e-14
    assert float(svd.values[1]) == pytest.approx(1e-11, rel=1e-3)
    assert isometry(gram, ())["unresolved"] == pytest.approx(0.5)
    assert isometry(svd, ())["unresolved"] == pytest.approx(0.25)
    assert isometry(svd, ())["mean_log"] is None  # not the mean of those that are resolved
    assert isometry(svd, ())["condition"] is None
    with torch.no_grad():
        net.weight.copy_(u @ torch.diag(torch.tensor([4.0, 2.0, 1.0, 0.5], dtype=F64)) @ v.mT)
    whole = isometry(singular_values(Stretch.of(net, torch.zeros(1, 6, dtype=F64))), ())
    assert whole["mean_log"] == pytest.approx(math.log(4 * 2 * 0.5) / 4)


def test_products_alone_agree_with_the_dense_matrix(net, inputs):
    """Extremes within their bounds, and the density's mean and shares within three standard errors."""
    stretch = Stretch.of(net, inputs, "blocks.0", "blocks.1", batch_statistics=True)
    truth = singular_values(stretch, method="svd").values  # 96
    found = singular_values(stretch, method="lanczos", probes=8, steps=40)
    assert found.how == "lanczos: 1 of 96 x 96, never a matrix; 8 probes of 40 steps"
    assert found.largest_error < 1e-3
    assert abs(float(found.values[-1] - truth[-1])) <= found.largest_error
    assert float((truth - found.values[0]).abs().min()) <= found.smallest_error
    numbers = isometry(found, (1.0, 1.5))
    assert abs(numbers["mean"] - float(truth.mean())) < 3 * numbers["mean_error"]
    for level in (1.0, 1.5):
        share = float((truth < level).double().mean())
        assert abs(numbers[below(level)] - share) < 3 * numbers[f"{below(level)}_error"] + 0.02
    for q, name in ((0.25, "q1"), (0.5, "median"), (0.75, "q3")):
        assert numbers[name] == pytest.approx(float(truth.quantile(q)), abs=0.1)
    edges = torch.linspace(0, 4, 5, dtype=F64)
    torch.testing.assert_close(found.histogram(edges), torch.histogram(truth, edges).hist / 96, atol=0.05, rtol=0)


def test_products_alone_for_every_row(net, inputs):
    stretch = Stretch.of(net, inputs, "inputs", "blocks.0")
    truth = singular_values(stretch, per_row=True, method="svd").values  # 3 x 16
    found = singular_values(stretch, per_row=True, method="lanczos", probes=5, steps=16)
    assert float(found.values[0]) == pytest.approx(float(truth[0]), rel=1e-6)
    assert float(found.values[-1]) == pytest.approx(float(truth[-1]), rel=1e-6)
    assert found.matrices == 3
    assert abs(found.mean()[0] - float(truth.mean())) < 3 * found.mean()[1]
    mixed = Stretch.of(net, inputs, "inputs", "blocks.0", batch_statistics=True)
    with pytest.raises(ValueError, match="rows depend on each other"):
        singular_values(mixed, per_row=True, method="lanczos")


def test_the_choice_by_memory(net, inputs):
    stretch = Stretch.of(net, inputs, "blocks.0", "blocks.1")
    assert singular_values(stretch, memory_gib=1.0).method == "gram"
    assert singular_values(stretch, memory_gib=2e-4, steps=4).method == "lanczos"
    with pytest.raises(ValueError, match=r"method=gram: the dense Jacobian .* more than memory_gib=0.0002"):
        singular_values(stretch, memory_gib=2e-4, method="gram")
    with pytest.raises(ValueError, match=r"vectors of 96 numbers need .* more than memory_gib=1e-06"):
        singular_values(stretch, memory_gib=1e-6)
    with pytest.raises(ValueError, match="memory_gib must be positive, got 0"):
        singular_values(stretch, memory_gib=0)
    with pytest.raises(ValueError, match="method must be one of auto, gram, svd, lanczos, got 'qr'"):
        singular_values(stretch, method="qr")


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.unused, self.pair = nn.Linear(3, 3), nn.Linear(3, 3), nn.GRU(3, 3)

    def forward(self, x):
        x = self.pair(x)[0]
        return self.layer(self.layer(x))


class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Identity()

    def forward(self, x):
        return torch.ones_like(self.first(x))


@pytest.mark.parametrize(
    ("model", "start", "end", "message"),
    [
        (Net, "blocks.1.conv", "logits", r"also around start=blocks\.1\.conv \(a skip connection passes by it\)"),
        (Net, "stam", "logits", "no module 'stam'; it has for instance stem"),
        (Net, "logits", "inputs", "begins with inputs and ends with logits, or with modules: logits is its other end"),
        (Net, "stem", "inputs", "inputs is its other end"),
        (Net, "blocks.1", "stem", "end=stem is computed before start=blocks.1"),
        (Twice, "layer", "logits", "start=layer: the model calls this module 2 times in a forward pass"),
        (Twice, "inputs", "unused", "end=unused: the model calls this module never"),
        (Twice, "inputs", "pair", "module 'pair' gives a tuple, not a tensor"),
        (Noisy, "inputs", "logits", "draws random numbers in eval mode"),
        (Constant, "first", "logits", "end=logits does not depend on the input of start=first"),
    ],
)
def test_what_is_no_stretch(model, start, end, message):
    x = torch.randn(2, 1, 4, 4) if model is Net else torch.randn(2, 3)
    model, state = model(), torch.get_rng_state()
    with pytest.raises(ValueError, match=message):
        Stretch.of(model, x, start, end)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)


def test_one_layer_inside_of_a_branch_has_a_jacobian(net, inputs):
    """From a convolution to its own output nothing passes by."""
    stretch = Stretch.of(net, inputs, "blocks.1.conv", "blocks.1.conv")
    weights = jacobian(lambda x: nn.functional.conv2d(x, net.blocks[1].conv.weight, padding=1), stretch.point)
    torch.testing.assert_close(jacobians(stretch, dense_plan(stretch, False, 1.0))[0], weights)
