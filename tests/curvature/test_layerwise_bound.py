"""lambda(DF) and its lower bound by layers, against loops with complex steps."""

import numpy as np
import pytest
import torch
from torch import nn

from symlab.curvature.layerwise_bound import layer_jacobians, layers_of, lower_bound, lowest
from symlab.models.normalised_resnet import normalised_resnet
from tests import reference_convergence as reference

FORMS = [
    {"normalisation": "entry", "skip": True},
    {"normalisation": "weight", "skip": True},
    {"normalisation": "none", "skip": False, "branch_norm": None},
]


def net(seed=0, scale=1.0, widths=(4, 3), **keys):
    model = normalised_resnet((5,), 2, torch.Generator().manual_seed(seed), widths=widths, **keys).double()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(scale)
    return model


def parts(model, keys):
    weights = [p.detach().numpy() for p in model.parameters()]
    factors = [block.factor for name, block in model.named_children() if name.startswith("block")]
    form = {"epsilon": 1.0, "activation": "tanh", "factors": factors}
    return weights, form | {key: value for key, value in keys.items() if key != "branch_norm"}


def data(rows=3, size=5, seed=1):
    return torch.randn(rows, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("keys", FORMS)
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_everything_against_loops(keys, scale):
    model, rows = net(scale=scale, **keys), data()
    weights, form = parts(model, keys)
    jacobians = layer_jacobians(layers_of(model), rows)
    whole = reference.derivative(weights, rows.numpy(), form)
    np.testing.assert_allclose(jacobians.derivative().numpy(), whole, rtol=1e-9, atol=1e-12)
    expected = reference.layer_derivatives(weights, rows.numpy(), form)
    for (own, step), D, J in zip(expected, jacobians.parameter[1:], jacobians.input[1:], strict=True):
        np.testing.assert_allclose(D.flatten(0, 1).numpy(), own, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(torch.block_diag(*J).numpy(), step, rtol=1e-9, atol=1e-12)
    found = lower_bound(model, rows)
    assert [term.layer for term in found.terms] == ["first", "block2", "block3"]
    assert found.value == pytest.approx(reference.lowest(whole), rel=1e-6, abs=1e-13)
    assert found.largest == pytest.approx(np.linalg.eigvalsh(whole @ whole.T)[-1], rel=1e-9)
    terms = reference.bound_terms(weights, rows.numpy(), form)
    for term, (own, _), wanted in zip(found.terms, expected, terms, strict=True):
        assert term.parameter == pytest.approx(reference.lowest(own), rel=1e-6, abs=1e-13)
        assert term.term == pytest.approx(wanted, rel=1e-5, abs=1e-13)
    assert found.bound == pytest.approx(sum(terms), rel=1e-5, abs=1e-13)


def test_the_chain_of_inequalities_at_random_weights():
    """lambda(DF) >= sum of the layers' exact parts >= sum of the terms, and the first two differ from the last."""
    gaps = []
    for seed in range(10):
        for keys in FORMS:
            found = lower_bound(net(seed, scale=4.0 ** (seed % 5 - 2), **keys), data(seed=seed))
            slack = 1e-12 * found.largest
            assert found.value >= found.exact_sum - slack
            assert all(term.exact >= term.term - slack for term in found.terms)
            gaps.append(found.bound / found.value if found.value > slack else 1.0)
    assert min(gaps) < 0.5


def test_positive_where_the_conditions_hold_and_zero_where_they_do_not():
    """Independent rows, not more than inputs, skips that do not widen; a repeated row and too many outputs give 0."""
    for seed in range(5):
        for scale in (0.01, 1.0, 30.0):
            assert lower_bound(net(seed, scale), data(5, seed=seed)).bound > 0
    repeated = data(4)
    repeated[1] = repeated[0]
    found = lower_bound(net(), repeated)
    assert found.value < 1e-25 * found.largest
    assert lower_bound(net(), data(40)).value == 0.0  # 80 outputs, 63 weights
    assert lower_bound(net(widths=(2, 4)), data(3)).terms[0].term == 0.0  # the width grows


def test_without_a_bound_on_the_branch_a_skip_can_be_undone():
    """U = 1, V = -1: f(x) = x - tanh(x) has Jacobian tanh(x)^2, nearly 0 around 0; not so a normalised one."""
    rows = 0.01 * data(3, 4)
    for keys, undone in (({"normalisation": "none", "branch_norm": None}, True), ({"normalisation": "entry"}, False)):
        model = normalised_resnet((4,), 4, torch.Generator().manual_seed(0), widths=(4,), **keys).double()
        weights = list(model.parameters())
        with torch.no_grad():
            for weight, value in zip(weights, (1.0, 1.0, -1.0), strict=True):
                weight.copy_(value * torch.eye(4, dtype=torch.float64))
        (_, block) = lower_bound(model, rows).terms
        assert (block.input < 1e-12) == undone
        assert undone or block.input > 0.1**2


def test_carrier_is_the_largest_term():
    found = lower_bound(net(), data())
    assert found.carrier == max(found.terms, key=lambda term: term.term).layer == "first"


def test_batch_norm_couples_the_rows():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double().train()
    rows = data(6, 4)
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    jacobians = layer_jacobians(layers_of(model), rows, coupled=True)
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    assert model.training
    assert jacobians.parameter[2].shape[-1] == 0
    names = [name for name, _ in model.named_parameters()]
    expected = []
    for place in range(12):
        model.load_state_dict(model.state_dict() | buffers)
        output = model(rows).flatten()[place]
        slopes = torch.autograd.grad(output, [model.get_parameter(name) for name in names])
        expected.append(torch.cat([slope.flatten() for slope in slopes]))
    torch.testing.assert_close(jacobians.derivative(), torch.stack(expected), rtol=1e-9, atol=1e-12)
    found = lower_bound(model, rows, coupled=True)
    assert [term.layer for term in found.terms] == ["0", "1", "3"]
    assert found.value >= found.bound - 1e-12 * found.largest


def test_another_module_is_one_layer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
            self.fixed = nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=False)

        def forward(self, x):
            return x @ self.weight.T * self.fixed

    found = lower_bound(Net(), data(2, 3))
    assert [term.layer for term in found.terms] == ["net"]
    assert found.value == pytest.approx(found.bound)
    assert found.value == pytest.approx(float(torch.linalg.svdvals(data(2, 3))[-1]) ** 2)


def test_lowest_is_the_smallest_eigenvalue_of_the_product():
    wide, tall = data(3, 5), data(5, 3)
    assert lowest(wide) == pytest.approx(float(torch.linalg.eigvalsh(wide @ wide.T)[0]))
    assert lowest(tall) == 0.0


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="no layer"):
        lower_bound(nn.Sequential(), data())
    with pytest.raises(ValueError, match="no weights"):
        lower_bound(nn.Sequential(nn.Tanh()), data())
    with pytest.raises(ValueError, match="rows"):
        lower_bound(nn.Sequential(nn.Linear(5, 2).double(), nn.Flatten(0)), data())
