"""Wide residual nets: their known size, their dropout, and the net that they are at widen_factor 1."""

import pytest
import torch

from symlab.models.shortcuts import RescaledPooling
from symlab.models.wide_resnet import wide_resnet
from tests.reference_residual import wide_parameters


def build(seed=0, input_shape=(3, 8, 8), output_size=10, **keys):
    sizes = {"depth": 10, "widen_factor": 2, "width": 4}
    return wide_resnet(input_shape, output_size, torch.Generator().manual_seed(seed), **{**sizes, **keys})


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def test_the_standard_net_has_its_known_size():
    assert parameters(build(depth=28, widen_factor=10, width=16)) == wide_parameters(28, 10, 10) == 36_479_194


@pytest.mark.parametrize(("depth", "widen"), [(10, 1), (16, 2), (22, 3), (40, 1)])
@pytest.mark.parametrize("shortcut", ["conv", "avgpool_conv"])
def test_sizes(depth, widen, shortcut):
    model = build(depth=depth, widen_factor=widen, width=16, output_size=7, shortcut=shortcut)
    assert parameters(model) == wide_parameters(depth, widen, 7)
    pools = [key for key, module in model.named_modules() if isinstance(module, RescaledPooling)]
    changed = ["layer1.0.pool"] if widen > 1 else []
    assert pools == ([*changed, "layer2.0.pool", "layer3.0.pool"] if shortcut == "avgpool_conv" else [])


def test_three_stages_of_which_two_halve_the_resolution():
    model = build(depth=16, stem="imagenet").eval()
    shapes = []
    for stage in (model.stem, model.layer1, model.layer2, model.layer3):
        stage.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(output.shape[1:])))
    assert model(torch.ones(2, 3, 33, 48)).shape == (2, 10)
    assert shapes == [(4, 9, 12), (8, 9, 12), (16, 5, 6), (32, 3, 3)]


def test_dropout_acts_between_the_convolutions_in_training_only():
    model, without = build(dropout=0.5), build()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), without.parameters(), strict=True))
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.eval()(x), without.eval()(x), rtol=0, atol=0)
    inner = {}
    block = model.train().layer2[0]
    block.bn2.register_forward_hook(lambda module, inputs, output: inner.update(before=torch.relu(output)))
    block.conv2.register_forward_pre_hook(lambda module, inputs: inner.update(after=inputs[0]))
    model(x)
    positive = inner["before"] > 0
    kept = inner["after"][positive] > 0
    assert 0.4 < float(kept.float().mean()) < 0.6
    torch.testing.assert_close(inner["after"][positive][kept], 2 * inner["before"][positive][kept])


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"depth": 27}, r"depth must be 6 n \+ 4 .*, got 27"),
        ({"depth": 4}, r"depth must be 6 n \+ 4 .*, got 4"),
        ({"widen_factor": 0}, "widen_factor must be at least 1, got 0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1\.0"),
        ({"dropout": float("nan")}, "dropout must be in .*, got nan"),
        ({"stem": "none"}, "stem must be one of"),
        ({"input_shape": (3, 8)}, "images"),
    ],
)
def test_bad_values_are_named(keys, words):
    with pytest.raises(ValueError, match=words):
        build(**keys)
