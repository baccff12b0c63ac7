"""Rows of the tables that the job curvature writes, and the names of the numbers in its summary."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from symlab.curvature.measures import tensor_pairs
from symlab.curvature.results import Result
from symlab.curvature.statistics import STATISTICS
from symlab.curvature.survey import Plan
from symlab.symmetry import WeightSymmetry

Row = dict[str, Any]
WITH_ERRORS = ("residual", "wrong_residual", "slope", "wrong_slope", *STATISTICS)
"""Columns of metrics.csv that have a column <name>_error beside them."""

NUMBERS = (*WITH_ERRORS, "expected_residual", "excess", "wrong_excess", "relative_error", "single_model")
PAIR_NUMBERS = ("norm", "residual", "correlation", "single_model")


def metrics_row(result: Result, data_seed: int | None) -> Row:
    """One row of metrics.csv: a quantity at a step."""
    row: Row = {
        "data_seed": data_seed,
        "step": result.step,
        "quantity": result.quantity,
        "models": result.models,
        "parameters": result.symmetry.num_parameters,
        "factors": result.factors,
    }
    for name in NUMBERS:
        row[name] = result.numbers.get(name)
        if name in WITH_ERRORS:
            row[f"{name}_error"] = result.errors.get(name)
    return row | {"single_model_std": result.errors.get("single_model")}


def residual_rows(result: Result, data_seed: int | None) -> list[Row]:
    """Rows of residuals.csv: one per structure and number of models."""
    head = {"data_seed": data_seed, "step": result.step, "quantity": result.quantity}
    return [head | dict(row) for row in result.residuals]


def block_rows(result: Result, data_seed: int | None) -> list[Row]:
    """Rows of blocks.csv: one per pair of tensors."""
    head = {"data_seed": data_seed, "step": result.step, "quantity": result.quantity}
    return [head | dict(row) for row in result.pairs]


def single_rows(result: Result, data_seed: int | None) -> list[Row]:
    """Rows of single_models.csv: one per isotypic block, and per pair of tensors within it."""
    head = {"data_seed": data_seed, "step": result.step, "quantity": result.quantity}
    return [head | {key: _number(x) if isinstance(x, float) else x for key, x in row.items()} for row in result.singles]


def known_numbers(plan: Plan, symmetry: WeightSymmetry) -> list[str]:
    """Names of all numbers of the summary: <column>_<quantity>_step<t>, and <column>_<quantity>_step<t>_<i>_<j> for
    the tensors number i and j, counted from 1 in the order of the parameters.
    """
    names = list(symmetry.shapes)
    places = [(names.index(a) + 1, names.index(b) + 1) for a, b in tensor_pairs(names)]
    found = []
    for quantity in plan.quantities:
        for step in plan.steps:
            found += [f"{number}_{quantity}_step{step}" for number in NUMBERS]
            if quantity != "mean_gradient":
                found += [f"{number}_{quantity}_step{step}_{i}_{j}" for number in PAIR_NUMBERS for i, j in places]
    return found


def numbers_in(
    metrics: Iterable[Mapping[str, Any]], blocks: Iterable[Mapping[str, Any]]
) -> dict[str, list[tuple[float | None, float | None]]]:
    """Name of each number that the tables hold -> its (value, error) for each data set, in the order of the rows."""
    found: dict[str, list[tuple[float | None, float | None]]] = {}
    for row in metrics:
        for number in NUMBERS:
            value = (_number(row[number]), _number(row.get(f"{number}_error")))
            found.setdefault(f"{number}_{row['quantity']}_step{row['step']}", []).append(value)
    for row in blocks:
        for number in PAIR_NUMBERS:
            key = f"{number}_{row['quantity']}_step{row['step']}_{row['i']}_{row['j']}"
            found.setdefault(key, []).append((_number(row[number]), _number(row.get(f"{number}_error"))))
    return found


def _number(cell: Any) -> float | None:
    return float(cell) if isinstance(cell, (int, float)) and not math.isnan(cell) else None
