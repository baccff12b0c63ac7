"""The Hessian's extremes, and gradients against what is left of the loss."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from symlab.curvature.layerwise_bound import lower_bound
from symlab.curvature.smoothness import DENSE_BELOW, Landscape, LostInRoundingError, gradient_lipschitz, regularity
from symlab.models.normalised_resnet import normalised_resnet
from symlab.training.losses import cross_entropy, half_mean_squared_error
from tests import reference_convergence as reference

ROWS = 3


def net(seed=0, widths=(4, 3), size=5, outputs=2, **keys):
    return normalised_resnet((size,), outputs, torch.Generator().manual_seed(seed), widths=widths, **keys).double()


def landscape(model, rows=ROWS, size=5, outputs=2, loss=half_mean_squared_error, seed=1):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, size, dtype=torch.float64, generator=generator)
    if loss is cross_entropy:
        targets = torch.randint(outputs, (rows,), generator=generator)
    else:
        targets = torch.randn(rows, outputs, dtype=torch.float64, generator=generator)
    return Landscape(model, inputs, targets, loss)


def form_of(model):
    factors = [block.factor for name, block in model.named_children() if name.startswith("block")]
    return {"normalisation": "entry", "epsilon": 1.0, "skip": True, "factors": factors, "activation": "tanh"}


def test_value_gradient_and_hessian_against_loops():
    model = net()
    land = landscape(model)
    weights = [p.detach().numpy() for p in model.parameters()]
    args = (weights, land.inputs.numpy(), land.targets.numpy(), form_of(model))
    assert land.value() == pytest.approx(reference.half_squared_error(*args), rel=1e-12)
    np.testing.assert_allclose(land.gradient().numpy(), reference.gradient(*args), rtol=1e-9, atol=1e-13)
    matrix, product = land.hessian(), land.hessian_product()
    assert torch.equal(matrix, matrix.T)
    for seed in range(3):
        vector = torch.randn(63, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        expected = reference.hessian_product(*args, vector.numpy())
        np.testing.assert_allclose((matrix @ vector).numpy(), expected, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(product(vector).numpy(), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("loss", [half_mean_squared_error, cross_entropy])
def test_extremes_by_lanczos_are_those_of_the_matrix(loss):
    land = landscape(net(2, widths=(5, 3)), loss=loss)
    values = torch.linalg.eigvalsh(land.hessian())
    assert len(values) > DENSE_BELOW
    found = land.extremes(generator=torch.Generator().manual_seed(0), tolerance=1e-9)
    assert found.largest == pytest.approx(float(values[-1]), rel=1e-8)
    assert found.smallest == pytest.approx(float(values[0]), rel=1e-6, abs=1e-9)
    assert float(values[-1]) > 0 > float(values[0])


def test_small_nets_are_exact():
    land = landscape(net(widths=(3, 2)))
    found = land.extremes(generator=torch.Generator().manual_seed(0), steps=1)
    values = torch.linalg.eigvalsh(land.hessian())
    assert len(values) <= DENSE_BELOW
    assert (found.smallest, found.largest) == (float(values[0]), float(values[-1]))
    assert found.largest_error == 0.0


def test_batch_norm_in_training_mode_is_left_as_found():
    """The Hessian is that of the loss with the statistics of all rows; buffers, weights, .grad and mode stay."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)).double().train()
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    land = landscape(model, rows=7, size=4)
    found = land.hessian()
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    vector = torch.cat([p.detach().flatten() for p in model.parameters()])

    def slope(v):
        start = 0
        for p in model.parameters():
            p.data.copy_(v[start : start + p.numel()].view_as(p))
            start += p.numel()
        value = half_mean_squared_error(model(land.inputs), land.targets)
        return torch.cat([part.flatten() for part in torch.autograd.grad(value, list(model.parameters()))])

    columns = []
    for j in range(len(vector)):
        step = torch.zeros_like(vector)
        step[j] = 1e-6
        columns.append((slope(vector + step) - slope(vector - step)) / 2e-6)
    torch.testing.assert_close(found, torch.stack(columns), rtol=1e-5, atol=1e-7)


def test_a_hessian_below_the_rounding_of_its_products_is_said_to_be_lost():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3)).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator)
    inputs = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        model[2].weight.mul_(300)  # outputs so far apart that the softmax is 0 or 1
        labels = model(inputs).argmax(1)
    land = Landscape(model, inputs, labels, cross_entropy)
    assert land.value() < 1e-12
    with pytest.raises(LostInRoundingError, match="the Hessian is lost in rounding"):
        land.extremes(generator=generator, steps=30)


def test_frozen_weights_have_no_curvature():
    model = net()
    model.first.requires_grad_(False)
    assert len(landscape(model).gradient()) == 63 - 20
    assert landscape(model).hessian().shape == (43, 43)


def test_a_loss_that_is_linear_in_the_weights():
    land = Landscape(
        nn.Linear(100, 1, bias=False).double(), torch.ones(2, 100, dtype=torch.float64), torch.zeros(2), total
    )
    found = land.extremes(generator=torch.Generator().manual_seed(0))
    assert (found.smallest, found.largest) == (0.0, 0.0)


def total(outputs, targets):
    return outputs.mean()


def test_what_is_not_finite_is_refused():
    model = net()
    with torch.no_grad():
        next(model.parameters()).fill_(math.inf)
    with pytest.raises(FloatingPointError, match="finite"):
        landscape(model).extremes(generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("loss", [half_mean_squared_error, cross_entropy])
@pytest.mark.parametrize("normalisation", ["entry", "none"])
def test_gradient_lies_between_the_eigenvalues(loss, normalisation):
    for seed in range(5):
        model = net(seed, normalisation=normalisation)
        land = landscape(model, loss=loss, seed=seed)
        found, bound = regularity(land), lower_bound(model, land.inputs)
        assert bound.value * (1 - 1e-9) <= found.output_ratio <= bound.largest * (1 + 1e-9)
        derivative = torch.func.jacrev(lambda w, m=model, x=land.inputs: torch.func.functional_call(m, w, (x,)))(
            {name: p.detach() for name, p in model.named_parameters()}
        )
        pulled = torch.cat([part.flatten(2).flatten(0, 1) for part in derivative.values()], 1)
        torch.testing.assert_close(pulled.mT @ land.output_gradient().flatten(), land.gradient())


def test_polyak_lojasiewicz_of_half_mean_squared_error_is_exact():
    """|grad c|^2 = 2 c / N, so |grad L|^2 >= (2 / N) lambda(DF) L."""
    for seed in range(5):
        model = net(seed)
        land = landscape(model, seed=seed)
        found = regularity(land)
        assert found.output_gradient_square == pytest.approx(2 * found.excess / ROWS, rel=1e-12)
        assert found.pl_ratio == pytest.approx(2 / ROWS * found.output_ratio, rel=1e-12)
        assert found.pl_ratio >= 2 / ROWS * lower_bound(model, land.inputs).value
        shifted = regularity(land, least=found.excess / 2)
        assert shifted.pl_ratio == pytest.approx(2 * found.pl_ratio)


def test_rows_of_cross_entropy():
    """|grad c_n| >= (1 - exp(-c_n)) / N for every row."""
    land = landscape(net(outputs=2), rows=5, loss=cross_entropy)
    slopes = land.output_gradient().norm(dim=1)
    each = nn.functional.cross_entropy(land.model(land.inputs), land.targets, reduction="none").detach()
    assert bool((slopes >= (1 - torch.exp(-each)) / 5 - 1e-15).all())


def test_change_of_the_gradient():
    a = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.0]), torch.tensor([0.0, 0.5])
    assert gradient_lipschitz(*a) == 2.0
    assert math.isnan(gradient_lipschitz(a[0], a[1], torch.zeros(2)))
