"""Averages over models, residuals by size of group, noise, folds, dense and structured; single models; memory."""

import math

import pytest
import torch

from symlab.curvature.estimate import QUANTITIES, RIGHT, DenseEstimate
from symlab.curvature.memory import activation_bytes, chunk_size, model_bytes, sums_bytes
from symlab.curvature.problem import Problem
from symlab.curvature.single_models import WHOLE, sample_blocks, single_model_quality
from symlab.curvature.structured_estimate import StructuredEstimate
from symlab.symmetry import Group, WeightSymmetry
from symlab.training.losses import half_mean_squared_error
from tests import reference
from tests.curvature.nets import chain, data, made

AXES, SHAPES = reference.mlp_axes((2, 3, 2), bias=True)
RIGHT_GROUPS = {"h1": Group.SIGNED_PERMUTATION}
SYMMETRY = WeightSymmetry(AXES, SHAPES, RIGHT_GROUPS)
WRONG = WeightSymmetry(AXES, SHAPES, {**RIGHT_GROUPS, "out": Group.PERMUTATION})
P = SYMMETRY.num_parameters
GRADIENTS = ("mean_gradient", "second_moment", "covariance")


def random_gradients(count, seed=0, shift=0.0):
    """Gaussian vectors with a covariance that commutes with the group, as tensors [S, *shape]."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(P, P, generator=generator, dtype=torch.float64)
    root = SYMMETRY.project_dense(mix @ mix.mT / P).power(0.5).dense()
    return SYMMETRY.unflatten(torch.randn(count, P, generator=generator, dtype=torch.float64) @ root + shift)


def random_matrices(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, P, P, generator=generator, dtype=torch.float64)


def samples_of(quantity, count, seed=0):
    return random_gradients(count, seed, 0.3) if quantity in GRADIENTS else random_matrices(count, seed)


def cut(samples, start, stop):
    return {n: x[start:stop] for n, x in samples.items()} if isinstance(samples, dict) else samples[start:stop]


def value_of(quantity, samples):
    """The average of these models, written out."""
    if quantity not in GRADIENTS:
        return (samples + samples.mT).mean(0) / 2
    g = torch.cat([samples[name].flatten(1) for name in AXES], 1)
    if quantity == "mean_gradient":
        return g.mean(0)
    return torch.cov(g.T) if quantity == "covariance" else g.T @ g / len(g)


def group_average(value, groups):
    """By the loop over all elements of the group."""
    letters = {"h1": "B", "out": "S"}
    chosen = {label: letters[label] for label in groups}
    if value.ndim == 1:
        return torch.from_numpy(reference.group_average_vector(value.numpy(), AXES, SHAPES, chosen))
    return torch.from_numpy(reference.group_average(value.numpy(), AXES, SHAPES, chosen))


@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("chunks", [[23], [1] * 23, [3, 11, 9]])
def test_values_and_residuals_do_not_depend_on_the_chunks(quantity, chunks):
    samples = samples_of(quantity, 23)
    estimate = DenseEstimate(SYMMETRY, quantity, base=3, ratio=2, structures={"wrong": WRONG}, folds=2)
    start = 0
    for size in chunks:
        estimate.update(cut(samples, start, start + size))
        start += size
    assert estimate.count == 23
    torch.testing.assert_close(estimate.matrix(), value_of(quantity, samples))
    for name, groups in ((RIGHT, ["h1"]), ("wrong", ["h1", "out"])):
        rows = [row for row in estimate.group_residuals() if row.structure == name]
        assert [(row.models, row.group) for row in rows] == [
            *((3, 0), (3, 1), (6, 0), (3, 2), (3, 3), (6, 1), (12, 0), (3, 4), (3, 5), (6, 2), (3, 6)),
        ]
        for row in rows:
            value = value_of(quantity, cut(samples, row.group * row.models, (row.group + 1) * row.models))
            outside = value - group_average(value, groups)
            assert row.residual == pytest.approx(float(outside.norm() / value.norm()), rel=1e-9, abs=1e-12)
    folds = [torch.tensor([i for i in range(21) if i // 3 % 2 == fold]) for fold in (0, 1)]
    parts = [samples[f] if isinstance(samples, torch.Tensor) else {n: x[f] for n, x in samples.items()} for f in folds]
    for found, part in zip(estimate.leave_one_out(), reversed(parts), strict=True):
        torch.testing.assert_close(found, value_of(quantity, part))


def test_the_right_structure_leaves_noise_and_a_wrong_one_levels_off():
    estimate = DenseEstimate(SYMMETRY, "covariance", base=50, ratio=4, structures={"wrong": WRONG})
    estimate.update(random_gradients(12800))
    rows = {(row.structure, row.models): row for row in estimate.residuals()}
    sizes = [50, 200, 800, 3200, 12800]
    assert [row.models for row in estimate.residuals()] == sizes * 2
    right = torch.tensor([rows[RIGHT, n].residual for n in sizes]).log()
    x = torch.tensor(sizes).double().log()
    slope = float(((x - x.mean()) * (right - right.mean())).sum() / (x - x.mean()).square().sum())
    assert -0.6 < slope < -0.4
    for n in sizes:
        row = rows[RIGHT, n]
        assert row.residual == pytest.approx(row.expected, rel=0.35 if row.groups == 1 else 0.15)
    wrong = rows["wrong", 12800]
    assert wrong.residual > 2.5 * wrong.expected  # the noise is known although the structure is wrong
    assert wrong.residual > 0.5 * rows["wrong", 3200].residual
    assert rows[RIGHT, 3200].groups == 4
    assert math.isnan(wrong.residual_std)


def test_noise_is_unbiased_for_a_structure_that_is_wrong():
    """The expected outside norm of the mean of N matrices about its own limit, over many repeats."""
    squares, predicted = [], []
    limit = random_matrices(1, seed=99)[0]
    for seed in range(30):
        matrices = random_matrices(60, seed) + limit
        matrices = (matrices + matrices.mT) / 2
        estimate = DenseEstimate(SYMMETRY, "hessian", base=3, ratio=2)
        estimate.update(matrices)
        deviation = estimate.matrix() - (limit + limit.mT) / 2
        squares.append(float((deviation - SYMMETRY.project_dense(deviation).dense()).norm()) ** 2)
        last = estimate.residuals()[-1]
        predicted.append((last.expected * float(estimate.matrix().norm())) ** 2)
    assert sum(predicted) == pytest.approx(sum(squares), rel=0.05)


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_a_restored_estimate_goes_on_as_if_nothing_had_been(quantity, tmp_path):
    samples = samples_of(quantity, 20)
    whole, first, second = (DenseEstimate(SYMMETRY, quantity, 3, 2, {"wrong": WRONG}) for _ in range(3))
    whole.update(samples)
    first.update(cut(samples, 0, 8))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    second.update(cut(samples, 8, 20))
    torch.testing.assert_close(second.matrix(), whole.matrix())
    assert [row.models for row in second.residuals()] == [row.models for row in whole.residuals()]
    for a, b in zip(second.residuals(), whole.residuals(), strict=True):
        assert a.residual == pytest.approx(b.residual, rel=1e-9)
        assert a.expected == pytest.approx(b.expected, rel=1e-9, nan_ok=True)


def test_dense_estimates_refuse():
    with pytest.raises(ValueError, match="quantity must be one of"):
        DenseEstimate(SYMMETRY, "curvature")
    with pytest.raises(ValueError, match="base must be at least 2"):
        DenseEstimate(SYMMETRY, "hessian", base=1)
    with pytest.raises(ValueError, match="ratio must be at least 2"):
        DenseEstimate(SYMMETRY, "hessian", ratio=1)
    with pytest.raises(ValueError, match="folds must be at least 1"):
        DenseEstimate(SYMMETRY, "hessian", folds=0)
    with pytest.raises(ValueError, match="another name"):
        DenseEstimate(SYMMETRY, "hessian", structures={RIGHT: WRONG})
    with pytest.raises(ValueError, match="estimated from gradients"):
        DenseEstimate(SYMMETRY, "covariance").update(random_matrices(2))
    with pytest.raises(ValueError, match=r"estimated from matrices \[S, 17, 17\]"):
        DenseEstimate(SYMMETRY, "hessian").update(random_gradients(2))
    bad = random_matrices(2)
    bad[1, 0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="NaN or inf"):
        DenseEstimate(SYMMETRY, "hessian").update(bad)


# --- structured ---


@pytest.mark.parametrize("quantity", ["second_moment", "covariance"])
@pytest.mark.parametrize("chunks", [[23], [1] * 23, [3, 11, 9]])
def test_blocks_are_those_of_the_dense_estimate(quantity, chunks):
    samples = random_gradients(23, shift=0.3)
    dense = DenseEstimate(SYMMETRY, quantity, 3, 2, folds=2)
    structured = StructuredEstimate(SYMMETRY, quantity, 3, folds=2)
    start = 0
    for size in chunks:
        structured.update(cut(samples, start, start + size))
        start += size
    dense.update(samples)
    assert structured.count == 23
    for a, b in zip(structured.blocks().matrices, dense.operator().matrices, strict=True):
        torch.testing.assert_close(a, b)
    for operator, matrix in zip(structured.leave_one_out(), dense.leave_one_out(), strict=True):
        torch.testing.assert_close(operator.dense(), SYMMETRY.project_dense(matrix).dense())


def test_probes_are_averaged_and_symmetrised():
    pairs = [(random_gradients(7, seed), random_gradients(7, seed + 10)) for seed in (1, 2)]
    estimate = StructuredEstimate(SYMMETRY, "hessian", 2)
    estimate.update_probes(pairs)
    mean = 0
    for u, v in pairs:
        product = SYMMETRY.flatten(u).mT @ SYMMETRY.flatten(v) / 7
        mean = mean + (product + product.mT) / 4
    for a, b in zip(estimate.blocks().matrices, SYMMETRY.project_dense(mean).matrices, strict=True):
        torch.testing.assert_close(a, b)


def test_the_mean_gradient_keeps_a_vector_alone():
    samples = random_gradients(9, shift=0.3)
    estimate = StructuredEstimate(SYMMETRY, "mean_gradient", 3)
    estimate.update(samples)
    for name, x in estimate.mean_vector().items():
        torch.testing.assert_close(x, samples[name].mean(0))
    with pytest.raises(ValueError, match="mean_vector"):
        estimate.blocks()
    with pytest.raises(ValueError, match="keeps no mean"):
        StructuredEstimate(SYMMETRY, "hessian").mean_vector()


@pytest.mark.parametrize("quantity", ["covariance", "ggn"])
def test_a_restored_structured_estimate_goes_on(quantity, tmp_path):
    samples = random_gradients(20)
    whole, first, second = (StructuredEstimate(SYMMETRY, quantity, 3) for _ in range(3))
    whole.update(samples)
    first.update(cut(samples, 0, 8))
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    second.update(cut(samples, 8, 20))
    for a, b in zip(second.blocks().matrices, whole.blocks().matrices, strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(second.leave_one_out(), whole.leave_one_out(), strict=True):
        torch.testing.assert_close(a.dense(), b.dense())


def test_structured_estimates_refuse():
    samples = random_gradients(2)
    with pytest.raises(ValueError, match="takes 1 probe"):
        StructuredEstimate(SYMMETRY, "covariance").update_probes([(samples, samples)] * 2)
    with pytest.raises(ValueError, match="same number of models"):
        StructuredEstimate(SYMMETRY, "hessian").update_probes([(samples, samples), (random_gradients(3),) * 2])
    samples["W1"][1, 0, 0] = float("inf")
    with pytest.raises(FloatingPointError, match="in W1"):
        StructuredEstimate(SYMMETRY, "covariance").update(samples)
    one = StructuredEstimate(SYMMETRY, "covariance")
    one.update(random_gradients(1))
    with pytest.raises(ValueError, match="at least 2 models"):
        one.blocks()


# --- single models ---


def test_single_models_against_the_ensemble():
    samples = random_gradients(5)
    singles = sample_blocks(SYMMETRY, samples)
    ensemble = SYMMETRY.project(samples).matrices
    rows = single_model_quality(SYMMETRY, singles, ensemble)
    for k, block in enumerate(SYMMETRY.blocks):
        for s in range(5):
            own = SYMMETRY.project({name: x[s] for name, x in samples.items()}).matrices[k]
            torch.testing.assert_close(singles[k][s], own)
        name = "{" + ", ".join(block.axes) + "}"
        own = {row.part: row for row in rows if row.block == name}
        correlations = [
            float(torch.corrcoef(torch.stack([singles[k][s].flatten(), ensemble[k].flatten()]))[0, 1]) for s in range(5)
        ]
        assert own[WHOLE].correlation == pytest.approx(sum(correlations) / 5)
        assert own[WHOLE].correlation_std == pytest.approx(float(torch.tensor(correlations).double().std()))
        assert own[WHOLE].norm == pytest.approx(float(ensemble[k].norm()))
        cosines = torch.nn.functional.cosine_similarity(singles[k].flatten(1), ensemble[k].flatten()[None])
        assert own[WHOLE].cosine == pytest.approx(float(cosines.mean()))
    hidden = {row.part: row for row in rows if row.block == "{h1}"}
    assert list(hidden) == [WHOLE, "W1 x W1", "W1 x b1", "W1 x W2", "b1 x b1", "b1 x W2", "W2 x W2"]
    block = next(k for k, block in enumerate(SYMMETRY.blocks) if block.axes == ("h1",))
    assert hidden["W1 x W2"].entries == 4
    assert hidden["W1 x W2"].norm == pytest.approx(float(ensemble[block][:2, 3:].norm()))
    assert hidden["W1 x W2"].single_norm == pytest.approx(
        float(singles[block][:, :2, 3:].flatten(1).norm(dim=1).mean())
    )
    assert math.isnan(hidden["b1 x b1"].correlation)  # one number has no correlation
    assert hidden["b1 x b1"].cosine == pytest.approx(1)


def test_two_vectors_are_symmetrised_per_sample():
    u, v = random_gradients(3, 1), random_gradients(3, 2)
    for s in range(3):
        product = torch.outer(SYMMETRY.flatten(u)[s], SYMMETRY.flatten(v)[s])
        right = SYMMETRY.project_dense((product + product.mT) / 2).matrices
        for found, matrix in zip(sample_blocks(SYMMETRY, u, v), right, strict=True):
            torch.testing.assert_close(found[s], matrix)


# --- memory ---


def problem_of(sizes=(2, 3, 2), n=100, **options):
    return Problem.of(made(chain(sizes)), *data(n, sizes[:1], sizes[-1], "mse"), half_mean_squared_error, **options)


def test_what_the_backward_pass_keeps():
    """tanh's outputs [n, 3], the differences [n, 2] once more in the square, the outputs [n, 2]: 8 bytes each."""
    assert activation_bytes(problem_of()) == pytest.approx(8 * 100 * (3 + 2 + 2), rel=0.3)
    assert activation_bytes(problem_of(n=200)) == 2 * activation_bytes(problem_of(n=100))
    assert activation_bytes(problem_of(n=200, row_batch=50)) == activation_bytes(problem_of(n=50))


def test_chunks_and_sums_keep_to_the_budget():
    problem = problem_of()
    for dense in (True, False):
        small = chunk_size(problem, SYMMETRY, ["covariance", "hessian"], dense, 0.001)
        each, sums = (
            model_bytes(problem, ["covariance", "hessian"], dense),
            sums_bytes(SYMMETRY, ["covariance", "hessian"], dense),
        )
        assert small == int((0.001 * 2**30 - sums) / each) >= 1
        assert chunk_size(problem, SYMMETRY, ["covariance", "hessian"], dense, 100.0) > small
    assert sums_bytes(SYMMETRY, ["hessian"], True, folds=10) == 8 * 20 * P**2
    assert sums_bytes(SYMMETRY, ["covariance"], True, folds=4) == 8 * 14 * (P**2 + P)
    entries = sum(block.copies**2 for block in SYMMETRY.blocks)
    assert sums_bytes(SYMMETRY, ["hessian"], False) == 8 * 15 * entries


def test_what_does_not_fit_is_refused_with_its_size():
    problem = problem_of()
    with pytest.raises(ValueError, match=r"17 x 17 matrices.*need 0.0908 MiB; dense=false .* needs 0.0"):
        chunk_size(problem, SYMMETRY, ["covariance", "hessian"], True, 1e-5)
    with pytest.raises(ValueError, match=r"one model needs .* smaller row_batch \(now 100 rows\)"):
        chunk_size(problem, SYMMETRY, ["covariance"], False, 2e-5)
    with pytest.raises(ValueError, match="memory_gib must be positive"):
        chunk_size(problem, SYMMETRY, ["covariance"], True, 0.0)
    with pytest.raises(ValueError, match="quantity must be one of"):
        chunk_size(problem, SYMMETRY, ["curvature"], True, 1.0)
