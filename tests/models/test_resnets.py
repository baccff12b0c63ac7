"""The residual nets of the first paper against torchvision's, and what is added to their shortcuts."""

import math

import pytest
import torch
import torchvision

from symlab.models.resnet18 import resnet18
from symlab.models.resnet34 import resnet34
from symlab.models.resnet50 import resnet50
from symlab.models.shortcuts import RescaledPooling
from symlab.symmetry import inspect_symmetry
from tests.reference_residual import rescaled_pooling_matrix

NETS = {"resnet18": resnet18, "resnet34": resnet34, "resnet50": resnet50}
KNOWN = {"resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032}


def build(name="resnet18", seed=0, input_shape=(3, 32, 32), output_size=10, width=4, **keys):
    return NETS[name](input_shape, output_size, torch.Generator().manual_seed(seed), width=width, **keys)


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def as_in_torchvision(name):
    """Our name of a tensor -> torchvision's."""
    name = name.replace("stem.0.", "conv1.").replace("stem.1.", "bn1.").replace(".shortcut.", ".downsample.")
    return name


@pytest.mark.parametrize("name", NETS)
def test_it_is_torchvisions_net(name):
    """Same tensors, same numbers out, in training mode: forward and one gradient."""
    torch.manual_seed(0)
    theirs = torchvision.models.get_model(name, weights=None)
    ours = build(name, output_size=1000, width=64, stem="imagenet")
    assert parameters(ours) == parameters(theirs) == KNOWN[name]
    ours.load_state_dict({key: theirs.state_dict()[as_in_torchvision(key)] for key in ours.state_dict()})
    x = torch.randn(3, 3, 40, 40)
    outputs = [net.train()(x) for net in (ours, theirs)]
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)
    for y in outputs:
        y.square().mean().backward()
    gradients = [net.get_parameter(key).grad for net, key in ((ours, "stem.0.weight"), (theirs, "conv1.weight"))]
    torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-3 * float(gradients[1].abs().max()))


@pytest.mark.parametrize("name", NETS)
def test_the_small_stem_keeps_the_resolution(name):
    model = build(name, input_shape=(1, 9, 9)).eval()
    sizes = []
    for stage in (model.stem, model.layer1, model.layer2, model.layer3, model.layer4):
        stage.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape[2]))
    assert model(torch.ones(2, 1, 9, 9)).shape == (2, 10)
    assert sizes == [9, 9, 5, 3, 2]
    wider, narrower = 9 * 4, 49 * 3 * 4  # weights of the stems, for one and three colours
    assert parameters(build(name, stem="imagenet")) - parameters(model) == narrower - wider


@pytest.mark.parametrize(("name", "count"), [("resnet18", 3), ("resnet50", 4)])
def test_the_pooling_of_the_stream_is_added_before_the_relu(name, count):
    plain, modified = (build(name, shortcut=shortcut) for shortcut in ("conv", "avgpool_conv"))
    states = [net.state_dict() for net in (plain, modified)]
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert sum(isinstance(module, RescaledPooling) for module in modified.modules()) == count
    block, other = modified.layer3[0].double().eval(), plain.layer3[0].double().eval()
    channels = block.shortcut[0].in_channels
    x = torch.rand(1, channels, 5, 5, dtype=torch.float64)
    before = []
    last = [net.bn2 if name == "resnet18" else net.bn3 for net in (block, other)]
    last[1].register_forward_hook(lambda module, inputs, output: before.append(output))
    other(x)
    matrix = rescaled_pooling_matrix(channels, block.shortcut[0].out_channels, 2, 5, 5)
    pooled = (matrix @ x.flatten()).reshape(before[0].shape)
    torch.testing.assert_close(block(x), torch.relu(before[0] + other.shortcut(x) + pooled), rtol=1e-12, atol=1e-12)


def test_initial_weights_are_he_normal_and_the_generators():
    before = torch.get_rng_state()
    model, same, other = build(width=16), build(width=16), build(width=16, seed=1)
    assert bool((torch.get_rng_state() == before).all())
    for name, p in model.named_parameters():
        if p.ndim > 1:
            spread = float(p.detach().std() * math.sqrt(math.prod(p.shape[1:]) / 2))
            assert spread == pytest.approx(1, abs=4 / math.sqrt(2 * p.numel())), name
            assert not torch.equal(p, other.get_parameter(name))
        assert torch.equal(p, same.get_parameter(name))


@pytest.mark.parametrize("shortcut", ["conv", "avgpool_conv"])
def test_its_symmetry_is_found_and_verified(shortcut):
    model = build(input_shape=(1, 8, 8), shortcut=shortcut).eval()
    found = inspect_symmetry(model, torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    assert len(found.symmetry.groups) == (12 if shortcut == "conv" else 15)
    assert max(axis.error for axis in found.axes if axis.error is not None) < 1e-10


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"input_shape": (5,)}, "images"),
        ({"shortcut": "identity"}, "shortcut must be one of"),
        ({"width": -1}, "width"),
    ],
)
def test_bad_values_are_named(keys, words):
    with pytest.raises(ValueError, match=words):
        build(**keys)
