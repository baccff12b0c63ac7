"""Optimizers that need the batch: what `update` shows them, and what it keeps from moving."""

import copy
import math

import pytest
import torch
from torch import nn

from symlab.training.factories import UsesBatch
from symlab.training.losses import auto
from symlab.training.update import DivergedError, update
from tests.training.problems import assert_same_state, regression, small_net

DATA = regression()
BATCH = (DATA.train_inputs, DATA.train_targets)


class Curious(torch.optim.SGD):
    """Gradient descent that looks at the batch, with a forward pass in `observe` and another one in `step`."""

    def __init__(self, model):
        super().__init__(model.parameters(), lr=0.1)
        self.model = model
        self.seen = []

    def observe(self, loss, inputs, targets):
        self.gradients = [p.grad.clone() for p in self.model.parameters()]
        self.seen.append(float(loss(self.model(inputs), targets).detach()))

    def step(self, closure=None):
        self.model(BATCH[0])
        torch.randn(3)
        return super().step(closure)


class Failing(Curious):
    def step(self, closure=None):
        self.model(BATCH[0])
        raise RuntimeError("no step")


def net():
    return small_net((4,), 3, torch.Generator().manual_seed(0), batch_norm=True, dropout=0.4).double().train()


def test_only_optimizers_with_observe_use_the_batch():
    model = net()
    assert isinstance(Curious(model), UsesBatch)
    assert not isinstance(torch.optim.SGD(model.parameters(), lr=0.1), UsesBatch)


def test_a_run_is_the_same_bit_for_bit_as_without_the_look_at_the_batch():
    """Weights, running statistics and the random state, with dropout and batch norm, over four updates."""
    states = []
    for kind in (Curious, lambda model: torch.optim.SGD(model.parameters(), lr=0.1)):
        torch.manual_seed(5)
        model = net()
        optimizer = kind(model)
        losses = [update(model, optimizer, auto, *BATCH, step) for step in range(4)]
        states.append({"model": model.state_dict(), "random": torch.get_rng_state(), "losses": losses})
    assert_same_state(*states)


def test_the_look_sees_the_loss_that_was_differentiated_and_the_gradients_of_the_batch():
    """The same dropout masks, so the same loss as that of the forward pass."""
    torch.manual_seed(5)
    model = net()
    optimizer = Curious(model)
    value = update(model, optimizer, auto, *BATCH, 0)
    assert optimizer.seen == [value]
    for p, seen in zip(model.parameters(), optimizer.gradients, strict=True):
        assert torch.equal(p.grad, seen)


def test_nothing_is_seen_of_a_batch_whose_gradient_is_not_finite():
    model = net()
    optimizer = Curious(model)
    with pytest.raises(DivergedError, match="step 7"):
        update(model, optimizer, auto, BATCH[0] * math.nan, BATCH[1], 7)
    assert optimizer.seen == []


def test_a_failing_step_leaves_buffers_and_random_state_as_the_forward_pass_left_them():
    torch.manual_seed(5)
    expected = net()
    update(expected, torch.optim.SGD(expected.parameters(), lr=1e-9), auto, *BATCH, 0)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    model = net()
    with pytest.raises(RuntimeError, match="no step"):
        update(model, Failing(model), auto, *BATCH, 0)
    assert torch.equal(torch.get_rng_state(), after)
    for found, right in zip(model.buffers(), expected.buffers(), strict=True):
        assert torch.equal(found, right)


class Refusing(Curious):
    def step(self, closure=None):
        raise FloatingPointError("the factors hold NaN or inf: nothing was changed")


def test_a_step_that_the_optimizer_refuses_leaves_everything_as_before_the_batch():
    torch.manual_seed(5)
    model = net()
    before = {"model": copy.deepcopy(model.state_dict()), "random": torch.get_rng_state()}
    optimizer = Refusing(model)
    with pytest.raises(DivergedError, match=r"^step 4: the factors hold NaN or inf: nothing was changed$"):
        update(model, optimizer, auto, *BATCH, 4)
    assert_same_state(before, {"model": model.state_dict(), "random": torch.get_rng_state()})


def test_a_model_without_buffers():
    model = nn.Linear(4, 3).double()
    optimizer = Curious(model)
    before = float(auto(model(BATCH[0]), BATCH[1]).detach())
    assert update(model, optimizer, auto, *BATCH, 0) == before
    assert float(auto(model(BATCH[0]), BATCH[1]).detach()) < before
