"""The schedules against values by hand."""

import pytest

from symlab.schedules.constant import constant
from symlab.schedules.cosine import cosine
from symlab.schedules.exponential import exponential
from symlab.schedules.geometric import geometric
from symlab.schedules.step_decay import step_decay


def test_constant_is_one():
    assert [constant(step, 5) for step in range(5)] == [1.0] * 5


def test_exponential():
    factors = [exponential(step, 4, gamma=0.5) for step in range(4)]
    assert factors == [1.0, 0.5, 0.25, 0.125]


def test_step_decay_falls_at_its_milestones():
    factors = [step_decay(step, 7, every=3, factor=0.1) for step in range(7)]
    assert factors == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01], rel=1e-15)


def test_cosine_values():
    # (1 + cos(pi t / 4)) / 2 for t = 0..3
    assert [cosine(step, 4) for step in range(4)] == pytest.approx([1, 0.85355339, 0.5, 0.14644661], abs=1e-8)
    assert [cosine(step, 2, floor=0.2) for step in range(3)] == pytest.approx([1, 0.6, 0.2], rel=1e-12)


def test_geometric_reaches_its_fraction_at_the_end():
    assert [geometric(step, 4, final=1e-4) for step in range(5)] == pytest.approx([1, 0.1, 0.01, 1e-3, 1e-4], rel=1e-12)
    with pytest.raises(ValueError, match="final must be in"):
        geometric(0, 4, final=0.0)


@pytest.mark.parametrize("gamma", [0.0, -0.5, 1.01, float("nan"), float("inf")])
def test_exponential_refuses_gamma(gamma):
    with pytest.raises(ValueError, match="gamma must be in"):
        exponential(0, 10, gamma=gamma)


def test_step_decay_and_cosine_refuse_values_out_of_range():
    with pytest.raises(ValueError, match="every must be at least 1"):
        step_decay(0, 10, every=0, factor=0.1)
    with pytest.raises(ValueError, match="factor must be in"):
        step_decay(0, 10, every=5, factor=float("nan"))
    with pytest.raises(ValueError, match="floor must be in"):
        cosine(0, 10, floor=1.5)
