"""The three nets of Figure 2: written out, their Jacobian's shape, their skips, and what they share."""

import pytest
import torch
from torch import nn
from torch.func import jacrev
from torch.nn import functional

from symlab.models.mnist_skip_net import mnist_skip_net
from tests.reference_residual import rescaled_pooling_matrix

VARIANTS = ["chain", "res", "res_avg"]


def build(variant="chain", layers="code", seed=0, input_shape=(1, 28, 28)):
    return mnist_skip_net(input_shape, 10, torch.Generator().manual_seed(seed), variant=variant, layers=layers)


def normalised(x):
    """ReLU of batch norm in training mode at its initial weights."""
    dims = [0, *range(2, x.ndim)]
    variance = x.var(dims, correction=0, keepdim=True)
    return functional.relu((x - x.mean(dims, keepdim=True)) / torch.sqrt(variance + 1e-5))


def written_out(model, x, variant):
    """From the kernels alone, in the order of the layers."""
    layers = [(m.weight, m.bias) for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1)]
    x = functional.avg_pool2d(functional.conv2d(x, *layers[0]), 2)
    y = x
    for kernel in layers[1:-2]:
        y = functional.conv2d(normalised(y), *kernel, padding=2)
    x = normalised(y if variant == "chain" else x + y)
    y = functional.conv2d(x, *layers[-2], stride=2, padding=1)
    y = functional.conv2d(normalised(y), *layers[-1])
    if variant != "chain":
        y = y + functional.conv2d(x, model.block2.shortcut.weight, model.block2.shortcut.bias, stride=3)
    if variant == "res_avg":
        matrix = rescaled_pooling_matrix(5, 20, 3, *x.shape[2:])
        y = y + (x.flatten(1) @ matrix.T).reshape(y.shape)
    return functional.linear(normalised(y.flatten(1)), model.head[3].weight, model.head[3].bias)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("layers", "size"), [("code", 28), ("text", 28), ("code", 27)])
def test_forward_is_the_formula_written_out(variant, layers, size):
    model = build(variant, layers, input_shape=(1, size, size)).double()
    x = torch.randn(6, 1, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(x), written_out(model, x, variant), rtol=1e-9, atol=1e-9)


def test_numbers_of_layers_and_weights():
    def kernels(model):
        return [tuple(m.weight.shape) for m in model.modules() if isinstance(m, nn.Conv2d)]

    code = [(5, 1, 5, 5), (5, 5, 5, 5), (5, 5, 5, 5), (20, 5, 3, 3), (20, 20, 3, 3)]
    assert kernels(build()) == code
    assert sorted(kernels(build("res_avg"))) == sorted([*code, (20, 5, 1, 1)])
    assert kernels(build(layers="text")) == [*code[:2], *code[1:]]
    convolutions = sum(torch.Size(shape).numel() + shape[0] for shape in code)
    norms = 2 * (3 * 5 + 20 + 320)
    assert sum(p.numel() for p in build().parameters()) == convolutions + norms + 320 * 10 + 10


@pytest.mark.parametrize("layers", ["code", "text"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_stretch_from_block_1_to_the_logits_has_the_published_shape(variant, layers):
    model = build(variant, layers)
    stream = model.stem(torch.randn(32, 1, 28, 28, generator=torch.Generator().manual_seed(0)))
    assert stream.shape == (32, 5, 12, 12)
    logits = model.head(model.block2(model.block1(stream)))
    assert (logits.numel(), stream.numel()) == (320, 23040)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_effective_skips_are_what_is_left_without_the_branches(variant):
    """With the last kernels of both branches zero: block 1 is the identity or nothing; block 2 the skip of x'."""
    model = build(variant).double().eval()
    for branch in (model.block1.branch, model.block2.branch):
        nn.init.zeros_(branch[-1].weight)
        nn.init.zeros_(branch[-1].bias)
    x = torch.randn(1, 5, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.block1(x), torch.zeros_like(x) if variant == "chain" else x)
    slope = (x > 0).flatten().double() / (1 + 1e-5) ** 0.5  # of BN-ReLU
    jacobian = jacrev(model.block2)(x).reshape(320, 720)
    expected = torch.zeros(320, 720, dtype=torch.float64)
    if variant != "chain":
        unit = torch.eye(720, dtype=torch.float64).reshape(720, 5, 12, 12)
        expected += functional.conv2d(unit, model.block2.shortcut.weight, stride=3).flatten(1).T * slope
    if variant == "res_avg":
        expected += rescaled_pooling_matrix(5, 20, 3, 12, 12) * slope
    torch.testing.assert_close(jacobian, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("layers", ["code", "text"])
def test_the_variants_start_from_the_same_weights(layers):
    chain, res, res_avg = (build(variant, layers).state_dict() for variant in VARIANTS)
    assert list(res) == list(res_avg)
    assert sorted(set(res) - set(chain)) == ["block2.shortcut.bias", "block2.shortcut.weight"]
    assert all(torch.equal(chain[key], res[key]) for key in chain)
    assert all(torch.equal(res_avg[key], res[key]) for key in res)


def test_initial_weights_are_uniform_and_the_generators():
    before = torch.get_rng_state()
    model, same, other = build("res"), build("res"), build("res", seed=1)
    assert bool((torch.get_rng_state() == before).all())
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), same.parameters(), strict=True))
    assert not torch.equal(model.stem[0].weight, other.stem[0].weight)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            bound = module.weight[0].numel() ** -0.5
            assert float(module.weight.detach().abs().max()) <= bound
            assert float(module.bias.detach().abs().max()) <= bound
            if module.weight.numel() > 1000:
                assert float(module.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.05)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"variant": "res-avg"}, "variant must be one of chain, res, res_avg, got 'res-avg'"),
        ({"layers": "paper"}, "layers must be one of code, text, got 'paper'"),
        ({"input_shape": (100,)}, "images"),
        ({"input_shape": (1, 28, 24)}, r"\[C, 28, 28\].*got a side of 24: choose data.size=28"),
        ({"input_shape": (1, 4, 4)}, "got a side of 4"),
    ],
)
def test_bad_values_are_named(keys, words):
    with pytest.raises(ValueError, match=words):
        build(**keys)
