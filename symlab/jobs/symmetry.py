"""Show the symmetry that symlab finds in a model: its axes, what is free and why, and its blocks."""

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from matplotlib.figure import Figure

from symlab.rundir import BadInput, Outcome, RunDir
from symlab.symmetry import InferredSymmetry, InvariantOperator, WeightSymmetry, inspect_symmetry
from symlab.symmetry.axis_choice import choose_groups
from symlab.symmetry.tables import axis_rows, block_rows, share_on_axes
from symlab.training.build import SAMPLE_ROWS, build_model
from symlab.training.factories import DataFactory, ModelFactory, name_of
from symlab.training.sources import in_memory

KEY_FIGURES = ("parameters", "share_on_axes", "axes", "factors", "mean_factors", "largest_block")
SHOWN = 15
"""Rows of each table on the console."""
WIDEST = 44
"""Characters of one cell on the console."""
LISTS = ("places", "axes", "tensors")
"""Columns that hold names with spaces between them."""

logger = logging.getLogger("symlab")


def symmetry(
    run: RunDir,
    *,
    model: ModelFactory,
    data: DataFactory,
    plots: Mapping[str, Callable[..., Figure]] = MappingProxyType({}),
    groups: Mapping[str, str] | None = None,
    orthogonal: bool = False,
    verify: bool = True,
    max_block: int | None = None,
    max_figure: int = 1000,
    seed: int = 0,
) -> Outcome:
    """Sigma = direct sum over blocks k of M_k (x) I_{D_k}: which axes, groups and blocks the model's weights have.

    `groups` (other groups for some axes) and `max_block` (None: no coarsening) are as for SymO; `orthogonal` and
    `verify` as for `inspect_symmetry`. Writes axes.csv, one row per axis; metrics.csv, one row per block; the figure
    `axes` and, for models of at most `max_figure` weights, `structure`: a random matrix with this symmetry (equal
    entries have equal colours), the pattern of the mean gradient covariance, Hessian, GGN and Fisher. A figure that
    `plots` lacks is left out.

    Raises BadInput for values out of range, and for groups that name no axis or no group.
    """
    if max_block is not None and not max_block >= 1:
        raise BadInput(f"max_block must be at least 1, got {max_block}")
    if not seed >= 0:
        raise BadInput(f"seed must be at least 0, got {seed}")
    unknown = sorted(set(plots) - {"axes", "structure"})
    if unknown:
        raise BadInput(f"plots.{unknown[0]}: the figures of this job are plots.axes and plots.structure")
    dataset = in_memory(data()).to(torch.device("cpu"), torch.float32)
    net = build_model(model, dataset, seed, torch.device("cpu"), torch.float32)
    rows = dataset.train_inputs[:SAMPLE_ROWS]
    inferred = inspect_symmetry(net, rows, orthogonal=orthogonal, verify=verify, seed=seed)
    used = _used(inferred, groups or {}, max_block)
    axes, blocks = axis_rows(inferred.axes, used), block_rows(used)
    run.write_environment({"device": "cpu", "seed": seed})
    run.append_rows(axes, table="axes")
    run.append_rows(blocks)
    summary = _summary(inferred.symmetry, used, axes)
    run.write_summary(summary)
    logger.info("%s", as_text(axes, blocks, summary))
    name = f"{name_of(model)} on {dataset.name}"
    if "axes" in plots:
        run.save_figure("axes", plots["axes"](axes, _weights(used), title=f"{name}: {_title(summary)}"))
    if "structure" in plots and used.num_parameters <= max_figure:
        title = f"{name}: random matrix with the symmetry: {used.num_factors} independent entries"
        matrix = random_operator(used, seed).dense().numpy()
        run.save_figure("structure", plots["structure"](matrix, _weights(used), title=title))
    return Outcome("completed", 0, summary)


def _used(inferred: InferredSymmetry, groups: Mapping[str, str], max_block: int | None) -> WeightSymmetry:
    """The model's symmetry with the groups that were asked for, then coarsened."""
    try:
        chosen = choose_groups(inferred.axes, groups)
    except ValueError as error:
        raise BadInput(f"groups: {error}") from error
    used = inferred.symmetry.with_groups(chosen) if chosen else inferred.symmetry
    return used if max_block is None else used.coarsen(max_block)


def _weights(used: WeightSymmetry) -> dict[str, int]:
    return {name: int(torch.Size(shape).numel()) for name, shape in used.shapes.items()}


def _summary(own: WeightSymmetry, used: WeightSymmetry, axes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Axes are counted in the model's `own` symmetry, blocks in the one that is `used`."""
    errors = [row["error"] for row in axes if row["error"] is not None]
    return {
        "status": "completed",
        "parameters": used.num_parameters,
        "share_on_axes": share_on_axes(own),
        "axes": len(axes),
        "axes_with_group": len(own.groups),
        "blocks": len(used.blocks),
        "largest_block": max(block.copies for block in used.blocks),
        "factors": used.num_factors,
        "mean_factors": used.num_mean_factors,
        "largest_error": max(errors) if errors else None,
    }


def _title(summary: Mapping[str, Any]) -> str:
    indexed = round(summary["share_on_axes"] * summary["parameters"])
    return (
        f"{summary['axes']} axes, {summary['axes_with_group']} with a group, which index {indexed:,} of"
        f" {summary['parameters']:,} weights"
    )


def as_text(axes: Sequence[Mapping[str, Any]], blocks: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> str:
    """Both tables and the key figures, for the console."""
    worst = summary["largest_error"]
    return "\n".join(
        [
            _title(summary),
            *_table(axes, ("axis", "size", "group", "role", "error", "places", "reasons"), "axes.csv"),
            f"{summary['blocks']} blocks, the largest {summary['largest_block']} x {summary['largest_block']}",
            *_table(blocks, ("copies", "dimension", "weights", "axes", "tensors"), "metrics.csv"),
            f"a symmetric matrix with this symmetry has {summary['factors']} independent numbers, a vector"
            f" {summary['mean_factors']}",
            "not verified" if worst is None else f"largest change of the output when an axis moves: {worst:.1e}",
        ]
    )


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], file: str) -> list[str]:
    """Aligned columns, at most `SHOWN` rows of at most `WIDEST` characters a cell."""
    ranked = sorted(range(len(rows)), key=lambda i: _rank(rows[i]))
    kept = [rows[i] for i in sorted(ranked[:SHOWN])]
    cells = [list(columns), *([_cell(column, _shown(row, column)) for column in columns] for row in kept)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    return lines + ([f"  and {len(rows) - SHOWN} more in {file}"] if len(rows) > SHOWN else [])


def _rank(row: Mapping[str, Any]) -> tuple[float, ...]:
    """Axes: those with a group first, then by weights; blocks: by copies, then by weights."""
    if "copies" in row:
        return (-row["copies"], -row["weights"])
    return (row["used_group"] == "trivial", -row["weights"])


def _shown(row: Mapping[str, Any], column: str) -> Any:
    """The value; of a group that was chosen or coarsened, both."""
    if column == "group" and row["used_group"] != row["group"]:
        return f"{row['group']} -> {row['used_group']}"
    return row[column]


def _cell(column: str, value: Any) -> str:
    """A value in at most `WIDEST` characters; of a list of names, those that fit and the number of the others."""
    if value is None:
        return "-"
    text = f"{value:.0e}" if isinstance(value, float) else str(value)
    if len(text) <= WIDEST:
        return text
    names = text.split(" ")
    if column not in LISTS or len(names) == 1:
        return text[: WIDEST - 3] + "..."
    fitting = max((n for n in range(1, len(names)) if len(" ".join(names[:n])) <= WIDEST - 6), default=1)
    return f"{' '.join(names[:fitting])} + {len(names) - fitting}"


def random_operator(symmetry: WeightSymmetry, seed: int) -> InvariantOperator:
    """Symmetric, the entries of each M_k independent Gaussians, so that different numbers have different colours."""
    generator = torch.Generator().manual_seed(seed)
    matrices = []
    for block in symmetry.blocks:
        gaussian = torch.randn(block.copies, block.copies, generator=generator, dtype=torch.float64)  # [m, m]
        matrices.append((gaussian + gaussian.mT) / 2)
    return InvariantOperator(symmetry, matrices)
