"""KFAC's factors, damping and step against dense matrices, loops and curvlinops, in float64."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from symlab.optim.kfac import KFAC, kfac
from symlab.training.losses import auto, cross_entropy, half_mean_squared_error
from tests import reference_kfac as reference

F64 = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=F64)


def net(*layers, seed=0):
    """A sequential net in float64 with weights of its own."""
    model = nn.Sequential(*layers).double()
    for i, p in enumerate(model.parameters()):
        p.data = 0.5 * randn(*p.shape, seed=100 * seed + i)
    return model


def deep_linear(bias=True):
    return net(nn.Linear(5, 4, bias=bias), nn.Linear(4, 3, bias=bias), nn.Linear(3, 4, bias=bias))


def observed(model, inputs, targets, loss=half_mean_squared_error, steps=1, **options):
    """An optimizer that has taken `steps` steps of rate 0, for its factors."""
    optimizer = kfac(model, inputs, **({"lr": 1.0, "damping": 1.0} | options))
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.observe(loss, inputs, targets)
        optimizer.step()
    return optimizer


def factors(optimizer, layer):
    """A and G of a layer with their bias correction."""
    state = optimizer.state[layer.weight]
    scale = 1 - optimizer.param_groups[0]["beta"] ** state["observations"]
    return state["input_factor"] / scale, state["output_factor"] / scale


def assert_close(found, right, tolerance=1e-10):
    assert float((found - right).norm() / right.norm()) < tolerance


@pytest.mark.parametrize("bias", [True, False])
def test_blocks_of_deep_linear_nets_are_exact(bias):
    model, x, y = deep_linear(bias), randn(7, 5, seed=1), randn(7, 4, seed=2)
    optimizer = observed(model, x, y, samples=None)
    for layer, dense in zip(model, reference.layer_blocks(model, list(model), x, "mse"), strict=True):
        A, G = factors(optimizer, layer)
        assert_close(torch.kron(G, A), dense)


def test_the_last_layer_of_a_softmax_regression_is_exact_for_equal_rows():
    """With one row repeated the expectation of the product is the product of the expectations."""
    model = net(nn.Linear(4, 3))
    x, y = randn(1, 4, seed=1).expand(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    optimizer = observed(model, x, y, cross_entropy, samples=None)
    (dense,) = reference.layer_blocks(model, [model[0]], x, "nll")
    A, G = factors(optimizer, model[0])
    assert_close(torch.kron(G, A), dense)


@pytest.mark.parametrize("loss", [half_mean_squared_error, cross_entropy])
def test_sampled_factors_converge_to_the_exact_ones(loss):
    model, x = net(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), randn(9, 5, seed=1)
    y = torch.arange(9) % 3
    exact = observed(model, x, y, loss, samples=None)
    errors = []
    for samples in (30, 3000):
        sampled = observed(model, x, y, loss, samples=samples, seed=3)
        for layer in (model[0], model[2]):
            (A, G), (right_A, right_G) = factors(sampled, layer), factors(exact, layer)
            assert torch.equal(A, right_A)
            errors.append(float((G - right_G).norm() / right_G.norm()))
    assert max(errors[2:]) < 0.06
    assert max(errors[2:]) < 0.5 * max(errors[:2])


def test_the_draws_depend_on_the_seed_and_the_step_alone():
    model, x, y = deep_linear(), randn(7, 5, seed=1), randn(7, 4, seed=2)
    torch.manual_seed(0)
    one = observed(model, x, y, seed=1, steps=2)
    before = torch.get_rng_state()
    two, other = observed(model, x, y, seed=1, steps=2), observed(model, x, y, seed=2, steps=2)
    assert torch.equal(torch.get_rng_state(), before)
    G = [factors(optimizer, model[1])[1] for optimizer in (one, two, other)]
    assert torch.equal(G[0], G[1])
    assert not torch.allclose(G[0], G[2])
    assert not torch.allclose(G[0], factors(observed(model, x, y, seed=1), model[1])[1])  # a step fewer


def test_the_scale_does_not_depend_on_the_number_of_rows():
    model, x, y = deep_linear(), randn(7, 5, seed=1), randn(7, 4, seed=2)
    once, thrice = (observed(model, x.repeat(n, 1), y.repeat(n, 1), samples=None) for n in (1, 3))
    for layer in model:
        for found, right in zip(factors(thrice, layer), factors(once, layer), strict=True):
            assert_close(found, right, 1e-13)


def test_a_loss_that_is_a_sum_over_rows_is_refused():
    model, x, y = deep_linear(), randn(7, 5, seed=1), randn(7, 4, seed=2)
    optimizer = kfac(model, x, lr=1.0)
    with pytest.raises(ValueError, match="it is their sum: divide by the number of rows"):
        optimizer.observe(lambda f, t: (f - t).square().sum() / 2, x, y)


@pytest.mark.parametrize(("factor", "loss"), [(2 / 4, functional.mse_loss), (3.0, lambda f, t: 3 * auto(f, t))])
def test_factors_scale_with_the_loss(factor, loss):
    model, x, y = deep_linear(), randn(7, 5, seed=1), randn(7, 4, seed=2)
    plain, scaled = observed(model, x, y, samples=None), observed(model, x, y, loss, samples=None)
    assert_close(factors(scaled, model[0])[1], factor * factors(plain, model[0])[1])


CONVOLUTIONS = {
    "plain": {"kernel_size": 3},
    "stride, padding": {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 2)},
    "1 x 1": {"kernel_size": 1, "stride": (1, 2)},
    "5 x 5": {"kernel_size": 5, "padding": 2},
    "5 x 4, windows apart": {"kernel_size": (5, 4)},
    "horizontal stride, dilated": {"kernel_size": 3, "stride": (1, 2), "dilation": (2, 1), "padding": (2, 1)},
    "dilation": {"kernel_size": 2, "dilation": (2, 3), "padding": 1, "bias": False},
    "same": {"kernel_size": (2, 3), "padding": "same"},
    "valid, circular": {"kernel_size": 2, "padding": "valid", "padding_mode": "circular"},
    "reflect": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("options", list(CONVOLUTIONS.values()), ids=list(CONVOLUTIONS))
def test_factors_of_a_convolution_are_those_of_kfc(options):
    """A summed over positions, G averaged over them, each from loops over rows, positions and outputs."""
    conv = nn.Conv2d(2, 3, **options)
    x, y = randn(4, 2, 6, 5, seed=1), randn(4, 2, seed=2)
    size = conv(x[:1].float()).numel()
    model = net(conv, nn.Tanh(), nn.Flatten(), nn.Linear(size, 2))
    optimizer = observed(model, x, y, samples=None)
    A, G = 0, 0
    for image in x:
        positions = reference.conv_positions(conv, image).detach()
        A = A + positions.T @ positions / len(x)
        before = conv(image[None]).detach().requires_grad_()
        outputs = model[1:](before)[0]
        for output in outputs:
            (g,) = torch.autograd.grad(output, before, retain_graph=True)
            g = g[0].flatten(1)  # [O, T]
            for t in range(len(positions)):
                G = G + torch.outer(g[:, t], g[:, t]) / (len(x) * len(positions))
    found_A, found_G = factors(optimizer, conv)
    assert_close(found_A, A, 1e-12)
    assert_close(found_G, G, 1e-12)


def curvlinops_blocks(model, loss, data, parameters):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import curvlinops

        operator = curvlinops.KFACLinearOperator(
            model, loss, parameters, data, fisher_type="type-2", kfac_approx="expand", separate_weight_and_bias=False
        )
        return operator @ torch.eye(operator.shape[1], dtype=F64)


@pytest.mark.parametrize("problem", ["linear", "tanh", "convolution"])
def test_blocks_agree_with_curvlinops(problem):
    """Its setting `expand` with the exact Fisher, joint weight and bias."""
    x = randn(6, 1, 5, 5, seed=1)
    if problem == "convolution":
        conv = nn.Conv2d(1, 2, 3, stride=2, padding=1)
        model = net(conv, nn.ReLU(), nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 3))
    elif problem == "tanh":
        model = net(nn.Flatten(), nn.Linear(25, 4), nn.Tanh(), nn.Linear(4, 3))
    else:
        model = net(nn.Flatten(), nn.Linear(25, 2), nn.Linear(2, 3))
    loss, theirs, y = (cross_entropy, nn.CrossEntropyLoss(), torch.arange(6) % 3)
    scale = 1.0
    if problem == "linear":
        loss, theirs, y, scale = half_mean_squared_error, nn.MSELoss(), randn(6, 3, seed=2), 2 / 3
    optimizer = observed(model, x, y, loss, samples=None)
    parameters = list(model.parameters())
    dense = curvlinops_blocks(model, theirs, [(x, y)], parameters)
    start = 0
    for layer in model:
        if not isinstance(layer, nn.Linear | nn.Conv2d):
            continue
        A, G = factors(optimizer, layer)
        block = scale * torch.kron(G, A)
        rows, D = len(G), len(A)
        order = [o * D + d for o in range(rows) for d in range(D - 1)] + [o * D + D - 1 for o in range(rows)]
        stop = start + rows * D
        assert_close(block[order][:, order], dense[start:stop, start:stop])
        start = stop
    assert start == len(dense)


@pytest.mark.parametrize("pi", [True, False])
@pytest.mark.parametrize("damping", [1e-3, 0.5])
def test_a_step_is_the_damped_kronecker_solve(pi, damping):
    model, x, y = net(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)), randn(7, 5, seed=1), randn(7, 3)
    known = observed(model, x, y, samples=None)
    pairs = {layer: factors(known, layer) for layer in (model[0], model[2])}
    before = copy.deepcopy(model)
    optimizer = kfac(model, x, lr=0.7, damping=damping, pi=pi, samples=None)
    half_mean_squared_error(model(x), y).backward()
    gradients = {p: p.grad.clone() for p in model.parameters()}
    optimizer.observe(half_mean_squared_error, x, y)
    assert all(torch.equal(p.grad, g) for p, g in gradients.items())
    optimizer.step()
    for layer, old in ((model[0], before[0]), (model[2], before[2])):
        A, G = pairs[layer]
        correction = math.sqrt(float(A.trace() / len(A) / (G.trace() / len(G)))) if pi else 1.0
        joint = [p.grad.reshape(len(p), -1) for p in layer.parameters()]
        dampings = (correction * math.sqrt(damping), math.sqrt(damping) / correction)
        step = reference.damped_step(A, G, torch.cat(joint, 1), *dampings)
        pairs_of_weights = zip(old.parameters(), layer.parameters(), strict=True)
        moved = torch.cat([(a - b).detach().reshape(len(a), -1) for a, b in pairs_of_weights], 1)
        assert_close(moved, 0.7 * step)


def test_one_full_step_solves_a_linear_least_squares_problem():
    model, x, y = net(nn.Linear(5, 3)), randn(20, 5, seed=1), randn(20, 3, seed=2)
    optimizer = kfac(model, x, lr=1.0, damping=1e-14, samples=None)
    half_mean_squared_error(model(x), y).backward()
    optimizer.observe(half_mean_squared_error, x, y)
    optimizer.step()
    homogeneous = torch.cat((x, torch.ones(20, 1, dtype=F64)), 1)
    solution = torch.linalg.lstsq(homogeneous, y).solution.T  # [3, 6]
    assert_close(torch.cat((model[0].weight, model[0].bias[:, None]), 1).detach(), solution, 1e-5)


def test_moving_averages_start_from_zero_and_are_corrected():
    model, x, y = deep_linear(), randn(7, 5, seed=1), randn(7, 4, seed=2)
    optimizer = kfac(model, x, lr=1.0, damping=1.0, beta=0.8, samples=None)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    right, raw = 0, []
    for t in range(3):
        rows = x[t : t + 4]
        half_mean_squared_error(model(rows), y[t : t + 4]).backward()
        optimizer.observe(half_mean_squared_error, rows, y[t : t + 4])
        optimizer.step()
        homogeneous = torch.cat((rows, torch.ones(4, 1, dtype=F64)), 1)
        raw.append(homogeneous.T @ homogeneous / 4)
        right = sum(0.2 * 0.8 ** (t - k) * raw[k] for k in range(t + 1)) / (1 - 0.8 ** (t + 1))
        assert_close(factors(optimizer, model[0])[0], right, 1e-13)


class Twice(nn.Module):
    """One layer called twice, with an activation in place behind it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(functional.relu_(self.layer(x)))


def test_a_layer_called_twice_has_twice_the_positions_and_in_place_activations_do_no_harm():
    torch.manual_seed(0)
    model, x, y = Twice().double(), randn(6, 3, seed=1), randn(6, 3, seed=2)
    optimizer = observed(model, x, y, samples=None)
    first = (x @ model.layer.weight.T + model.layer.bias).detach()
    second = first.clamp(min=0)
    ones = torch.ones(6, 1, dtype=F64)
    A = sum(torch.cat((a, ones), 1).T @ torch.cat((a, ones), 1) for a in (x, second)) / 6
    G = 6 * torch.eye(3, dtype=F64)
    for mask in (first > 0).double():
        J = model.layer.weight.detach() * mask  # d output / d first pre-activation
        G = G + J.T @ J
    found_A, found_G = factors(optimizer, model.layer)
    assert_close(found_A, A, 1e-13)
    assert_close(found_G, G / 12, 1e-13)


def test_positions_of_a_sequence():
    """[B, T, D] inputs of a linear layer: T positions."""
    model, x, y = net(nn.Linear(4, 3), nn.Flatten(), nn.Linear(15, 2)), randn(6, 5, 4, seed=1), randn(6, 2, seed=2)
    optimizer = observed(model, x, y, samples=None)
    a = torch.cat((x, torch.ones(6, 5, 1, dtype=F64)), 2)
    A, G = factors(optimizer, model[0])
    assert_close(A, torch.einsum("bti,btj->ij", a, a) / 6, 1e-13)
    W = model[2].weight.detach().reshape(2, 5, 3)
    assert_close(G, torch.einsum("cti,ctj->ij", W, W) / 5, 1e-13)


def test_kl_clip_bounds_the_step_and_leaves_small_ones_alone():
    model, x, y = deep_linear(), randn(7, 5, seed=1), randn(7, 4, seed=2)
    half_mean_squared_error(model(x), y).backward()
    moves = []
    for clip in (None, 1e9, 1e-4):
        twin = copy.deepcopy(model)
        for p, q in zip(twin.parameters(), model.parameters(), strict=True):
            p.grad = q.grad.clone()
        optimizer = kfac(twin, x, lr=0.5, samples=None, kl_clip=clip)
        optimizer.observe(half_mean_squared_error, x, y)
        optimizer.step()
        moves.append([(q - p).detach() for p, q in zip(twin.parameters(), model.parameters(), strict=True)])
    assert all(torch.equal(a, b) for a, b in zip(moves[0], moves[1], strict=True))
    size = [sum(float((m * q.grad).sum()) for m, q in zip(move, model.parameters(), strict=True)) for move in moves]
    assert 0.5 * size[0] > 1e-4
    # lr^2 u^T F u = 1e-4 for the scaled update u = factor F^-1 V, where lr^2 V^T F^-1 V = lr <move, V>
    assert (size[2] / size[0]) ** 2 * 0.5 * size[0] == pytest.approx(1e-4, rel=1e-9)


def test_momentum_and_decoupled_decay_act_behind_the_preconditioner():
    plain, other = deep_linear(), deep_linear()
    x, y = randn(7, 5, seed=1), randn(7, 4, seed=2)
    options = {"lr": 0.1, "damping": 0.3, "samples": None}
    one, two = kfac(plain, x, **options), kfac(other, x, momentum=0.9, weight_decay=0.2, **options)
    buffers = [torch.zeros_like(p) for p in plain.parameters()]
    for _ in range(3):
        for model, optimizer in ((plain, one), (other, two)):
            optimizer.zero_grad()
            half_mean_squared_error(model(x), y).backward()
            optimizer.observe(half_mean_squared_error, x, y)
        before = [p.detach().clone() for p in plain.parameters()]
        one.step()
        two.step()
        with torch.no_grad():
            for p, old, buffer in zip(plain.parameters(), before, buffers, strict=True):
                buffer.mul_(0.9).add_((old - p) / 0.1)
                p.copy_((1 - 0.1 * 0.2) * old - 0.1 * buffer)
        for p, q in zip(plain.parameters(), other.parameters(), strict=True):
            assert_close(q.detach(), p.detach(), 1e-12)


def test_observe_is_needed_before_every_step():
    model, x, y = deep_linear(), randn(7, 5, seed=1), randn(7, 4, seed=2)
    optimizer = observed(model, x, y)
    with pytest.raises(RuntimeError, match=r"call observe\(loss, inputs, targets\) before each step"):
        optimizer.step()
    assert isinstance(optimizer, KFAC)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("lr", [0, -1, math.nan, True, 1e3]),
        ("other_lr", [0, -1, math.nan]),
        ("damping", [0, -1, math.nan, math.inf, True]),
        ("beta", [1.0, -0.1, "0.9"]),
        ("momentum", [1.0, math.nan]),
        ("samples", [0, 1.5, True]),
        ("factors_every", [0, 2.5]),
        ("inverses_every", [0, True]),
        ("kl_clip", [0, -1, math.inf]),
        ("weight_decay", [-1, math.nan]),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(key, values):
    for value in values:
        with pytest.raises((ValueError, TypeError), match=rf"^{key} must be"):
            kfac(deep_linear(), randn(2, 5), **({"lr": 0.1} | {key: value}))
