"""Evaluation does not depend on the batch size and leaves the model as it was."""

import pytest
import torch
from torch import nn

from symlab.training.evaluate import evaluate
from symlab.training.losses import auto, cross_entropy, half_mean_squared_error
from tests.training.problems import classification, small_net


def net(classes, **options):
    return small_net((4,), classes, torch.Generator().manual_seed(0), **options).double()


@pytest.mark.parametrize("batch_size", [1, 3, 4, 10, 1000])
def test_every_batch_size_gives_the_mean_over_rows(batch_size):
    inputs = torch.randn(10, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.arange(10) % 3
    model = net(3, batch_norm=True)
    model.train()
    model(inputs)  # moves the running statistics away from their start
    found = evaluate(model, inputs, labels, cross_entropy, batch_size=batch_size)
    model.eval()
    scores = model(inputs).detach().log_softmax(1)
    expected = -sum(float(scores[i, label]) for i, label in enumerate(labels)) / 10
    assert found.loss == pytest.approx(expected, rel=1e-13)
    assert found.accuracy == sum(int(scores[i].argmax() == label) for i, label in enumerate(labels)) / 10


def test_regression_has_no_accuracy():
    inputs, targets = torch.zeros(5, 4, dtype=torch.float64), torch.ones(5, 3, dtype=torch.float64)
    assert evaluate(net(3), inputs, targets, half_mean_squared_error, batch_size=2).accuracy is None


def test_each_module_is_back_in_its_own_mode_and_no_statistic_moved():
    data = classification()
    model = net(3, batch_norm=True, dropout=0.5)
    model.train()
    model[1].eval()  # a norm that the user froze
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    once = evaluate(model, data.test_inputs, data.test_targets, auto, batch_size=3)
    again = evaluate(model, data.test_inputs, data.test_targets, auto, batch_size=3)
    assert once == again  # no dropout
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_mode_is_restored_after_an_error():
    class Broken(nn.Module):
        def forward(self, inputs):
            raise RuntimeError("broken")

    model = Broken().train()
    with pytest.raises(RuntimeError, match="broken"):
        evaluate(model, torch.zeros(2, 1), torch.zeros(2, 1), auto, batch_size=1)
    assert model.training


def test_stop_between_batches():
    asked = []

    def stop():
        asked.append(True)
        return len(asked) > 2

    data = classification()
    assert evaluate(net(3), data.test_inputs, data.test_targets, auto, batch_size=1, stop=stop) is None
    assert len(asked) == 3
