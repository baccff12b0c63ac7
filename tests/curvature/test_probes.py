"""Outer products of probes average to the matrices: over all signs of a tiny problem, and over many draws."""

import itertools

import pytest
import torch

from symlab.curvature import probes
from symlab.curvature.ensemble import draw
from symlab.curvature.probes import empirical_fisher_probes, fisher_probes, ggn_probes, hessian_probes
from symlab.curvature.problem import Problem
from symlab.curvature.second_order import empirical_fishers, fishers, ggns, hessians
from symlab.training.losses import cross_entropy, half_mean_squared_error
from tests.curvature.nets import chain, convolutional, data, made

LOSSES = {"mse": half_mean_squared_error, "nll": cross_entropy}


def tiny(kind, row_batch=None):
    build = chain((1, 1, 2), bias=False)
    problem = Problem.of(made(build), *data(3, (1,), 2, kind), LOSSES[kind], row_batch=row_batch)
    return problem, draw(build, problem, 0, 0, 1)


def over_all_signs(monkeypatch, problem, parameters, of, count):
    """The mean of u v^T over all 2^count signs, one model per choice."""
    choices = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=count)), dtype=torch.float64)
    many = {name: x.expand(len(choices), *x.shape[1:]) for name, x in parameters.items()}
    start = 0

    def signs(shape, generator, dtype):
        nonlocal start
        width = torch.Size(shape[1:]).numel()
        start += width
        return choices[:, start - width : start].reshape(shape)

    monkeypatch.setattr(probes, "signs", signs)
    u, v = of(problem, many, torch.Generator())
    assert start == count
    return problem.flatten(u).mT @ problem.flatten(v) / len(choices)


@pytest.mark.parametrize("kind", ["mse", "nll"])
@pytest.mark.parametrize("row_batch", [None, 2])
@pytest.mark.parametrize(
    ("of", "exact", "count"),
    [(hessian_probes, hessians, 3), (ggn_probes, ggns, 6), (empirical_fisher_probes, empirical_fishers, 3)],
)
def test_unbiased_over_all_signs(monkeypatch, of, exact, count, kind, row_batch):
    problem, parameters = tiny(kind, row_batch)
    mean = over_all_signs(monkeypatch, problem, parameters, of, count)
    torch.testing.assert_close(mean, exact(problem, parameters)[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["mse", "nll"])
def test_fisher_probes_over_many_draws(kind):
    problem, parameters = tiny(kind)
    many = {name: x.expand(20000, *x.shape[1:]) for name, x in parameters.items()}
    u, v = fisher_probes(problem, many, torch.Generator().manual_seed(0))
    assert u is v
    right = fishers(problem, parameters)[0]
    vectors = problem.flatten(u)
    mean = vectors.mT @ vectors / len(vectors)
    assert float((mean - right).norm() / right.norm()) < 0.03


def test_one_model_and_many_and_convolutions():
    build = convolutional()
    problem = Problem.of(made(build), *data(4, (2, 4), 2, "nll"), cross_entropy)
    parameters = draw(build, problem, 0, 0, 1)
    many = {name: x.expand(4000, *x.shape[1:]) for name, x in parameters.items()}
    for of, exact in ((hessian_probes, hessians), (ggn_probes, ggns), (empirical_fisher_probes, empirical_fishers)):
        u, v = of(problem, many, torch.Generator().manual_seed(0))
        right = exact(problem, parameters)[0]
        mean = problem.flatten(u).mT @ problem.flatten(v) / 4000
        assert float((mean - right).norm() / right.norm()) < 0.15
        single, _ = of(problem, parameters, torch.Generator().manual_seed(0))
        assert {name: x.shape for name, x in single.items()} == {name: x.shape for name, x in parameters.items()}


def test_a_loss_that_is_not_convex_has_no_ggn_probes():
    build = chain((1, 1, 2))
    problem = Problem.of(made(build), *data(3, (1,), 2, "mse"), lambda f, y: torch.sin(f - y).sum() / len(f))
    with pytest.raises(ValueError, match="not convex"):
        ggn_probes(problem, draw(build, problem, 0, 0, 2), torch.Generator())
