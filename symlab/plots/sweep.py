"""Rows of a sweep as cells: what was tried, and the mean and spread over the seeds of each cell.

A row holds its setting (arm, lr, decay ...), its seed and what was measured; a column `diverged` tells nets that
blew up. Rows of several runs have the columns run and group besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

REPEATS = ("run", "seed")
Value = float | str | None


def in_words(column: str) -> str:
    """The label of an axis that is given none: learning rate for lr, weight decay for decay, else the column's name."""
    return {"lr": "learning rate", "decay": "weight decay"}.get(column, column.replace("_", " "))


def check_columns(table: pd.DataFrame, columns: Mapping[str, str | None]) -> None:
    """Raises ValueError for a table without rows, and for a column (key of the plot -> its name) that it lacks."""
    if table.empty:
        raise ValueError("the table has no rows, so there is nothing to draw")
    for key, name in columns.items():
        if name is not None and name not in table.columns:
            raise ValueError(f"{key}={name!r}: the table has no such column; it has {', '.join(table.columns)}")


def plain_value(value: Any) -> Value:
    """A cell of a table as a float, as text, or None where it is empty.

    Floats are kept to twelve digits: what differs by rounding alone was one setting.
    """
    if value is None or value is pd.NA or value is pd.NaT or value != value:  # nan is not itself
        return None
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    return float(f"{float(value):.12g}") if isinstance(value, Real) else str(value)


def shown(value: Value) -> str:
    """As it stands on an axis: %g of a number, and the word none for an empty cell."""
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else value


def tried(column: pd.Series) -> list[Value]:
    """Each value once: numbers ascending, then texts in the order in which they come, then None."""
    values = list(dict.fromkeys(plain_value(value) for value in column))
    numbers = sorted(value for value in values if isinstance(value, float))
    texts = [value for value in values if isinstance(value, str)]
    return [*numbers, *texts, *([None] if None in values else [])]


def places(column: pd.Series, values: Sequence[Value]) -> np.ndarray:
    """[rows]: the position of each row's value among `values`."""
    position = {value: index for index, value in enumerate(values)}
    return np.array([position[plain_value(value)] for value in column])


def split_labels(table: pd.DataFrame, column: str | None, others: Sequence[str]) -> pd.Series:
    """What a row is drawn under: its value of `column`; and its group of runs, where two groups share a cell of
    `column` and `others`, so that runs of different settings are never averaged.
    """
    own = table[column].map(lambda value: shown(plain_value(value))) if column else pd.Series("", index=table.index)
    if "group" not in table.columns or column == "group":
        return own
    groups = table["group"].map(lambda value: "" if plain_value(value) is None else shown(plain_value(value)))
    keys = [own, *(pd.Series(places(table[name], tried(table[name])), index=table.index) for name in others)]
    if (groups.groupby([key.to_numpy() for key in keys]).nunique() <= 1).all():
        return own
    return (own + ", " + groups).str.strip(", ")


def over_repeats(table: pd.DataFrame, cells: Mapping[str, np.ndarray], value: str) -> pd.DataFrame:
    """Per cell the mean of column `value` over its repeats (runs and seeds), each repeat the mean of its own rows.

    `cells`: name -> position of every row. Columns: the names, mean, std (n - 1 in the divisor; nan for one repeat),
    repeats (that have a number), failed (repeats with a row that diverged or has no finite number: such rows are left
    out), rows (of a repeat, at most).

    Raises ValueError where the column holds text.
    """
    try:
        numbers = pd.to_numeric(table[value]).to_numpy(dtype=float, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the column {value!r} holds text, and only numbers have a mean: {error}") from error
    bad = ~np.isfinite(numbers)
    if "diverged" in table.columns:
        bad |= pd.to_numeric(table["diverged"].map(lambda cell: cell in (True, "true"))).to_numpy(dtype=bool)
    names = [name for name in REPEATS if name in table.columns]
    repeats = {f"repeat {name}": places(table[name], tried(table[name])) for name in names}
    frame = pd.DataFrame({**cells, **repeats, "value": np.where(bad, np.nan, numbers), "bad": bad})
    each = frame.groupby([*cells, *repeats])[["value", "bad"]]
    each = each.agg(value=("value", "mean"), bad=("bad", "any"), rows=("bad", "size")).reset_index()
    found = each.groupby(list(cells)).agg(
        mean=("value", "mean"), std=("value", "std"), repeats=("value", "count"), failed=("bad", "sum"),
        rows=("rows", "max"),
    )  # fmt: skip
    return found.reset_index()


def spread_text(found: pd.DataFrame) -> str | None:
    """What the spread is over, for a legend; None where every cell has one repeat."""
    most = int(found["repeats"].max())
    rows = int(found["rows"].max())
    means = "" if rows < 2 else f", each the mean of up to {rows} rows"
    return None if most < 2 else f"over {most} seeds{means}"
