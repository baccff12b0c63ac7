"""A random shift of the weights, and decay towards it: what it computes, and that no symmetry is left."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

import tests.reference_symmetry_removal as reference
from symlab.constraint.constrain import constrain
from symlab.constraint.distinct_decay import distinct_decay
from symlab.constraint.projectors.elementwise import Elementwise
from symlab.constraint.remove_symmetry import absolute, remove_symmetry
from symlab.constraint.restore_symmetry import restore_symmetry
from symlab.protocols.stack import Stack
from symlab.symmetry import infer_symmetry
from symlab.training.losses import half_mean_squared_error

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.randn(6, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def net(activation=nn.Tanh, hidden=4):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, hidden), activation(), nn.Linear(hidden, 2)).double()


def weights(model):
    """(W, b, V, c) that the model computes with, as the reference takes them."""
    tensors = (model[0].weight, model[0].bias, model[2].weight, model[2].bias)
    return tuple(t.detach().numpy().copy() for t in tensors)


def shifts(model):
    found = dict(model.named_buffers())
    return tuple(found[f"{k}.parametrizations.{key}.0.shift"].numpy() for k in (0, 2) for key in ("weight", "bias"))


def half_loss(model):
    """(1/B) sum of half the squared error, as the reference has it: the model's outputs are summed over."""
    return (model(X) - Y).square().sum() / (2 * len(X))


def test_outputs_parameters_and_the_law_of_the_shift():
    model = nn.Sequential(nn.Linear(400, 200), nn.ReLU(), nn.Linear(200, 50))
    inputs = torch.randn(7, 400, generator=generator())
    before, parameters, names = model(inputs), list(model.parameters()), list(model.state_dict())
    assert remove_symmetry(model, 0.05, generator=generator()) is model
    torch.testing.assert_close(model(inputs), before, rtol=1e-5, atol=1e-5)
    assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
    state = model.state_dict()
    assert len(state) == 2 * len(names)
    shift = state["0.parametrizations.weight.0.shift"]
    torch.testing.assert_close(state["0.parametrizations.weight.original"] + shift, model[0].weight)
    assert float(shift.std()) * 400**0.5 == pytest.approx(0.05, rel=0.02)  # 80,000 draws: 0.25 %
    assert abs(float(shift.mean())) * 400**0.5 < 0.001
    assert float(state["2.parametrizations.weight.0.shift"].std()) * 200**0.5 == pytest.approx(0.05, rel=0.05)
    assert float(state["0.parametrizations.bias.0.shift"].std()) == pytest.approx(0.05, rel=0.2)
    other = remove_symmetry(nn.Linear(400, 200), 0.05, scale=absolute, generator=generator())
    assert float(other.parametrizations.weight[0].shift.std()) == pytest.approx(0.05, rel=0.02)


def test_the_shift_is_the_generators_in_every_dtype():
    one, other = (remove_symmetry(net().to(dtype), generator=generator()) for dtype in (torch.float64, torch.float32))
    for a, b in zip(one.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, b.double(), rtol=1e-6, atol=0)
    different = remove_symmetry(net(), generator=generator(1))
    assert not torch.equal(next(one.buffers()), next(different.buffers()))


def test_decay_pulls_towards_the_shift():
    """Plain SGD with weight_decay on the shifted model, against loops of theta <- theta - lr (g + a (theta - t))."""
    model = remove_symmetry(net(), 0.3, generator=generator())
    expected = reference.descent_towards(weights(model), shifts(model), X.numpy(), Y.numpy(), 0.1, 0.05, 20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        half_loss(model).backward()
        optimizer.step()
    for found, wanted in zip(weights(model), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


def objective(model, theta, decay=0.1):
    """The loss at weights theta plus the decay that an optimizer adds at the phi that makes them."""
    state = {}
    for place, value, shift in zip(PLACES, theta, shifts(model), strict=True):
        state[f"{place[0]}.parametrizations.{place[1]}.original"] = torch.tensor(value - shift)
    value = (functional_call(model, state, (X,)) - Y).square().sum() / (2 * len(X))
    return float(value + decay / 2 * sum(p.square().sum() for p in state.values()))


PLACES = [(0, "weight"), (0, "bias"), (2, "weight"), (2, "bias")]


@pytest.mark.parametrize("kind", ["permutation", "sign", "rescaling"])
def test_no_element_of_the_group_is_left(kind):
    """theta -> g theta leaves loss and plain decay alone, by the reference; with the shift their sum changes. So it
    does for phi -> g phi, which leaves the decay alone, but not the loss."""
    relu = kind == "rescaling"
    model = remove_symmetry(net(nn.ReLU if relu else nn.Tanh), 0.1, generator=generator())
    theta = weights(model)
    moves = {"permutation": reference.permuted, "sign": reference.negated}.get(kind)
    images = list(moves(theta)) if moves else [reference.balanced(theta, unit) for unit in range(4)]
    assert len(images) in (23, 15, 4)
    before, x, y = reference.loss(theta, X.numpy(), Y.numpy(), relu), X.numpy(), Y.numpy()
    phi = tuple(w - s for w, s in zip(theta, shifts(model), strict=True))
    of_phi = list(moves(phi)) if moves else [reference.balanced(phi, unit) for unit in range(4)]
    assert objective(model, theta, decay=0.0) == pytest.approx(before, rel=1e-12)
    for image, moved in zip(images, of_phi, strict=True):
        assert reference.loss(image, x, y, relu) == pytest.approx(before, rel=1e-12)
        assert reference.squared_norm(image) == pytest.approx(reference.squared_norm(theta), rel=1e-12)
        assert abs(objective(model, image) / objective(model, theta) - 1) > 1e-7
        back = tuple(p + s for p, s in zip(moved, shifts(model), strict=True))
        assert reference.squared_norm(moved) == pytest.approx(reference.squared_norm(phi), rel=1e-12)
        assert abs(objective(model, back) / objective(model, theta) - 1) > 1e-7


def equal_neurons(phi_equal=False):
    """A net whose neurons 0 and 1 are equal, in theta or (`phi_equal`) in phi; with a shift."""
    model = net()
    with torch.no_grad():
        for tensor in (model[0].weight, model[0].bias, model[2].weight.T):
            tensor[1] = tensor[0]
    model = remove_symmetry(model, 0.1, generator=generator())
    if phi_equal:
        with torch.no_grad():
            for tensor in (model[0].parametrizations.weight.original, model[0].parametrizations.bias.original):
                tensor[1] = tensor[0]
            outgoing = model[2].parametrizations.weight.original
            outgoing[:, 1] = outgoing[:, 0]
    return model


def off_the_mirror(model, gradients=False):
    """Size of neuron 0 minus neuron 1, of phi or of its gradient."""
    first, last = (model[k].parametrizations.weight.original for k in (0, 2))
    first, last = (first.grad, last.grad) if gradients else (first.detach(), last.detach())
    return float((first[0] - first[1]).norm() + (last[:, 0] - last[:, 1]).norm())


def test_the_loss_has_no_mirror_where_that_of_the_decay_is():
    on_the_mirror = equal_neurons(phi_equal=True)
    half_loss(on_the_mirror).backward()
    assert off_the_mirror(on_the_mirror) == 0
    assert off_the_mirror(on_the_mirror, gradients=True) > 1e-3
    equal = equal_neurons()  # the loss keeps its own mirror, elsewhere
    half_loss(equal).backward()
    assert off_the_mirror(equal, gradients=True) < 1e-12
    assert off_the_mirror(equal) > 1e-2


@pytest.mark.parametrize(("decay", "parts"), [(0.0, False), (0.05, True)])
def test_equal_neurons_part_under_decay_alone(decay, parts):
    model = equal_neurons()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=decay)
    for _ in range(50):
        optimizer.zero_grad()
        half_loss(model).backward()
        optimizer.step()
    W = model[0].weight.detach()
    assert (float((W[0] - W[1]).norm()) > 1e-3) == parts
    assert float((W[0] - W[1]).norm()) < 1e-12 or parts


def test_infer_symmetry_finds_none():
    with pytest.warns(UserWarning, match="does not move with it"):
        assert infer_symmetry(remove_symmetry(net(), generator=generator()), X).groups == {}
    assert infer_symmetry(net(), X).groups != {}


WRAPS = {
    "shift": lambda model: remove_symmetry(model, generator=generator()),
    "distinct": lambda model: distinct_decay(model, generator=generator()),
    "both": lambda model: distinct_decay(remove_symmetry(model, generator=generator()), generator=generator(1)),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_restored_is_the_plain_model_and_copies_stay(wrap):
    model, names, places = net(), list(net().state_dict()), [type(m) for m in net().modules()]
    parameters = list(model.parameters())
    wrap(model)
    outputs, twin = model(X), copy.deepcopy(model)
    assert restore_symmetry(model) is model
    assert torch.equal(model(X), outputs)
    assert torch.equal(twin(X), outputs)
    assert list(model.state_dict()) == names
    assert [type(m) for m in model.modules()] == places
    assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
    net().load_state_dict(model.state_dict())
    restore_symmetry(twin)
    assert torch.equal(twin(X), outputs)
    with pytest.raises(ValueError, match="nothing to restore"):
        restore_symmetry(model)


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_state_through_disk_and_to_another_dtype(wrap):
    model, other = wrap(net()), remove_symmetry(net(), 0.5, generator=generator(5))
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    fresh = wrap(net())
    for tensor in (*fresh.parameters(), *fresh.buffers()):
        tensor.data.fill_(1.5)
    assert fresh.load_state_dict(state).missing_keys == []
    assert torch.equal(fresh(X), model(X))
    if set(other.state_dict()) != set(state):
        with pytest.raises(RuntimeError, match="Missing key"):
            other.load_state_dict(state)
    single = copy.deepcopy(model).to(torch.float32)
    assert {t.dtype for t in (*single.parameters(), *single.buffers())} == {torch.float32}
    torch.testing.assert_close(single(X.float()).double(), model(X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_stacked_nets_and_second_derivatives(wrap):
    models = [remove_symmetry(net(), generator=generator(seed)) for seed in range(3)]
    stack = Stack(models)
    for outputs, model in zip(stack.outputs(X, shared=True), models, strict=True):
        torch.testing.assert_close(outputs, model(X), rtol=1e-12, atol=1e-14)
    model = wrap(net())
    parameters = dict(model.named_parameters())

    def value(*tensors):
        outputs = functional_call(model, dict(zip(parameters, tensors, strict=True)), (X,))
        return half_mean_squared_error(outputs, Y)

    inputs = tuple(p.detach().requires_grad_() for p in parameters.values())
    assert torch.autograd.gradgradcheck(value, inputs)


def test_amp_and_compiled_graphs_see_the_shift():
    model = remove_symmetry(net().float(), 0.5, generator=generator())
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(X.float())
    assert rough.dtype is torch.bfloat16
    torch.testing.assert_close(rough.float(), model(X.float()), rtol=0.05, atol=0.05)
    plain = restore_symmetry(copy.deepcopy(model))
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(X.float()), plain(X.float()))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))) * self.frozen


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_tied_weights_stay_tied_and_frozen_ones_plain(wrap):
    torch.manual_seed(0)
    model = Tied().double()
    before = model(X)
    wrap(model)
    torch.testing.assert_close(model(X), before)
    assert torch.equal(model.first.weight, model.second.weight)
    assert len(list(model.parameters())) == 4
    assert "frozen" in dict(model.named_parameters())
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    twin(X).square().sum().backward()
    optimizer.step()
    assert torch.equal(twin.first.weight, twin.second.weight)
    assert not torch.equal(twin.first.weight, model.first.weight)
    restore_symmetry(model)
    torch.testing.assert_close(model(X), before)
    assert model.first.weight is model.second.weight


def test_factors_of_a_constraint_get_shifts_of_their_own():
    model = constrain(net(), Elementwise())
    remove_symmetry(model, where="0.weight", generator=generator())
    names = [name for name, _ in model.named_buffers()]
    assert len(names) == 2
    assert all("0.parametrizations.weight.parametrizations.original" in name for name in names)
    torch.testing.assert_close(model(X), net()(X))
    restore_symmetry(model)
    assert sum("original" in name for name in model.state_dict()) == 4
    torch.testing.assert_close(model(X), net()(X))


def test_which_weights():
    model = remove_symmetry(net(), where=["*.weight"], generator=generator())
    assert [name for name, _ in model.named_buffers()] == [f"{k}.parametrizations.weight.0.shift" for k in (0, 2)]
    remove_symmetry(model, where="0.bias")
    assert len(list(model.buffers())) == 3
    model = remove_symmetry(net(), where=lambda name, weight: weight.ndim == 1, generator=generator())
    assert [name for name, _ in model.named_buffers()] == [f"{k}.parametrizations.bias.0.shift" for k in (0, 2)]


@pytest.mark.parametrize("change", [remove_symmetry, distinct_decay])
def test_what_is_refused(change):
    for bad in (0.0, -1.0, float("nan"), float("inf"), True):
        with pytest.raises(ValueError, match="got"):
            change(net(), bad)
    with pytest.raises(ValueError, match=r"no weight has a name like '0\.wieght'; near it: 0\.weight"):
        change(net(), where=["0.wieght"])
    with pytest.raises(ValueError, match="where is empty"):
        change(net(), where=[])
    with pytest.raises(ValueError, match="chooses no trainable weight"):
        change(net(), where=lambda name, weight: False)
    with pytest.raises(ValueError, match="no trainable"):
        change(nn.Tanh())
    with pytest.raises(ValueError, match="not initialised"):
        change(nn.LazyLinear(3))
    with pytest.raises(ValueError, match="complex"):
        change(nn.Linear(2, 2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="weight_ih_l0: recurrent layers"):
        change(nn.Sequential(nn.Linear(3, 3), nn.GRU(3, 4)))
    change(nn.Sequential(nn.Linear(3, 3), nn.GRU(3, 4)), where="0.*")
    twice = change(net(), where="0.weight")
    with pytest.raises(ValueError, match=r"0\.parametrizations\.weight\.original has a (shift|divided) already"):
        change(twice)
    assert len(list(twice.buffers())) == 1  # left as it was
    both = (remove_symmetry if change is distinct_decay else distinct_decay)(twice)
    with pytest.raises(ValueError, match=r"weight\.parametrizations\.original\.original has a (shift|divided) already"):
        change(both, where="0.weight")
    with pytest.raises(ValueError, match=r"scale of 0\.weight"):
        remove_symmetry(net(), scale=lambda weight: 0.0)


def test_a_parametrization_on_top_is_not_lost_on_the_way_back():
    model = remove_symmetry(net(), generator=generator())
    nn.utils.parametrize.register_parametrization(model[0], "weight", nn.Tanh())
    with pytest.raises(ValueError, match="remove that first"):
        restore_symmetry(model)


@pytest.mark.slow
def test_distributed_data_parallel(tmp_path):
    """The gradients of phi, and buffers that stay, with torch's own wrapper (one process)."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = remove_symmetry(net(), generator=generator())
        twin = copy.deepcopy(model)
        wrapped = nn.parallel.DistributedDataParallel(model)
        for one in (wrapped, twin):
            one(X).square().sum().backward()
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(a.grad, b.grad)
        for a, b in zip(model.buffers(), twin.buffers(), strict=True):
            assert torch.equal(a, b)
    finally:
        torch.distributed.destroy_process_group()
