"""Whole files, written so that a reader finds the old content or the new, never a part; and strict JSON."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import secrets
import zipfile
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from symlab.rundir.outcome import BadInput

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")


def write_atomic(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Call `write` on a temporary file beside `path`, flush it to disk, then rename it to `path`.

    Raises what `write` or the file system raises; `path` is then as it was and the temporary file is gone.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Flush the names in a directory to disk, so that a renamed file survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, content: bytes) -> None:
    write_atomic(path, lambda file: file.write(content))


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def create_text(path: Path, text: str) -> None:
    """Like `write_text` for a new file: raises FileExistsError if `path` is there, whoever made it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        write_text(temporary, text)
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: Path, empty: T) -> T:
    """The content of a JSON file, of the type of `empty`, which it is where there is no file.

    Raises BadInput, naming the file, if it holds anything else.
    """
    if not path.exists():
        return empty
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInput(f"{path} is damaged: {error}") from error
    if not isinstance(content, type(empty)):
        raise BadInput(f"{path} is damaged: it holds a {type(content).__name__}, not a {type(empty).__name__}")
    return content


def check_archive(path: Path) -> None:
    """Raises ValueError for a zip archive that is cut short or has a byte changed."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except zipfile.BadZipFile as error:
        raise ValueError(f"the file is damaged: {error}") from error
    if damaged is not None:
        raise ValueError(f"the file is damaged in its part {damaged}")


def to_npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    """A compressed npz archive. Raises ValueError for an array of Python objects."""
    import numpy as np

    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(f"array {name} holds Python objects: give numbers or text")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **dict(arrays))
    return buffer.getvalue()


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz archive. Raises BadInput, naming the file, if it is damaged or would run code."""
    import numpy as np

    try:
        check_archive(path)
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, EOFError) as error:
        raise BadInput(f"cannot read arrays {path}: {error}") from error


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that a killed writer left; only for the one process that may write here."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def to_json(value: Any) -> str:
    """Strict JSON text of plain values (RFC 8259 knows no NaN and no infinity).

    In a mapping {"loss": nan} becomes {"loss": null, "loss_note": "nan"}; in a list a non-finite number
    is null. numpy's scalars become numbers, a Path becomes text.

    Raises TypeError for any other type, naming it.
    """
    return json.dumps(_plain(value), allow_nan=False, indent=2, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | str():
            return value
        case Path():
            return str(value)
        case Integral():
            return int(value)
        case Real():
            return float(value) if math.isfinite(value) else None
        case Mapping():
            return _plain_mapping(value)
        case Sequence() | set() | frozenset():
            return [_plain(item) for item in value]
    raise TypeError(f"cannot write a value of type {type(value).__name__} as JSON: {value!r}")


def _plain_mapping(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in mapping.items():
        plain[str(key)] = _plain(value)
        if isinstance(value, Real) and not math.isfinite(value):
            plain[f"{key}_note"] = str(float(value))
    return plain
