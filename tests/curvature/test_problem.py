"""What a problem checks, and that the net, the data and the random state are left as they were."""

import copy

import pytest
import torch
from torch import nn

from symlab.curvature.ensemble import draw
from symlab.curvature.gradients import gradients
from symlab.curvature.label_law import label_law
from symlab.curvature.probes import empirical_fisher_probes, fisher_probes, ggn_probes, hessian_probes
from symlab.curvature.problem import Problem
from symlab.curvature.second_order import empirical_fishers, fishers, ggns, hessians
from symlab.training.losses import cross_entropy, half_mean_squared_error
from tests.curvature.nets import chain, convolutional, data, made


def everything(problem, parameters):
    gradients(problem, parameters)
    for of in (hessians, ggns, fishers, empirical_fishers):
        of(problem, parameters)
    for of in (hessian_probes, ggn_probes, fisher_probes, empirical_fisher_probes):
        of(problem, parameters, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("models", [1, 2])
def test_everything_is_left_as_it_was(training, models):
    build = convolutional(dropout=0.3)
    net = made(build).double()
    calls = []
    net.fc.register_forward_hook(lambda *_: calls.append(1))
    X, Y = data(5, (2, 4), 2, "mse")
    half_mean_squared_error(net.eval()(X), Y).backward()
    net.train(not training)
    net.fc.eval()
    before, grads = copy.deepcopy(net.state_dict()), [p.grad.clone() for p in net.parameters()]
    flags = [module.training for module in net.modules()]
    rows = X.clone(), Y.clone()
    state = torch.get_rng_state()
    problem = Problem.of(net, X, Y, half_mean_squared_error, training=training)
    parameters = draw(build, problem, 0, 0, models)
    drawn = {name: x.clone() for name, x in parameters.items()}
    everything(problem, parameters)
    everything(problem, parameters)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in net.modules()] == flags
    after = net.state_dict()
    assert all(torch.equal(after[name], x) for name, x in before.items())
    assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), grads, strict=True))
    assert all(p.requires_grad for p in net.parameters())
    assert len(net.fc._forward_hooks) == 1
    assert torch.equal(X, rows[0])
    assert torch.equal(Y, rows[1])
    assert all(torch.equal(parameters[name], x) for name, x in drawn.items())


def test_nothing_accumulates_in_training_mode():
    build = convolutional()
    problem = Problem.of(made(build), *data(5, (2, 4), 2, "mse"), half_mean_squared_error, training=True)
    parameters = draw(build, problem, 0, 0, 1)
    assert torch.equal(hessians(problem, parameters), hessians(problem, parameters))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 1)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.fc(x) * self.calls


def test_a_buffer_that_counts_calls_starts_from_the_template_each_time():
    net = Counting().double()
    problem = Problem.of(net, *data(3, (2,), 1, "mse"), half_mean_squared_error)
    parameters = {name: p.detach()[None] for name, p in net.named_parameters()}
    first = gradients(problem, parameters)["fc.weight"]
    assert torch.equal(first, gradients(problem, parameters)["fc.weight"])
    assert float(net.calls) == 0


def test_a_loss_that_is_a_sum_over_rows_is_refused():
    net = made(chain((3, 2))).double()
    with pytest.raises(ValueError, match="it is their sum"):
        Problem.of(net, *data(5, (3,), 2, "mse"), lambda f, y: (f - y).square().sum())


def test_a_loss_with_weights_of_classes_is_refused():
    net = made(chain((3, 2))).double()
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0], dtype=torch.float64))
    with pytest.raises(ValueError, match="mean over rows"):
        Problem.of(net, *data(20, (3,), 2, "nll"), weighted)


def test_a_loss_per_row_is_refused():
    net = made(chain((3, 2))).double()
    with pytest.raises(ValueError, match="0-d tensor"):
        Problem.of(net, *data(5, (3,), 2, "nll"), nn.CrossEntropyLoss(reduction="none"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row_batch": 0}, "row_batch must be at least 1"),
        ({"training": True, "row_batch": 2}, "training=True: row_batch must be None"),
    ],
)
def test_row_batches_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        Problem.of(made(convolutional()), *data(5, (2, 4), 2, "mse"), half_mean_squared_error, **change)


def test_rows_that_depend_on_each_other_need_all_rows():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)).double()
    X, Y = data(5, (3,), 2, "mse")
    assert Problem.of(net, X, Y, half_mean_squared_error).coupled
    with pytest.raises(ValueError, match="rows depend on each other"):
        Problem.of(net, X, Y, half_mean_squared_error, row_batch=2)


def test_what_else_is_refused():
    X, Y = data(5, (3,), 2, "mse")
    frozen = made(chain((3, 2))).double().requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameter"):
        Problem.of(frozen, X, Y, half_mean_squared_error)
    with pytest.raises(ValueError, match="equally many rows"):
        Problem.of(made(chain((3, 2))), X, Y[:4], half_mean_squared_error)
    with pytest.raises(ValueError, match=r"must be \[3, C\]"):
        Problem.of(nn.Sequential(nn.Linear(3, 2), nn.Unflatten(1, (1, 2))).double(), X, Y, half_mean_squared_error)


def test_the_law_of_the_labels():
    net = made(chain((3, 2))).double()
    X, labels = data(5, (3,), 2, "nll")
    f = torch.randn(4, 2, dtype=torch.float64)
    law = label_law(Problem.of(net, X, labels, cross_entropy))
    torch.testing.assert_close(law.probabilities(f), torch.softmax(f, 1))
    noise = law.noise(4, 2, torch.Generator().manual_seed(0))
    labels = (noise > torch.softmax(f, 1)[:, 0]).long()
    torch.testing.assert_close(
        law.sampled_score(f, noise), torch.softmax(f, 1) - nn.functional.one_hot(labels, 2), check_dtype=False
    )
    smooth = nn.CrossEntropyLoss(label_smoothing=0.2)
    with pytest.raises(ValueError, match="take the quantity ggn"):
        label_law(Problem.of(net, X, torch.zeros(5, dtype=torch.int64), smooth))
    with pytest.raises(ValueError, match="take the quantity ggn"):
        label_law(Problem.of(net, *data(5, (3,), 2, "mse"), lambda a, b: (a - b).abs().mean()))
