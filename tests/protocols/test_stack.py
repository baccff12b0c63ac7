"""Nets trained side by side equal the same nets trained one after the other by torch.optim.SGD."""

import copy

import pytest
import torch
from torch import nn

from symlab.constraint.constrain import constrain
from symlab.protocols.stack import Stack, StackedSGD, column, combinations


def nets(count=3, norm=False, dtype=torch.float64):
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        middle = nn.BatchNorm1d(4) if norm else nn.Tanh()
        made.append(nn.Sequential(nn.Linear(5, 4), middle, nn.Linear(4, 2)).to(dtype))
    return made


def batches(count, steps, rows=6):
    generator = torch.Generator().manual_seed(9)
    return [
        (
            torch.randn(count, rows, 5, generator=generator, dtype=torch.float64),
            torch.randn(count, rows, 2, generator=generator, dtype=torch.float64),
        )
        for _ in range(steps)
    ]


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def mean_square(outputs, targets):
    return ((outputs - targets) ** 2).mean()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("norm", [False, True])
def test_every_net_moves_as_under_torchs_sgd(momentum, norm):
    alone, rates, decays = nets(norm=norm), [0.1, 0.01, 0.5], [0.0, 0.1, 0.01]
    stack = Stack(alone)
    sgd = StackedSGD(stack, double(rates), double(decays), momentum)
    plain = [
        torch.optim.SGD(net.parameters(), lr=lr, weight_decay=decay, momentum=momentum)
        for net, lr, decay in zip(alone, rates, decays, strict=True)
    ]
    for inputs, targets in batches(3, 5):
        sgd.backward(stack.losses(mean_square, inputs, targets, shared=False))
        sgd.step()
        for i, (net, optimizer) in enumerate(zip(alone, plain, strict=True)):
            optimizer.zero_grad()
            mean_square(net(inputs[i]), targets[i]).backward()
            optimizer.step()
    for i, net in enumerate(alone):
        for name, values in stack.net(i).state_dict().items():
            torch.testing.assert_close(values, net.state_dict()[name], rtol=1e-12, atol=1e-12)


def test_shared_inputs_are_the_same_inputs_for_all():
    stack, (inputs, targets) = Stack(nets()), batches(1, 1)[0]
    each = stack.losses(mean_square, inputs.expand(3, -1, -1), targets.expand(3, -1, -1), shared=False)
    torch.testing.assert_close(stack.losses(mean_square, inputs[0], targets[0], shared=True), each)


def test_the_nets_given_are_copied():
    given = nets()
    before = copy.deepcopy(given[0].state_dict())
    stack = Stack(given)
    sgd = StackedSGD(stack, torch.ones(3).double(), torch.zeros(3).double())
    inputs, targets = batches(1, 1)[0]
    sgd.backward(stack.losses(mean_square, inputs[0], targets[0], shared=True))
    sgd.step()
    assert all(torch.equal(values, before[name]) for name, values in given[0].state_dict().items())
    assert not torch.equal(stack.net(0)[0].weight, given[0][0].weight)


def test_a_net_that_diverges_stays_where_it_was_and_the_others_go_on():
    alone = nets()
    stack = Stack(alone)
    sgd = StackedSGD(stack, double([0.1, 1e200, 0.1]), torch.zeros(3).double(), 0.5)
    moved = []
    for inputs, targets in batches(3, 4):
        sgd.backward(stack.losses(mean_square, inputs, targets, shared=False))
        sgd.step()
        moved.append(stack.net(0)[0].weight.detach().clone())
    assert sgd.alive.tolist() == [True, False, True]
    assert all(p.isfinite().all() for p in stack.parameters.values())
    assert not torch.equal(moved[-1], moved[-2])


def test_goes_on_exactly_from_a_state():
    def run(steps, state=None):
        stack = Stack(nets(norm=True))
        sgd = StackedSGD(stack, double([0.1] * 3), double([0.01] * 3), 0.9)
        if state is not None:
            sgd.restore(state)
        for inputs, targets in steps:
            sgd.backward(stack.losses(mean_square, inputs, targets, shared=False))
            sgd.step()
        return sgd

    steps = batches(3, 6)
    whole, half = run(steps), run(steps[:3])
    again = run(steps[3:], half.state())
    for own, other in ((whole.stack.parameters, again.stack.parameters), (whole.stack.buffers, again.stack.buffers)):
        assert all(torch.equal(own[name], other[name]) for name in own)


def test_refuses_frozen_parameters_and_no_nets():
    net = nets(1)[0]
    net[0].weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"0\.weight has requires_grad=False"):
        Stack([net])
    with pytest.raises(ValueError, match="at least one net"):
        Stack([])


def projected(direction):
    """A net with a buffer of its own that is in no state_dict."""
    n = double(direction) / double(direction).norm()
    return constrain(nn.Sequential(nn.Linear(2, 2, bias=False)).double(), torch.outer(n, n))


def test_a_net_that_is_taken_out_has_its_own_buffers_also_those_in_no_state_dict():
    alone = [projected([1.0, 0, 0, 0]), projected([0, 1.0, 1.0, 0])]
    for net in alone:
        for k, p in enumerate(net.parameters()):
            p.data.add_(double([[1.0, 2.0], [-3.0, k]]))
    stack, x = Stack(alone), double([[1.0, -2.0]])
    for i, net in enumerate(alone):
        torch.testing.assert_close(stack.net(i)(x), net(x))
        assert stack.net(i)[0].parametrizations.weight[0].matrix is not net[0].parametrizations.weight[0].matrix


def test_combinations_and_columns():
    labels = combinations(lr=[0.1, 1.0], seed=[0, 1])
    assert labels == [{"lr": 0.1, "seed": 0}, {"lr": 0.1, "seed": 1}, {"lr": 1.0, "seed": 0}, {"lr": 1.0, "seed": 1}]
    assert column(labels, "lr", torch.zeros(1).double()).tolist() == [0.1, 0.1, 1.0, 1.0]
