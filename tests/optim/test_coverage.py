"""The table of which rule covers which tensor."""

import torch
from torch import nn

from symlab.optim.coverage import Coverage, ReportsCoverage, coverage_table
from symlab.optim.gd import gd
from symlab.optim.muon import muon
from symlab.optim.symo import symo


class Tied(nn.Module):
    """One matrix under two names, a frozen vector, an empty one and a scalar."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.empty = nn.Parameter(torch.ones(0, 4))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * self.second(torch.tanh(self.first(x))) + self.frozen


def test_an_optimizer_with_one_rule_is_its_class():
    model = Tied()
    optimizer = gd(model, torch.zeros(2, 3), lr=0.1)
    assert not isinstance(optimizer, ReportsCoverage)
    assert coverage_table(model, optimizer) == [
        Coverage("frozen", "frozen", 3),
        Coverage("empty", "SGD", 0),
        Coverage("scale", "SGD", 1),
        Coverage("first.weight", "SGD", 9),
    ]


def test_an_optimizer_with_several_rules_is_asked():
    model = Tied()
    rules = {
        row.tensor: row.rule for row in coverage_table(model, muon(model, torch.zeros(2, 3), lr=0.1, adamw_lr=0.1))
    }
    assert rules == {"frozen": "frozen", "empty": "empty, left alone", "scale": "adamw", "first.weight": "muon"}
    del model.empty  # SymO's trace of the model takes no empty tensor
    found = {row.tensor: row.rule for row in coverage_table(model, symo(model, torch.zeros(2, 3), lr=0.1))}
    assert found["frozen"] == "frozen"
    assert found["first.weight"].startswith("symmetry, blocks of")


def test_a_tensor_that_the_optimizer_was_not_given():
    model = nn.Linear(3, 2)
    table = coverage_table(model, torch.optim.SGD([model.bias], lr=0.1))
    assert table == [Coverage("weight", "not in the optimizer", 6), Coverage("bias", "SGD", 2)]
