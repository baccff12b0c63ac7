"""The report of a comparison: what stands in it, and as Markdown. The HTML is made in report_html.

Order: what was compared, tables with their notes, figures, machine and versions, how the statistics were made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from symlab.comparison.tables import escaped, markdown_table

SETTINGS_HEADING = "What was compared"
FIGURES_HEADING = "Figures"
ENVIRONMENT_HEADING = "Machine and versions"
NOTES_HEADING = "How the statistics were made"
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class ReportContent:
    """All that a report says; it is written from nothing else.

    settings, environment: name -> number, text, list or mapping. tables: (heading, note, rows), a row is column ->
    text; a table without rows says so. figures: (caption, bytes of a PNG file, its path relative to the report). notes:
    sentences on how the statistics were made.

    Raises ValueError for a figure that is not a PNG or whose path is not relative.
    """

    title: str
    settings: Mapping[str, Any]
    tables: Sequence[tuple[str, str, Sequence[Mapping[str, Any]]]]
    figures: Sequence[tuple[str, bytes, str]]
    environment: Mapping[str, Any]
    command_line: str
    notes: Sequence[str]

    def __post_init__(self) -> None:
        for caption, content, path in self.figures:
            if not content.startswith(PNG):
                raise ValueError(f"figure {caption!r} ({path}) is not a PNG file")
            if path.startswith("/") or ":" in path or ".." in path.split("/"):
                raise ValueError(f"figure {caption!r}: the path must be relative to the report, got {path!r}")


def markdown_report(content: ReportContent) -> str:
    """The report as GitHub's Markdown, with relative links to the figures."""
    parts = [f"# {escaped(content.title)}", f"## {SETTINGS_HEADING}", _list(content.settings)]
    parts.append(_fenced(content.command_line))
    for heading, note, rows in content.tables:
        parts += [f"## {escaped(heading)}", escaped(note), markdown_table(rows) or "No rows."]
    if content.figures:
        parts.append(f"## {FIGURES_HEADING}")
        parts += [_figure(caption, path) for caption, _, path in content.figures]
    parts += [f"## {ENVIRONMENT_HEADING}", _list(content.environment)]
    parts += [f"## {NOTES_HEADING}", "\n".join(f"- {escaped(note)}" for note in content.notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def shown(value: Any) -> str:
    """A value of the settings in one line: numbers short, lists with commas, mappings as `key value`.

    A described factory {"function": dotted name, "keywords": mapping} is shown as a call.
    """
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case {"function": str(function), "keywords": Mapping() as keywords}:
            return f"{function.rpartition('.')[2]}({', '.join(f'{k}={_nested(v)}' for k, v in keywords.items())})"
        case Mapping():
            return ", ".join(f"{key} {_nested(item)}" for key, item in value.items()) or "none"
        case list() | tuple():
            return ", ".join(_nested(item) for item in value) or "none"
    return str(value)


def _nested(value: Any) -> str:
    """A value inside another: in brackets if it has parts of its own."""
    match value:
        case {"function": str(), "keywords": Mapping()}:
            return shown(value)
        case Mapping() if value:
            return f"({shown(value)})"
        case list() | tuple():
            return f"[{shown(value) if value else ''}]"
    return shown(value)


def _list(values: Mapping[str, Any]) -> str:
    return "\n".join(f"- **{escaped(str(name))}:** {escaped(shown(value))}" for name, value in values.items())


def _fenced(text: str) -> str:
    """A block of code; the fence is longer than any in the text."""
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text}\n{fence}" if text else ""


def _figure(caption: str, path: str) -> str:
    alternative = re.sub(r"(?<!\\)[\[\]]", r"\\\g<0>", escaped(caption))
    return f"![{alternative}]({quote(path)})\n\n*{escaped(caption)}*"
