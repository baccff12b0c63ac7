"""The pre-activation residual nets: their function written out, their sizes, their initial weights."""

import math

import pytest
import torch
from torch.nn import functional

from symlab.models.preact_resnet18 import preact_resnet18
from symlab.models.preact_resnet50 import preact_resnet50

NETS = {"preact_resnet18": preact_resnet18, "preact_resnet50": preact_resnet50}


def build(name="preact_resnet18", seed=0, input_shape=(1, 8, 8), output_size=10, width=4):
    return NETS[name](input_shape, output_size, torch.Generator().manual_seed(seed), width=width)


def normalised(x, p, name):
    """ReLU of batch norm in training mode, from its formula; variance without Bessel's correction."""
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
    scale, shift = (p[f"{name}.{key}"][None, :, None, None] for key in ("weight", "bias"))
    return functional.relu((x - mean) / torch.sqrt(variance + 1e-5) * scale + shift)


def written_out(p, x, depths):
    """The net from its parameters alone: each block's layers are read off the names that there are."""
    x = functional.conv2d(x, p["stem.weight"], padding=1)
    for stage, depth in enumerate(depths, start=1):
        for position in range(depth):
            name, stride = f"layer{stage}.{position}", 2 if stage > 1 and position == 0 else 1
            kernels = [p[key] for i in (1, 2, 3) if (key := f"{name}.conv{i}.weight") in p]
            strided = 0 if len(kernels) == 2 else 1  # the convolution that has the stride
            y = normalised(x, p, f"{name}.bn1")
            shortcut = f"{name}.shortcut.weight"
            skipped = functional.conv2d(y, p[shortcut], stride=stride) if shortcut in p else x
            for i, kernel in enumerate(kernels):
                y = normalised(y, p, f"{name}.bn{i + 1}") if i else y
                y = functional.conv2d(y, kernel, stride=stride if i == strided else 1, padding=kernel.shape[2] // 2)
            x = skipped + y
    features = normalised(x, p, "bn").flatten(2).sum(2) / (x.shape[2] * x.shape[3])
    return features @ p["fc.weight"].T + p["fc.bias"]


@pytest.mark.parametrize(("name", "depths"), [("preact_resnet18", (2, 2, 2, 2)), ("preact_resnet50", (3, 4, 6, 3))])
def test_forward_is_the_formula_written_out(name, depths):
    model = build(name, width=2).double()
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, dtype=p.dtype, generator=g))
    x = torch.randn(3, 1, 16, 16, dtype=torch.float64, generator=g)
    expected = written_out(dict(model.named_parameters()), x, depths)
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-9)


def count(name, width, channels, classes):
    """Parameters by hand: convolutions k k in out, batch norms 2 C, linear layer."""
    depths = (2, 2, 2, 2) if name == "preact_resnet18" else (3, 4, 6, 3)
    total, stream = 9 * channels * width, width
    for stage, depth in enumerate(depths):
        inner = width * 2**stage
        for position in range(depth):
            out = inner if name == "preact_resnet18" else 4 * inner
            if name == "preact_resnet18":
                total += 2 * stream + 9 * stream * inner + 2 * inner + 9 * inner * inner
            else:
                total += 2 * stream + stream * inner + 2 * inner + 9 * inner**2 + 2 * inner + inner * out
            if position == 0 and (stage > 0 or stream != out):
                total += stream * out
            stream = out
    return total + 2 * stream + stream * classes + classes


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 7), (1, 1, 1)])
def test_sizes(name, shape):
    model = build(name, input_shape=shape, output_size=7)
    assert sum(p.numel() for p in model.parameters()) == count(name, 4, shape[0], 7)
    assert model(torch.ones(2, *shape) * torch.arange(2.0)[:, None, None, None]).shape == (2, 7)
    assert {(p.dtype, p.device.type) for p in model.parameters()} == {(torch.float32, "cpu")}


def test_the_standard_net_has_its_known_size():
    assert sum(p.numel() for p in build(input_shape=(3, 32, 32), width=64).parameters()) == 11_172_170


def test_resolution_is_halved_three_times():
    model = build()
    sizes = []
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        stage.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape[2]))
    model(torch.randn(2, 1, 28, 28))
    assert sizes == [28, 14, 7, 4]


def test_initial_weights_are_he_normal():
    model = build(width=16)
    for name, p in model.named_parameters():
        if p.ndim > 1:
            fan_in = math.prod(p.shape[1:])
            assert float(p.detach().std() * math.sqrt(fan_in / 2)) == pytest.approx(
                1, abs=4 / math.sqrt(2 * p.numel())
            ), name
        else:
            assert bool((p == (1 if "bn" in name and "weight" in name else 0)).all()), name
    assert all(bool((b == (1 if "var" in name else 0)).all()) for name, b in model.named_buffers())


@pytest.mark.parametrize("name", NETS)
def test_all_randomness_is_the_generators(name):
    before = torch.get_rng_state()
    first, same, other = build(name), build(name), build(name, seed=1)
    assert bool((torch.get_rng_state() == before).all())
    weights = [torch.cat([p.flatten() for p in net.parameters()]) for net in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"width": 0}, ["width", "0"]),
        ({"input_shape": (100,)}, ["images", "[100]", "data=digits"]),
        ({"output_size": 0}, ["output_size", "0"]),
        ({"input_shape": (1, 0, 8)}, ["input_shape", "0"]),
    ],
)
def test_bad_values_are_named(keys, words):
    with pytest.raises(ValueError, match=words[0]) as caught:
        build(**keys)
    assert all(word in str(caught.value) for word in words)
    with pytest.raises(TypeError, match=r"width must be a whole number, got 2\.5"):
        build(width=2.5)
