"""Drawing and training many models."""

import pytest
import torch
from torch import nn

from symlab.curvature.ensemble import descend, draw, mixed_seed
from symlab.curvature.problem import Problem
from symlab.training.losses import half_mean_squared_error
from tests.curvature.nets import chain, convolutional, data, made


def problem_of(build, shape=(3,), **options):
    return Problem.of(made(build), *data(5, shape, 2, "mse"), half_mean_squared_error, **options)


def test_a_model_depends_on_its_number_alone():
    build = chain((3, 4, 2))
    problem = problem_of(build)
    whole = draw(build, problem, 7, 0, 10)
    parts = [draw(build, problem, 7, first, count) for first, count in ((0, 3), (3, 1), (4, 6))]
    for name, x in whole.items():
        assert torch.equal(torch.cat([part[name] for part in parts]), x)
        assert len(torch.unique(x.flatten(1), dim=0)) == 10
    right = build(torch.Generator().manual_seed(mixed_seed(7, 4)))
    assert torch.equal(whole["layers.0.weight"][4], right.layers[0].weight.double())
    assert not torch.equal(draw(build, problem, 8, 0, 10)["layers.0.weight"], whole["layers.0.weight"])


def test_mixed_seeds_differ_and_fit():
    seeds = [mixed_seed(seed, i) for seed in range(30) for i in range(300)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    bits = torch.tensor(seeds)[:, None] >> torch.arange(63) & 1
    assert float((bits.double().mean(0) - 0.5).abs().max()) < 0.03


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("row_batch", [None, 2])
def test_descend_is_sgd_on_the_whole_data(models, row_batch):
    build = chain((3, 4, 2))
    problem = problem_of(build, row_batch=row_batch)
    start = draw(build, problem, 0, 0, models)
    kept = {name: x.clone() for name, x in start.items()}
    end = descend(problem, start, 4, 0.3)
    assert all(torch.equal(start[name], x) for name, x in kept.items())
    for s in range(models):
        net = made(build).double()
        net.load_state_dict({name: x[s] for name, x in start.items()})
        optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
        for _ in range(4):
            optimizer.zero_grad()
            half_mean_squared_error(net(problem.inputs), problem.targets).backward()
            optimizer.step()
        for name, p in net.named_parameters():
            torch.testing.assert_close(end[name][s], p.detach(), rtol=1e-10, atol=1e-12)


def test_no_step_changes_nothing():
    build = chain((3, 4, 2))
    problem = problem_of(build)
    start = draw(build, problem, 0, 0, 2)
    assert all(torch.equal(descend(problem, start, 0, 0.1)[name], x) for name, x in start.items())
    with pytest.raises(ValueError, match="steps must be at least 0"):
        descend(problem, start, -1, 0.1)
    with pytest.raises(ValueError, match="lr must be positive"):
        descend(problem, start, 1, 0.0)


def test_models_that_do_not_fit_the_template():
    problem = problem_of(chain((3, 4, 2)))
    with pytest.raises(ValueError, match=r"model 5 must have the parameter layers.0.weight \[4, 3\]"):
        draw(chain((3, 5, 2)), problem, 0, 5, 1)
    with pytest.raises(ValueError, match=r"found none"):
        draw(convolutional(), problem, 0, 0, 1)


def test_frozen_parameters_and_buffers_must_be_those_of_the_template():
    def frozen(generator):
        net = chain((3, 4, 2))(generator)
        net.layers[0].weight.requires_grad_(False)
        return net

    with pytest.raises(ValueError, match=r"layers\.0\.weight is frozen \(or a buffer\) but differs"):
        draw(frozen, problem_of(frozen), 0, 0, 1)

    def constant(generator):
        net = frozen(generator)
        nn.init.ones_(net.layers[0].weight)
        return net

    assert "layers.0.weight" not in draw(constant, problem_of(constant), 0, 0, 2)

    def noisy(generator):
        net = convolutional()(generator)
        net.norm.running_mean.normal_(generator=generator)
        return net

    with pytest.raises(ValueError, match=r"norm\.running_mean is frozen"):
        draw(noisy, problem_of(noisy, (2, 4)), 0, 0, 1)
