"""Measures against their definitions in numpy and scipy, batched, in half precision, and at their corners."""

import numpy
import pytest
import torch
from scipy.cluster import hierarchy

from symlab.constraint import measures
from tests import reference_measures as reference

NAN = float("nan")


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clustered(seed: int = 0, noise: float = 0.02) -> torch.Tensor:
    """[10, 6]: three directions with 4, 3 and 2 neurons of different lengths, shuffled, and one neuron of zeros."""
    directions = rows(3, 6, seed=seed)[torch.tensor([0, 1, 2, 0, 1, 0, 2, 1, 0])]
    lengths = torch.linspace(0.3, 3, 9, dtype=torch.float64)[:, None]
    return torch.cat([lengths * (directions + noise * rows(9, 6, seed=seed + 1)), torch.zeros(1, 6)])


def test_zero_fraction_counts_exact_and_small_entries() -> None:
    x = torch.tensor([[0.0, -0.0, 1e-7], [1.0, -2.0, 3.0]])
    assert measures.zero_fraction(x) == pytest.approx(2 / 6)
    assert measures.zero_fraction(x, 1e-6) == 0.5
    assert measures.zero_fraction(x, batch_dims=1).tolist() == pytest.approx([2 / 3, 0])
    assert measures.zero_fraction(x.bfloat16(), 1e-6) == measures.zero_fraction(x.half(), 1e-6) == 0.5


def test_ranks_against_numpy() -> None:
    matrix = rows(2, 7, 3) @ rows(2, 3, 5, seed=1)  # rank 3
    matrix[1] *= 1e-30
    values = numpy.linalg.svd(matrix.numpy(), compute_uv=False)
    assert measures.numerical_rank(matrix, 1e-9).tolist() == [3, 3]
    cut = float((values[0, 1] + values[0, 2]) / 2 / values[0, 0])
    assert measures.numerical_rank(matrix, cut)[0] == 2
    expected = (values**2).sum(1) / values[:, 0] ** 2
    assert measures.stable_rank(matrix).numpy() == pytest.approx(expected, rel=1e-12)
    assert measures.stable_rank(1e-170 * matrix)[0] == pytest.approx(expected[0])  # squares would underflow


@pytest.mark.parametrize("shape", [(40, 5), (5, 40)])
def test_effective_dimension_against_numpy(shape: tuple[int, int]) -> None:
    features = rows(*shape) * torch.linspace(0.1, 2, shape[1], dtype=torch.float64) + 3
    assert measures.effective_dimension(features) == pytest.approx(reference.participation(features.numpy()))
    eigenvalues = numpy.linalg.eigvalsh(features.numpy().T @ features.numpy())
    raw = measures.effective_dimension(torch.stack([features, 1e-200 * features]), centre=False)
    assert raw.numpy() == pytest.approx([eigenvalues.sum() ** 2 / (eigenvalues**2).sum()] * 2)
    assert measures.effective_dimension(torch.full(shape, 0.3)) == 0  # equal rows
    assert measures.effective_dimension(torch.eye(6), centre=False) == pytest.approx(6)


def test_correlation_against_loops_and_numpy() -> None:
    x = clustered()
    assert measures.neuron_correlation(x).numpy() == pytest.approx(reference.correlation(x.numpy()), abs=1e-12)
    own = measures.neuron_correlation(x[:9], centre=True)
    assert own.numpy() == pytest.approx(numpy.corrcoef(x[:9].numpy()), abs=1e-12)
    assert torch.equal(measures.neuron_correlation(torch.full((2, 3), 0.1), centre=True), torch.zeros(2, 2))


@pytest.mark.parametrize("threshold", [0.3, 0.8, 0.95, 0.9999])
def test_distinct_neurons_against_flooding(threshold: float) -> None:
    x = torch.stack([clustered(seed, noise) for seed, noise in enumerate((0.02, 0.3, 2.0))])
    expected = [reference.groups(item, threshold) for item in x.numpy()]
    assert measures.distinct_neurons(x, threshold).tolist() == expected
    assert measures.zero_neurons(x).tolist() == [1, 1, 1]


def test_a_chain_of_neurons_is_one_group() -> None:
    """Single linkage: each neuron is close to the next only, in an order that has to be followed to the end."""
    angles = torch.arange(40, dtype=torch.float64)[torch.randperm(40, generator=torch.Generator().manual_seed(0))] * 0.1
    circle = torch.stack([angles.cos(), angles.sin()], 1)
    assert measures.distinct_neurons(circle, 0.99) == 1
    assert measures.distinct_neurons(circle, 0.996) == 40


def test_signs_matter_unless_units_are_odd() -> None:
    x = torch.cat([rows(3, 5), -2 * rows(3, 5)])
    assert measures.distinct_neurons(x) == 6
    assert measures.distinct_neurons(x, signless=True) == 3


@pytest.mark.parametrize("seed", range(4))
def test_cluster_order_keeps_scipys_average_linkage_together(seed: int) -> None:
    """Every cluster of the tree that scipy builds is a run of neighbours in the order."""
    x = rows(12, 4, seed=seed)
    order = measures.cluster_order(x).tolist()
    assert sorted(order) == list(range(12))
    distances = 1 - reference.correlation(x.numpy())[numpy.triu_indices(12, 1)]
    tree = hierarchy.linkage(distances, method="average")
    for clusters in range(2, 12):
        labels = hierarchy.fcluster(tree, clusters, criterion="maxclust")[order]
        assert numpy.count_nonzero(numpy.diff(labels)) == len(set(labels)) - 1


def test_cluster_order_makes_blocks_with_dead_neurons_last() -> None:
    x = clustered()
    order = measures.cluster_order(x)
    assert order[-1] == 9
    matrix = measures.neuron_correlation(x)[order][:, order] > 0.9
    assert measures.distinct_neurons(x, 0.9) == 3
    assert (matrix[:8, 1:9].diagonal() == 0).sum() == 2  # two steps between three blocks


def test_dead_units() -> None:
    a = torch.tensor([[0.0, 1.0, 2.0, 1.0], [0.0, 1.0, 3.0, 1.0001]])
    assert measures.dead_units(a) == 2
    assert measures.dead_units(a, rtol=1e-3) == 3
    assert measures.dead_units(torch.stack([a, a.new_tensor([[1, 2, 3, 4], [5, 6, 7, 8]])])).tolist() == [2, 0]
    assert measures.dead_units(a.bfloat16()) == 3  # 1.0001 is 1 there


MATRIX_MEASURES = [
    lambda x: measures.numerical_rank(x, 1e-3),
    measures.stable_rank,
    measures.effective_dimension,
    measures.distinct_neurons,
    measures.zero_neurons,
    measures.dead_units,
]


@pytest.mark.parametrize("measure", MATRIX_MEASURES)
def test_each_matrix_measure_at_its_corners(measure) -> None:
    """One bad item of a batch is NaN and leaves the others as they are; half precision; empty; a vector; zeros."""
    x = rows(3, 6, 4).bfloat16()
    alone = torch.stack([measure(item) for item in x])
    assert alone.dtype == torch.float64
    assert torch.equal(measure(x), alone)
    for bad in (NAN, float("inf")):
        spoilt = x.clone()
        spoilt[1, 2, 3] = bad
        found = measure(spoilt)
        assert found.isnan().tolist() == [False, True, False]
        assert torch.equal(found[::2], alone[::2])
    assert measure(torch.zeros(6, 4, dtype=torch.int64)) in (0, 4, 6)
    with pytest.raises(ValueError, match="empty"):
        measure(torch.zeros(3, 0))
    with pytest.raises(ValueError, match="dimensions"):
        measure(torch.zeros(3))


def test_truth_values_count_and_complex_numbers_are_refused() -> None:
    assert measures.zero_fraction(torch.tensor([True, False, False, False])) == 0.75
    for measure in (measures.zero_fraction, measures.stable_rank, measures.dead_units):
        with pytest.raises(ValueError, match="complex64"):
            measure(torch.ones(3, 3, dtype=torch.complex64))


def test_values_for_zero_matrices() -> None:
    zero = torch.zeros(6, 4)
    assert measures.numerical_rank(zero, 0) == measures.stable_rank(zero) == measures.effective_dimension(zero) == 0
    assert (measures.distinct_neurons(zero), measures.zero_neurons(zero), measures.dead_units(zero)) == (0, 6, 4)


def test_what_is_out_of_range_is_named() -> None:
    x = rows(3, 3)
    for call, word in [
        (lambda: measures.zero_fraction(x, -1), "threshold"),
        (lambda: measures.zero_fraction(x, NAN), "threshold"),
        (lambda: measures.zero_fraction(x[:0]), "empty"),
        (lambda: measures.zero_fraction(x, batch_dims=3), "batch_dims"),
        (lambda: measures.numerical_rank(x, 1.0), "rtol"),
        (lambda: measures.numerical_rank(x, NAN), "rtol"),
        (lambda: measures.distinct_neurons(x, 0.0), "correlation"),
        (lambda: measures.neuron_correlation(x, zero=NAN), "zero"),
        (lambda: measures.dead_units(x[:1]), "two inputs"),
        (lambda: measures.cluster_order(x * NAN), "NaN"),
        (lambda: measures.cluster_order(x[None]), "one matrix"),
    ]:
        with pytest.raises(ValueError, match=word):
            call()
