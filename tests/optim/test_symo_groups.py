"""SymO with groups of a person's choice, coarsened blocks, composite dimensions and axes that a tensor has twice."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

from symlab.cli import main
from symlab.models.preact_resnet18 import preact_resnet18
from symlab.optim import SymO
from symlab.optim.symo import symo
from symlab.symmetry import Composite, Group, WeightSymmetry
from tests import reference
from tests.cli_lab import close_handlers
from tests.optim.symo_problems import F64, flat, gradients, make, run


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False)).double()


def test_all_axes_free_by_choice_is_the_full_matrix():
    model = two_layers()
    inputs = torch.randn(5, 3, dtype=F64)
    optimizer = symo(model, inputs, lr=0.1, damping=1e-3, groups={"hidden": "trivial"})
    params = dict(model.named_parameters())
    grads = gradients(params, 12)
    theta = flat({n: p.detach() for n, p in params.items()})
    expected = reference.full_matrix_rms(theta, [flat(g) for g in grads], 0.1, 0.95, -0.5, eps=1e-3)
    np.testing.assert_allclose(run(params, optimizer, grads), expected, rtol=1e-8)
    assert [row.rule for row in optimizer.coverage()] == ["symmetry, blocks of [20]"] * 2


def test_rotated_inputs_by_choice_are_one_sided_shampoo():
    """The hidden axis free, the input axis under O(n): the other side of one-sided Shampoo."""
    model = two_layers()
    chosen = {"hidden": "trivial", "in:*": "orthogonal", "output": "orthogonal"}
    optimizer = symo(model, torch.randn(5, 3, dtype=F64), lr=0.1, beta=0.9, groups=chosen)
    params = dict(model.named_parameters())
    grads = gradients(params, 6)
    W = params["0.weight"].detach().numpy().T.copy()
    expected = reference.one_sided_shampoo(W, [g["0.weight"].numpy().T for g in grads], 0.1, 0.9)
    path = [theta[:12].reshape(4, 3).T for theta in run(params, optimizer, grads)]
    np.testing.assert_allclose(path, expected, rtol=1e-6)  # three rows: the first steps have rank 3 of 4


def test_mistakes_are_named():
    model, inputs = two_layers(), torch.randn(5, 3, dtype=F64)
    with pytest.raises(ValueError, match=r"residual names no axis .* roles are hidden, input, output, its labels 0\.w"):
        symo(model, inputs, lr=0.1, groups={"residual": "trivial"})
    with pytest.raises(ValueError, match="hidden: none is not a group; the groups are permutation"):
        symo(model, inputs, lr=0.1, groups={"hidden": "none"})


def test_coarsened_axes_are_logged_and_covered(caplog):
    with caplog.at_level(logging.INFO, "symlab"):
        optimizer = symo(two_layers(), torch.randn(5, 3, dtype=F64), lr=0.1, max_block=4)
    assert optimizer.coarsened() == ["in:0.weight:1"]
    assert "max_block=4, 1 free axes are treated as if under O(n): in:0.weight:1" in caplog.text
    assert optimizer.coverage()[0].rule == "symmetry, blocks of [1], coarsened along in:0.weight:1"
    assert optimizer.coverage()[1].rule == "symmetry, blocks of [2]"


def test_a_free_residual_stream_trains_a_residual_net():
    """The mixed net of both kinds of axes has blocks of bounded size, and the step goes downhill."""
    g = torch.Generator().manual_seed(0)
    model = preact_resnet18((1, 8, 8), 10, g, width=4)
    inputs, targets = torch.randn(32, 1, 8, 8, generator=g), torch.randint(10, (32,), generator=g)
    optimizer = symo(model, inputs[:4], lr=0.02, momentum=0.9, groups={"residual": "trivial"}, max_block=100)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    assert max(len(m) for m in optimizer.state[next(model.parameters())]["moments"]) <= 100
    assert optimizer.coarsened()


def retraced(symmetry, kinds, steps=25):
    """The path of SymO and that of the dense group average over `kinds`: axis -> "S" or "B" or "O", n <= 4."""
    params, optimizer = make(symmetry, beta=0.8)
    grads = gradients(params, steps)
    theta = flat({n: p.detach() for n, p in params.items()})
    path, expected, C = run(params, optimizer, grads), [], 0.0
    for t, g in enumerate(grads, start=1):
        C = 0.8 * C + 0.2 * kinds(flat(g))
        values, vectors = np.linalg.eigh(C / (1 - 0.8**t))
        kept = values > 1e-11 * values.max()
        theta = theta - 0.1 * vectors[:, kept] @ (values[kept] ** -0.5 * (vectors[:, kept].T @ flat(g)))
        expected.append(theta)
    return path, expected


def averaged(elements):
    """g -> mean over the group of (R g)(R g)^T, the R [P, P] given."""
    return lambda g: sum(np.outer(R @ g, R @ g) for R in elements) / len(elements)


def permutations(n):
    from itertools import permutations as all_of

    return [np.eye(n)[list(order)] for order in all_of(range(n))]


def block_diagonal(*matrices):
    total = sum(len(m) for m in matrices)
    result, start = np.zeros((total, total)), 0
    for m in matrices:
        result[start : start + len(m), start : start + len(m)] = m
        start += len(m)
    return result


def test_an_axis_that_a_tensor_has_twice():
    """A recurrent matrix W[h, h] beside an input matrix U[h, in]."""
    symmetry = WeightSymmetry({"W": ("h", "h"), "U": ("h", "in")}, {"W": (3, 3), "U": (3, 2)}, {"h": Group.PERMUTATION})
    elements = [block_diagonal(np.kron(P, P), np.kron(P, np.eye(2))) for P in permutations(3)]
    path, expected = retraced(symmetry, averaged(elements))
    np.testing.assert_allclose(path, expected, rtol=1e-6)


def test_composite_dimensions_with_a_tensor_outside_of_the_symmetry():
    """The rows of W are the axes a and b laid end to end; its columns the product of in and a."""
    rows, columns = Composite((("a",), ("b",))), Composite((("in", "a"),))
    axes, shapes = {"W": (rows, columns), "c": (rows,)}, {"W": (5, 6), "c": (5,)}
    groups = {"a": Group.PERMUTATION, "b": Group.PERMUTATION}
    symmetry = WeightSymmetry(axes, shapes, groups, {"a": 3, "b": 2, "in": 2})
    elements = []
    for P in permutations(3):
        for Q in permutations(2):
            R = block_diagonal(P, Q)
            elements.append(block_diagonal(np.kron(R, np.kron(np.eye(2), P)), R))
    path, expected = retraced(symmetry, averaged(elements), steps=60)
    np.testing.assert_allclose(path, expected, rtol=1e-5)
    params, _ = make(symmetry)
    params["outside"] = nn.Parameter(torch.ones(2, 2, dtype=F64))
    optimizer = SymO(params.items(), symmetry, lr=0.1)
    run(params, optimizer, gradients(params, 2))
    rules = {row.tensor: row.rule for row in optimizer.coverage()}
    assert rules["outside"] == "one scalar per tensor"
    assert rules["W"].startswith("symmetry, blocks of [")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{hidden: trivial}", 0),
        (r"{layers.0.weight\:0: trivial}", 0),
        ("{layers.?.weight*: trivial, hidden: permutation}", 0),
        ("{residual: trivial}", 2),
        ("{hidden: 3}", 2),
    ],
)
def test_on_the_command_line(value, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["data.num_train=20", "data.num_test=10", "data.input_size=5", "data.output_size=2", "epochs=1"]
    try:
        code = main(["train", f"optimizer.groups={value}", *small])
    finally:
        close_handlers()
    message = capsys.readouterr().err
    assert code == expected, message
    if value == "{hidden: 3}":
        assert "expected a mapping {name: text} or null" in message
    if value == "{residual: trivial}":
        assert "residual names no axis of this model: its roles are hidden, input, output" in message
