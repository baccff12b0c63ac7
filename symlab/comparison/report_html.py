"""The report of a comparison as one HTML file that needs nothing else: figures inside, no script, no link outside."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from typing import Any

from symlab.comparison.report import (
    ENVIRONMENT_HEADING,
    FIGURES_HEADING,
    NOTES_HEADING,
    SETTINGS_HEADING,
    ReportContent,
    shown,
)
from symlab.comparison.tables import html_table

STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; padding: 1rem; max-width: 64rem; color: #1a1a1a; background: #ffffff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.6rem; border-bottom: 1px solid #cccccc; padding-bottom: 0.2rem; }
nav ul { padding-left: 1.2rem; columns: 16rem; }
a { color: #0055a5; }
p, li, dd { overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: 0.2rem 1rem; margin: 0; }
dt { font-weight: 600; }
dd { margin: 0; }
pre { background: #f4f4f4; padding: 0.7rem; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 0.85rem; }
.wide { overflow-x: auto; margin: 0.6rem 0; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.7rem; border-bottom: 1px solid #dddddd; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #555555; }
th, td.number { white-space: nowrap; }
.number { text-align: right; }
td:not(.number) { min-width: 5rem; }
th:first-child, td:first-child { position: sticky; left: 0; background: #ffffff; }
figure { margin: 1.4rem 0; }
figure img { display: block; width: 34rem; max-width: 100%; height: auto; }
figcaption { color: #444444; font-size: 0.9rem; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: 0.4rem; } }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } nav { display: none; }
  .wide { overflow: visible; } table { font-size: 7.5pt; } th, td.number { white-space: normal; }
  tr, figure { break-inside: avoid; } h2 { break-after: avoid; } figure img { width: 12cm; } }
"""


def html_report(content: ReportContent) -> str:
    """The report as a self-contained HTML page; every text is escaped."""
    sections = [(SETTINGS_HEADING, _definitions(content.settings) + _code(content.command_line))]
    for heading, note, rows in content.tables:
        sections.append((heading, _paragraph(note) + (html_table(rows) or "<p>No rows.</p>")))
    if content.figures:
        drawn = "\n".join(_figure(caption, image) for caption, image, _ in content.figures)
        sections.append((FIGURES_HEADING, drawn))
    sections.append((ENVIRONMENT_HEADING, _definitions(content.environment)))
    notes = "".join(f"<li>{html.escape(note)}</li>\n" for note in content.notes)
    sections.append((NOTES_HEADING, f"<ul>\n{notes}</ul>"))
    links = "".join(
        f'<li><a href="#section-{i}">{html.escape(heading)}</a></li>' for i, (heading, _) in enumerate(sections)
    )
    body = "\n".join(
        f'<section id="section-{i}">\n<h2>{html.escape(heading)}</h2>\n{inside}\n</section>'
        for i, (heading, inside) in enumerate(sections)
    )
    title = html.escape(content.title)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{title}</h1>\n<nav><ul>{links}</ul></nav>\n{body}\n</body>\n</html>\n"
    )


def _definitions(values: Mapping[str, Any]) -> str:
    lines = "".join(
        f"<dt>{html.escape(str(name))}</dt><dd>{html.escape(shown(value))}</dd>\n" for name, value in values.items()
    )
    return f"<dl>\n{lines}</dl>"


def _code(text: str) -> str:
    return f"<pre><code>{html.escape(text)}</code></pre>" if text else ""


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>\n" if text else ""


def _figure(caption: str, image: bytes) -> str:
    text = html.escape(caption)
    data = base64.b64encode(image).decode("ascii")
    return f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text}</figcaption></figure>'
