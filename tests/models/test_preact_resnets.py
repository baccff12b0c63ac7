"""The pre-activation residual nets: their function written out, their sizes, their initial weights."""

import math
import warnings

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional

from symlab.models.preact_resnet18 import preact_resnet18
from symlab.models.preact_resnet34 import preact_resnet34
from symlab.models.preact_resnet50 import preact_resnet50
from symlab.models.preact_resnet101 import preact_resnet101
from symlab.models.preact_resnet152 import preact_resnet152
from symlab.models.shortcuts import RescaledPooling
from symlab.symmetry import Group, inspect_symmetry
from tests.reference_residual import DEPTHS, preact_parameters, rescaled_pooling_matrix

NETS = {
    "preact_resnet18": preact_resnet18,
    "preact_resnet34": preact_resnet34,
    "preact_resnet50": preact_resnet50,
    "preact_resnet101": preact_resnet101,
    "preact_resnet152": preact_resnet152,
}


def build(name="preact_resnet18", seed=0, input_shape=(1, 8, 8), output_size=10, width=4, **keys):
    return NETS[name](input_shape, output_size, torch.Generator().manual_seed(seed), width=width, **keys)


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def depth_of(name):
    return int(name.removeprefix("preact_resnet"))


def normalised(x, p, name):
    """ReLU of batch norm in training mode, from its formula; variance without Bessel's correction."""
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
    scale, shift = (p[f"{name}.{key}"][None, :, None, None] for key in ("weight", "bias"))
    return functional.relu((x - mean) / torch.sqrt(variance + 1e-5) * scale + shift)


def pooled(y, channels, stride):
    """The rescaled pooling by its matrix."""
    matrix = rescaled_pooling_matrix(y.shape[1], channels, stride, *y.shape[2:])
    size = [-(-side // stride) for side in y.shape[2:]]
    return (y.flatten(1) @ matrix.T).reshape(len(y), channels, *size)


def written_out(p, x, depths, pool=False):
    """The net from its parameters alone: each block's layers are read off the names that there are."""
    if "stem.weight" in p:
        x = functional.conv2d(x, p["stem.weight"], padding=1)
    else:
        x = functional.conv2d(x, p["stem.0.weight"], stride=2, padding=3)
        x = functional.max_pool2d(functional.pad(x, (1, 1, 1, 1), value=-math.inf), 3, stride=2)
    for stage, depth in enumerate(depths, start=1):
        for position in range(depth):
            name, stride = f"layer{stage}.{position}", 2 if stage > 1 and position == 0 else 1
            kernels = [p[key] for i in (1, 2, 3) if (key := f"{name}.conv{i}.weight") in p]
            strided = 0 if len(kernels) == 2 else 1  # the convolution that has the stride
            y = normalised(x, p, f"{name}.bn1")
            shortcut = f"{name}.shortcut.weight"
            skipped = functional.conv2d(y, p[shortcut], stride=stride) if shortcut in p else x
            if pool and shortcut in p:
                skipped = skipped + pooled(y, len(p[shortcut]), stride)
            for i, kernel in enumerate(kernels):
                y = normalised(y, p, f"{name}.bn{i + 1}") if i else y
                y = functional.conv2d(y, kernel, stride=stride if i == strided else 1, padding=kernel.shape[2] // 2)
            x = skipped + y
    x = normalised(x, p, "bn") if "bn.weight" in p else x
    features = x.flatten(2).sum(2) / (x.shape[2] * x.shape[3])
    return features @ p["fc.weight"].T + p["fc.bias"]


FORMS = [
    {},
    {"shortcut": "avgpool_conv"},
    {"shortcut": "avgpool_conv", "stem": "imagenet", "final_norm": False},
    {"depth_factor": 1.5},
]


@pytest.mark.parametrize("keys", FORMS, ids=str)
@pytest.mark.parametrize("name", ["preact_resnet18", "preact_resnet50"])
def test_forward_is_the_formula_written_out(name, keys):
    model = build(name, width=2, **keys).double()
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, dtype=p.dtype, generator=g))
    x = torch.randn(3, 1, 22, 17, dtype=torch.float64, generator=g)
    depths = DEPTHS[depth_of(name)]
    if "depth_factor" in keys:
        depths = (3, 3, 3, 3) if name == "preact_resnet18" else (5, 6, 9, 5)
    expected = written_out(dict(model.named_parameters()), x, depths, pool="shortcut" in keys)
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["preact_resnet18", "preact_resnet50"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 7), (1, 1, 1)])
def test_sizes(name, shape):
    model = build(name, input_shape=shape, output_size=7, shortcut="avgpool_conv")
    assert parameters(model) == preact_parameters(depth_of(name), 4, shape[0], 7)
    assert model(torch.ones(2, *shape) * torch.arange(2.0)[:, None, None, None]).shape == (2, 7)
    assert {(p.dtype, p.device.type) for p in model.parameters()} == {(torch.float32, "cpu")}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(("stem", "final_norm"), [("cifar", True), ("imagenet", False)])
def test_numbers_of_parameters_are_those_counted_by_hand(name, stem, final_norm):
    keys = {"input_shape": (3, 32, 32), "output_size": 7, "width": 4, "stem": stem, "final_norm": final_norm}
    counted = preact_parameters(depth_of(name), 4, 3, 7, stem=stem, final_norm=final_norm)
    assert [parameters(build(name, shortcut=shortcut, **keys)) for shortcut in ("conv", "avgpool_conv")] == [
        counted
    ] * 2


def test_the_standard_net_has_its_known_size():
    sizes = {"input_shape": (3, 32, 32), "width": 64}
    assert parameters(build(**sizes)) == preact_parameters(18, 64, 3, 10) == 11_172_170
    assert parameters(build(final_norm=False, **sizes)) == 11_171_146


@pytest.mark.parametrize("depth", DEPTHS)
def test_sizes_differ_from_the_first_papers_nets_by_their_norms(depth):
    """torchvision's v1 net has a norm in the stem, and one behind each convolution of a branch and of a shortcut; this
    one a norm before each convolution of a branch, and one at the end."""
    with torch.device("meta"):
        plain = torchvision.models.get_model(f"resnet{depth}", weights=None)
    in_norms = sum(2 * m.num_features for m in plain.modules() if isinstance(m, nn.BatchNorm2d))
    expansion = 1 if depth < 50 else 4
    norms, stream = 0, 64
    for stage, blocks in enumerate(DEPTHS[depth]):
        for _ in range(blocks):
            norms += 2 * stream + (1 if depth < 50 else 2) * 2 * 64 * 2**stage
            stream = expansion * 64 * 2**stage
    expected = sum(p.numel() for p in plain.parameters()) - in_norms + norms + 2 * stream
    assert preact_parameters(depth, 64, 3, 1000, stem="imagenet") == expected


def test_an_image_of_224_pixels_goes_through_the_imagenet_stem():
    model = build(
        "preact_resnet50", input_shape=(3, 224, 224), width=4, stem="imagenet", shortcut="avgpool_conv"
    ).eval()
    sizes = []
    for stage in (model.stem, model.layer1, model.layer2, model.layer3, model.layer4):
        stage.register_forward_hook(lambda module, inputs, output: sizes.append(tuple(output.shape[1:])))
    assert model(torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))).isfinite().all()
    assert sizes == [(4, 56, 56), (16, 56, 56), (32, 28, 28), (64, 14, 14), (128, 7, 7)]


@pytest.mark.parametrize("name", ["preact_resnet18", "preact_resnet50"])
def test_both_shortcuts_start_from_the_same_weights(name):
    states = [build(name, shortcut=shortcut).state_dict() for shortcut in ("conv", "avgpool_conv")]
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize(("name", "count"), [("preact_resnet18", 3), ("preact_resnet50", 4)])
def test_the_pooling_is_added_where_the_stream_changes(name, count):
    plain, modified = (build(name, shortcut=shortcut).double().eval() for shortcut in ("conv", "avgpool_conv"))
    pools = [key for key, module in modified.named_modules() if isinstance(module, RescaledPooling)]
    assert len(pools) == count
    assert pools[-3:] == ["layer2.0.pool", "layer3.0.pool", "layer4.0.pool"]
    assert not any(isinstance(module, RescaledPooling) for module in plain.modules())
    x = torch.randn(2, modified.layer4[0].bn1.num_features, 5, 4, dtype=torch.float64)
    added = modified.layer4[0](x) - plain.layer4[0](x)
    activated = torch.relu(x / math.sqrt(1 + 1e-5))
    torch.testing.assert_close(added, pooled(activated, added.shape[1], 2), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [8, 9])
def test_the_symmetry_of_the_pooled_net_is_found_and_verified(size):
    """Channels to which pooled ones are added are tied to those; those that get zeros are two axes of their own."""
    model = build(width=4, shortcut="avgpool_conv").eval()
    inputs = torch.randn(2, 1, size, size, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = inspect_symmetry(model, inputs)
    stream = "layer{0}.0.conv2.weight:0:{1}"
    labels = [axis.label for axis in found.axes if axis.role == "residual"]
    assert labels == [
        "stem.weight:0",
        *(
            stream.format(stage, ends)
            for stage, pair in ((2, "0:2 6:8"), (3, "0:4 12:16"), (4, "0:8 24:32"))
            for ends in pair.split()
        ),
    ]
    assert max(axis.error for axis in found.axes if axis.error is not None) < 1e-10
    stem = next(axis for axis in found.axes if axis.label == "stem.weight:0")
    assert (stem.size, stem.group) == (4, Group.PERMUTATION)
    assert {("layer2.1.bn1.weight", 0), ("layer3.0.conv2.weight", 0), ("layer4.1.conv1.weight", 1)} <= set(stem.places)


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
    weights = [torch.cat([p.detach().flatten() for p in net.parameters()]) for net in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"width": 0}, ["width", "0"]),
        ({"input_shape": (100,)}, ["images", "[100]", "data=digits"]),
        ({"output_size": 0}, ["output_size", "0"]),
        ({"input_shape": (1, 0, 8)}, ["input_shape", "0"]),
        ({"shortcut": "pool"}, ["shortcut", "conv, avgpool_conv", "'pool'"]),
        ({"stem": "mnist"}, ["stem", "cifar, imagenet", "'mnist'"]),
        ({"depth_factor": 0}, ["depth_factor", "positive", "0"]),
        ({"depth_factor": math.nan}, ["depth_factor", "nan"]),
        ({"depth_factor": math.inf}, ["depth_factor", "inf"]),
    ],
)
def test_bad_values_are_named(keys, words):
    with pytest.raises(ValueError, match=words[0]) as caught:
        build(**keys)
    assert all(word in str(caught.value) for word in words)
    with pytest.raises(TypeError, match=r"width must be a whole number, got 2\.5"):
        build(width=2.5)
    with pytest.raises(TypeError, match="depth_factor must be a number, got True"):
        build(depth_factor=True)


def test_init_uniform_draws_as_torchs_own_layers_do():
    """torch.nn.Conv2d and Linear: weights and biases U(-1 / sqrt(fan_in), 1 / sqrt(fan_in))."""
    torch.manual_seed(0)
    reference = torch.nn.Conv2d(64, 64, 3, bias=False).weight.detach()
    net = preact_resnet18((3, 8, 8), 10, torch.Generator().manual_seed(0), width=64, init="uniform")
    weight = net.layer1[0].conv1.weight.detach()
    bound = (64 * 9) ** -0.5
    assert weight.shape == reference.shape
    assert float(weight.abs().max()) <= bound
    assert float(weight.std()) == pytest.approx(bound / 3**0.5, rel=0.02)
    assert float(reference.std()) == pytest.approx(float(weight.std()), rel=0.02)
    assert float(net.fc.bias.detach().abs().max()) > 0
    with pytest.raises(ValueError, match="init must be one of kaiming, uniform, got 'he'"):
        preact_resnet18((3, 8, 8), 10, torch.Generator().manual_seed(0), width=4, init="he")
