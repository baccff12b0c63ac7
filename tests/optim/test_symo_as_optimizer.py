"""SymO is a torch optimizer in every respect: state, copies, groups, schedulers, kinds of parameters, bad values."""

import copy
import io
import itertools
import math
import pickle

import pytest
import torch
from torch import nn

from symlab.optim import SymO
from symlab.symmetry import Group, WeightSymmetry
from tests import reference
from tests.optim.symo_problems import F64, gradients, make, run, two_layer


def test_descends_through_a_model_closure_and_scheduler():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Tanh(), nn.Linear(3, 2, bias=False))
    axes, shapes = reference.mlp_axes((4, 3, 2), False)
    names = {"W1": "0.weight", "W2": "2.weight"}
    symmetry = WeightSymmetry(
        {names[n]: a for n, a in axes.items()},
        {names[n]: s for n, s in shapes.items()},
        {"h1": Group.SIGNED_PERMUTATION},
    )
    optimizer = SymO(model.named_parameters(), symmetry, lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    x, y = torch.randn(20, 4), torch.randn(20, 2)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    losses = []
    for _ in range(40):
        losses.append(optimizer.step(closure).item())
        scheduler.step()
    assert losses[-1] < 0.75 * losses[0]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.95**40)


def resumed(optimizer, params, symmetry, **options):
    """A new optimizer on copies of the parameters, its state through torch.save and the default, safe loader."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    twins = {n: nn.Parameter(p.detach().clone()) for n, p in params.items()}
    fresh = SymO(twins.items(), symmetry, **{"lr": 0.5, **options})
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return twins, fresh


@pytest.mark.parametrize("dtype", [torch.float32, F64, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"update_every": 3}, {"max_block": 2}])
def test_resumes_bit_for_bit(dtype, options):
    symmetry = two_layer(bias=True, group=Group.PERMUTATION)
    params, optimizer = make(symmetry, dtype=dtype, **options)
    grads = gradients(params, 11)
    run(params, optimizer, grads[:5])  # with update_every=3, in the middle of an interval
    twins, fresh = resumed(optimizer, params, symmetry, max_block=options.get("max_block", 99))
    saved, loaded = optimizer.state_dict()["state"], fresh.state_dict()["state"]
    for a, b in zip(tensors_of(saved), tensors_of(loaded), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert fresh.param_groups[0]["lr"] == 0.1
    torch.testing.assert_close(run(params, optimizer, grads[5:]), run(twins, fresh, grads[5:]), rtol=0, atol=0)
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(tensors_of(saved), tensors_of(loaded), strict=True))


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return list(itertools.chain.from_iterable(map(tensors_of, items)))


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_go_their_own_way(copier):
    params, optimizer = make(two_layer(), momentum=0.5)
    grads = gradients(params, 8)
    run(params, optimizer, grads[:4])
    twins, twin = copier((params, optimizer))
    torch.testing.assert_close(run(params, optimizer, grads[4:]), run(twins, twin, grads[4:]), rtol=0, atol=0)
    assert twin.param_groups[0]["params"][0] is twins["W1"]


def test_state_of_another_model_is_refused_and_changes_nothing():
    params, optimizer = make(two_layer())
    run(params, optimizer, gradients(params, 2))
    axes, shapes = reference.mlp_axes((6, 3, 2), False)
    _, other = make(WeightSymmetry(axes, shapes, {"h1": Group.SIGNED_PERMUTATION}))
    before = other.state_dict()
    with pytest.raises(ValueError, match=r"saved block 0 is 6 x dimension 3 .*, this optimizer's is 8 x dimension 3"):
        other.load_state_dict(optimizer.state_dict())
    assert other.state_dict() == before
    with pytest.raises(ValueError, match="different number of parameter groups"):
        other.load_state_dict({"state": {}, "param_groups": []})


def square(label, sizes=(5, 4), group=Group.PERMUTATION):
    """One tensor with both axes under a group: blocks of one copy each, whatever the sizes."""
    return WeightSymmetry({label: ("r", "c")}, {label: sizes}, dict.fromkeys("rc", group))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (square("W", (6, 4)), r"saved block \d is 1 x dimension 4 .*, this optimizer's is 1 x dimension 5"),
        (square("W", (5, 4), Group.ORTHOGONAL), "the saved state has 4 blocks, this optimizer 1"),
    ],
)
def test_state_of_another_width_with_as_many_copies_is_refused(other, message):
    params, optimizer = make(square("W"))
    run(params, optimizer, gradients(params, 2))
    _, twin = make(other)
    with pytest.raises(ValueError, match=message):
        twin.load_state_dict(optimizer.state_dict())


def test_momentum_of_another_shape_is_refused():
    params, optimizer = make(square("W", (5, 4), Group.ORTHOGONAL), momentum=0.9)
    run(params, optimizer, gradients(params, 1))
    _, twin = make(square("W", (4, 5), Group.ORTHOGONAL), momentum=0.9)  # the same blocks: 1 x dimension 20
    with pytest.raises(ValueError, match=r"saved momentum of W is \[5, 4\], the parameter is \[4, 5\]"):
        twin.load_state_dict(optimizer.state_dict())


def test_statistics_without_their_blocks_are_refused():
    params, optimizer = make(two_layer())
    run(params, optimizer, gradients(params, 1))
    state = optimizer.state_dict()
    del state["state"][0]["blocks"]
    with pytest.raises(ValueError, match="the saved state has no blocks"):
        make(two_layer())[1].load_state_dict(state)


def test_a_state_saved_where_the_schedule_is_at_zero_loads():
    params, optimizer = make(two_layer())
    run(params, optimizer, gradients(params, 2))
    optimizer.param_groups[0]["lr"] = 0.0
    _, other = make(two_layer())
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == 0


def test_statistics_of_another_precision_are_refused():
    params, optimizer = make(two_layer(), statistics_dtype=torch.float32)
    run(params, optimizer, gradients(params, 1))
    _, fresh = make(two_layer())
    with pytest.raises(ValueError, match=r"saved statistics are torch.float32, this optimizer's are torch.float64"):
        fresh.load_state_dict(optimizer.state_dict())


def test_the_state_of_another_optimizer_is_refused():
    params, optimizer = make(two_layer())
    adam = torch.optim.Adam(params.items())
    with pytest.raises(ValueError, match="the saved state has no beta: it is that of another optimizer"):
        optimizer.load_state_dict(adam.state_dict())


def test_groups_have_their_own_settings_and_statistics():
    symmetry = two_layer(bias=True)
    params, _ = make(symmetry)
    named = list(params.items())
    optimizer = SymO([{"params": named[:2], "lr": 0.3}], symmetry, lr=0.1)
    optimizer.add_param_group({"params": named[2:], "beta": 0.5, "max_block": 1})
    alone = {n: nn.Parameter(p.detach().clone()) for n, p in named}
    first = SymO(list(alone.items())[:2], symmetry, lr=0.3)
    second = SymO(list(alone.items())[2:], symmetry, lr=0.1, beta=0.5, max_block=1)
    grads = gradients(params, 4)
    path = run(params, optimizer, grads)
    for step, expected in zip(grads, path, strict=True):
        for n, p in alone.items():
            p.grad = step[n]
        first.step()
        second.step()
        torch.testing.assert_close(torch.cat([p.detach().flatten() for p in alone.values()]), expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match="beta must lie in"):
        optimizer.add_param_group({"params": [("new", nn.Parameter(torch.zeros(2)))], "beta": 2.0})
    assert len(optimizer.param_groups) == 2
    run(params, optimizer, grads)


def test_missing_gradients_and_frozen_parameters():
    symmetry = two_layer(bias=True)
    params, optimizer = make(symmetry, weight_decay=0.1, momentum=0.9)
    frozen = params["b2"].requires_grad_(False).detach().clone()
    optimizer.step()
    assert optimizer.state_dict()["state"] == {}  # nothing has a gradient: nothing happens
    grads = [{**g, "b2": None} for g in gradients(params, 5)]
    grads[2]["W1"] = None
    path = run(params, optimizer, grads)
    assert bool((params["b2"] == frozen).all())
    assert bool((path[2][:12] == path[1][:12]).all())  # W1 untouched at that step, not even decayed
    assert not bool((path[3][:12] == path[2][:12]).any())
    # a parameter that never has a gradient does not change the others' updates
    rest = symmetry.restrict(["W1", "b1", "W2"])
    twins, alone = make(rest, weight_decay=0.1, momentum=0.9)
    for n, p in make(symmetry)[0].items():
        if n in twins:
            twins[n].data = p.data.clone()
    expected = run(twins, alone, [{n: g[n] for n in twins} for g in grads])
    torch.testing.assert_close([theta[: len(expected[0])] for theta in path], expected, rtol=1e-10, atol=1e-12)


def test_scalar_empty_conv_and_unknown_parameters():
    symmetry = two_layer()
    params, _ = make(symmetry)
    extra = {"scale": (), "empty": (0, 3), "conv": (2, 3, 1, 1)}
    params.update({n: nn.Parameter(torch.ones(s, dtype=F64)) for n, s in extra.items()})
    optimizer = SymO(params.items(), symmetry, lr=0.1)
    before = torch.cat([p.detach().flatten() for p in params.values()]).clone()
    path = run(params, optimizer, gradients(params, 3))
    assert bool((path[0] != before).all())
    assert float(params["scale"].detach()) != 1
    coverage = {row.tensor: (row.rule, row.weights) for row in optimizer.coverage()}
    assert coverage == {
        "W1": ("symmetry, blocks of [6]", 12),
        "W2": ("symmetry, blocks of [6]", 6),
        "scale": ("one scalar per tensor", 1),
        "empty": ("empty, left alone", 0),
        "conv": ("one scalar per tensor", 6),
    }


def test_parameters_that_start_or_end_as_other_dtypes():
    symmetry = two_layer()
    params = {"W1": nn.Parameter(torch.ones(3, 4, dtype=torch.bfloat16)), "W2": nn.Parameter(torch.ones(2, 3))}
    optimizer = SymO(params.items(), symmetry, lr=0.1, momentum=0.9)
    run(params, optimizer, gradients(params, 3))
    assert params["W1"].dtype is torch.bfloat16
    assert optimizer.state[params["W1"]]["momentum_buffer"].dtype is torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"lr": lr}, f"lr must be positive and finite, got {lr}") for lr in (0, -1, math.nan, math.inf, True)),
        ({"momentum": False}, r"momentum must lie in \[0, 1\), got False"),
        ({"max_block": True}, "max_block must be a whole number of at least 1, got True"),
        ({"beta": 1.0}, r"beta must lie in \[0, 1\), got 1.0"),
        ({"beta": math.nan}, r"beta must lie in \[0, 1\), got nan"),
        ({"momentum": -0.1}, r"momentum must lie in \[0, 1\), got -0.1"),
        ({"damping": -1}, r"damping must lie in \[0, inf\), got -1"),
        ({"exponent": 0.5}, r"exponent must lie in \[-1, 0\], got 0.5"),
        ({"weight_decay": math.inf}, r"weight_decay must lie in \[0, inf\), got inf"),
        ({"update_every": 0}, "update_every must be a whole number of at least 1, got 0"),
        ({"max_block": 2.5}, "max_block must be a whole number of at least 1, got 2.5"),
        ({"statistics_dtype": torch.bfloat16}, "statistics_dtype must be torch.float32 or torch.float64"),
    ],
)
def test_values_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        make(two_layer(), **options)


def test_wrong_parameters():
    symmetry = two_layer()
    params, optimizer = make(symmetry)
    with pytest.raises(ValueError, match="SymO needs names"):
        SymO(params.values(), symmetry, lr=0.1)
    with pytest.raises(ValueError, match=r"W1 is \[5\], but \[3, 4\] in the symmetry"):
        SymO([("W1", nn.Parameter(torch.zeros(5)))], symmetry, lr=0.1)
    with pytest.raises(ValueError, match="c is complex"):
        SymO([("c", nn.Parameter(torch.zeros(5, dtype=torch.complex64)))], symmetry, lr=0.1)
    optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match="lr must be positive and finite, got -1"):
        run(params, optimizer, gradients(params, 1))
