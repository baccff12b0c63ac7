"""Tidy CSV tables that only grow: one row per observation, units in the names of the columns."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from symlab.rundir.files import write_text
from symlab.rundir.outcome import BadInput


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows to the table; the keys of the very first row are its columns.

    A float is written with all its digits (`repr`), so it reads back equal; None is an empty cell. A last
    line without its newline (the process was killed while it wrote) is removed first. If the disk is full,
    the table keeps the rows that it had.

    Raises ValueError for a key that is not a column or text with a line break, OSError from the file system.
    """
    if not rows:
        return
    with path.open("r+b" if path.exists() else "xb") as file:
        end = _repair(file.fileno(), path)
        columns = _columns(path) if end else list(rows[0])
        lines = [] if end else [_line(columns)]
        lines += [_line(_cells(row, columns, path)) for row in rows]
        file.seek(end)
        try:
            file.write("".join(lines).encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), end)
            raise


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows, numbers as int or float, empty cells as None; a half-written last line is not a row.

    Raises BadInput, naming the file and the line, where a line does not have a cell for every column.
    """
    reader = csv.reader(io.StringIO(_complete(path)))
    columns = next(reader, [])
    rows = []
    for cells in filter(None, reader):
        if len(cells) != len(columns):
            raise BadInput(f"{path}, line {reader.line_num}: {len(cells)} cells for {len(columns)} columns")
        rows.append(dict(zip(columns, map(_value, cells), strict=True)))
    return rows


def truncate_rows(path: Path, last_step: int) -> None:
    """Drop the rows whose `step` is greater than `last_step`, in one atomic replacement.

    Raises BadInput, naming the file, where a row has no whole number in the column `step`.
    """
    for row in read_rows(path):
        if not isinstance(row.get("step"), int):
            raise BadInput(f"{path}: a row without a whole number in the column step: {row}")
    keep_rows(path, lambda row: row["step"] <= last_step)


def keep_rows(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Drop the rows that are not `wanted`, in one atomic replacement."""
    _rewrite(path, _columns(path), [row for row in read_rows(path) if wanted(row)])


def replace_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put these rows in place of the table, in one atomic replacement; the columns are the keys of all rows, in order.

    Without rows an existing table keeps its columns. Raises ValueError for text with a line break.
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    _rewrite(path, columns or (_columns(path) if path.exists() else []), rows)


def _rewrite(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    lines = [_line(columns), *(_line(_cells(row, columns, path)) for row in rows)] if columns else []
    write_text(path, "".join(lines))


def _complete(path: Path) -> str:
    """The text up to the last line that has its newline."""
    content = path.read_bytes()
    try:
        return content[: content.rfind(b"\n") + 1].decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is damaged: {error}") from error


def _repair(descriptor: int, path: Path) -> int:
    """Remove an incomplete last line; return the size of what is left."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        size = path.read_bytes().rfind(b"\n") + 1
        os.ftruncate(descriptor, size)
    return size


def _columns(path: Path) -> list[str]:
    return next(csv.reader(io.StringIO(_complete(path))), [])


def _cells(row: Mapping[str, Any], columns: Sequence[str], path: Path) -> list[str]:
    unknown = [key for key in row if key not in columns]
    if unknown:
        raise ValueError(f"{path.name} has the columns {', '.join(columns)}, got a row with {', '.join(unknown)}")
    return [_cell(row.get(column)) for column in columns]


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case Integral():
            return str(int(value))
        case Real():
            return repr(float(value))
        case str() if not ("\n" in value or "\r" in value):
            return value
    raise ValueError(f"a cell holds a number, true, false, one line of text or nothing, got {value!r}")


def _value(cell: str | None) -> Any:
    if not cell:
        return None
    if cell in ("true", "false"):
        return cell == "true"
    if re.fullmatch(r"[+-]?\d+", cell):
        return int(cell)
    try:
        return float(cell)
    except ValueError:
        return cell


def _line(cells: Iterable[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(cells)
    return buffer.getvalue()
