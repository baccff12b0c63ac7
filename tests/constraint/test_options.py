"""Constraints as options of the command line, and every optimizer on constrained weights."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from symlab.cli.listing import config_dir
from symlab.constraint.constrain import constrained
from symlab.constraint.options.elementwise import elementwise
from symlab.constraint.options.equal_neurons import equal_neurons
from symlab.constraint.options.groups import groups
from symlab.constraint.options.low_rank import low_rank
from symlab.training.losses import auto
from symlab.training.update import update
from tests.optim.test_every_optimizer import LAYERS_ONLY, NAMES, build

OPTIONS = {"elementwise": elementwise, "groups": groups, "low_rank": low_rank, "equal_neurons": equal_neurons}


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return model, torch.randn(20, 6, dtype=torch.float64), torch.arange(20) % 3


def under(name: str, **keys: Any) -> nn.Module:
    model, inputs, _ = problem()
    return OPTIONS[name](model, inputs, torch.Generator(), **keys)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_constrains_what_where_names_and_has_its_yaml(name: str) -> None:
    plain, inputs, _ = problem()
    model = under(name, where=["2.*ght"])
    assert [each.name for each in constrained(model)] == ["2.weight"]
    assert torch.allclose(model(inputs), plain(inputs), atol=1e-13)
    assert [each.name for each in constrained(under(name))] == ["0.weight", "2.weight"]
    u, w = next(constrained(under(name, balanced=True))).parts[:2]
    assert float(u.detach().norm()) == pytest.approx(float(w.detach().norm()))
    file = Path(config_dir()) / "constraint" / f"{name}.yaml"
    keys = yaml.safe_load(file.read_text("utf-8"))
    assert keys.pop("_target_") == f"symlab.constraint.options.{name}.{name}"
    as_typed = OPTIONS[name](problem()[0], inputs, torch.Generator(), **keys)
    default = under(name)
    for one, other in zip(as_typed.parameters(), default.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_own_keys_of_options() -> None:
    assert next(constrained(under("groups", axes=[1]))).parts[1].shape == (1, 6)
    assert next(constrained(under("low_rank", rank=2))).parts[0].shape == (5, 2)
    assert next(constrained(under("equal_neurons", whole=True))).parts[1].shape == (5, 1)
    with pytest.raises(ValueError, match="rank 4 is above 3"):
        under("low_rank", rank=4)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LAYERS_ONLY])
def test_every_optimizer_trains_the_factors(name: str) -> None:
    model, inputs, targets = problem()
    for module in (model[0], model[2]):  # away from w = 1, where some factors have no gradient of their own
        nn.init.normal_(module.bias, std=0.1)
    elementwise(model, inputs, torch.Generator(), balanced=True)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = build(name, model, inputs)
    losses = [update(model, optimizer, auto, inputs, targets, step) for step in range(12)]
    for p, old in zip(model.parameters(), before, strict=True):
        assert p.isfinite().all()
        assert not torch.equal(p, old)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", sorted(LAYERS_ONLY))
def test_an_optimizer_of_layers_alone_says_which_weight_it_cannot_take(name: str) -> None:
    with pytest.raises(ValueError, match="linear and convolution layers only, not 0"):
        build(name, under("elementwise"), problem()[1])


def test_a_where_that_matches_nothing_names_what_is_near() -> None:
    with pytest.raises(ValueError, match=r"name like .layer\.weight.; near it: .*weight"):
        partial(elementwise, where=["layer.weight"])(*problem()[:2], torch.Generator())
