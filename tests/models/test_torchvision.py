"""The adapter to torchvision's nets."""

import pytest
import torch
import torchvision.models

from symlab.models.torchvision import torchvision as adapter


def build(name, seed=0, input_shape=(3, 32, 32), output_size=7):
    return adapter(input_shape, output_size, torch.Generator().manual_seed(seed), name=name)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "squeezenet1_1"])
def test_is_the_net_of_that_name_with_the_generators_weights(name):
    before = torch.get_rng_state()
    first, same, other = build(name), build(name), build(name, seed=1)
    assert bool((torch.get_rng_state() == before).all())
    expected = torchvision.models.get_model(name, weights=None, num_classes=7)
    shapes = [(n, p.shape) for n, p in first.named_parameters()]
    assert shapes == [(n, p.shape) for n, p in expected.named_parameters()]
    weights = [torch.cat([p.flatten() for p in net.parameters()]) for net in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_nets_with_auxiliary_outputs_give_logits_in_training():
    net = build("googlenet").train()
    assert net(torch.randn(2, 3, 32, 32)).shape == (2, 7)


def test_vision_transformers_take_the_images_size():
    assert build("vit_b_32").image_size == 32
    with pytest.raises(ValueError, match=r"vit_b_16 does not fit images of \[3, 20, 20\]"):
        build("vit_b_16", input_shape=(3, 20, 20))


def test_unknown_names_and_grey_images():
    with pytest.raises(ValueError, match=r"name must be one of torchvision's \d+ .* resnet18.*got 'resnet_18'"):
        build("resnet_18")
    with pytest.raises(ValueError, match=r"\[3, H, W\], got \[1, 8, 8\].*data.channels=3"):
        build("resnet18", input_shape=(1, 8, 8))
