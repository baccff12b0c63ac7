"""Tables and reports of a comparison: digits, escapes, and an HTML page that needs nothing else."""

import base64
import dataclasses
import io
import re
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from symlab.comparison.content import verdict_rows
from symlab.comparison.report import ReportContent, markdown_report, shown
from symlab.comparison.report_html import html_report
from symlab.comparison.statistics import statistics_notes, summary_rows
from symlab.comparison.tables import (
    cost_table,
    coverage_table,
    escaped,
    html_table,
    markdown_table,
    number,
    p_value,
    settings_text,
    span,
    spread,
    summary_table,
    target_table,
    tuning_table,
)

HOSTILE = 'a <b>|& "c" [x](http://evil.example) `d` *e*'
VOID = {"meta", "img", "br", "link", "input"}


def png():
    figure = Figure(figsize=(1, 1))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def results():
    values = {"gd": [0.02, 0.03, 0.025, 0.021], HOSTILE: [0.01, None, 0.012, 0.011]}
    return [
        {"optimizer": name, "seed": seed, "status": "diverged" if value is None else "completed", "test_loss": value}
        for name, column in values.items()
        for seed, value in enumerate(column)
    ]


def content(**changes):
    rows = summary_rows(results(), "test_loss", "gd", resamples=200)
    whole = ReportContent(
        title=f"Comparison of {HOSTILE}",
        settings={"model": {"function": "symlab.models.mlp.mlp", "keywords": {"hidden": [70]}}, HOSTILE: HOSTILE},
        tables=[
            ("Results", f"Test loss. {HOSTILE}", summary_table(rows, "gd")),
            ("Tuning", "", []),
        ],
        figures=[(f"Loss {HOSTILE}", png(), "figures/loss a.png"), ("Cost", png(), "figures/cost.png")],
        environment={"versions": {"python": "3.11", "torch": "2.14"}, "gpus": [], HOSTILE: 1},
        command_line="symlab compare 'optimizers=[a,b]' x=\"<y>\" && echo ```",
        notes=[*statistics_notes(rows, "gd"), HOSTILE],
    )
    return dataclasses.replace(whole, **changes)


class Page(HTMLParser):
    """Checks that tags are balanced; keeps texts, images, links and the cells of tables."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.texts, self.attributes, self.tags, self.cells = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data

    @property
    def text(self):
        return "".join(self.texts)


# ---- the page


def test_html_is_balanced_and_shows_every_text_as_it_is():
    page = Page(html_report(content()))
    assert page.open == []
    assert page.tags.count("h1") == 1
    assert page.text.count(HOSTILE) >= 7  # title twice, settings twice, note of a table, cell, caption, notes
    assert HOSTILE in page.cells
    assert "1 of 4 diverged" in page.cells
    assert "b" not in page.tags
    assert "No rows." in page.text
    assert "mlp(hidden=[70])" in page.text
    assert "symlab compare 'optimizers=[a,b]' x=\"<y>\" && echo ```" in page.text


def test_html_needs_nothing_outside_of_itself():
    made = content()
    text = html_report(made)
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "base"} & set(page.tags)
    images = [value for tag, name, value in page.attributes if (tag, name) == ("img", "src")]
    prefix = "data:image/png;base64,"
    assert all(value.startswith(prefix) for value in images)
    assert [base64.b64decode(value.removeprefix(prefix)) for value in images] == [image for _, image, _ in made.figures]
    ids = {value for _, name, value in page.attributes if name == "id"}
    for tag, name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("href", "src") and tag != "img":
            assert value.startswith("#")
            assert value[1:] in ids
    assert "@import" not in text
    assert "url(" not in text
    assert ("meta", "charset", "utf-8") in page.attributes
    assert any(name == "content" and "width=device-width" in value for _, name, value in page.attributes)
    assert [value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")] == [
        caption for caption, _, _ in made.figures
    ]


def test_sections_come_in_order_and_without_figures_there_is_none():
    headings = ["What was compared", "Results", "Tuning", "Figures", "Machine and versions"]
    headings.append("How the statistics were made")
    for text in (html_report(content()), markdown_report(content())):
        places = [re.search(rf"(<h2>|^## ){name}", text, re.M).start() for name in headings]
        assert places == sorted(places)
    bare = content(figures=[], command_line="")
    assert "Figures" not in html_report(bare)
    assert "## Figures" not in markdown_report(bare)
    assert "```" not in markdown_report(dataclasses.replace(bare, notes=[])).replace("\\`", "")


# ---- Markdown


def test_markdown_escapes_and_links_figures_relatively():
    text = markdown_report(content())
    assert "<b>" not in text
    assert "](http" not in text.replace("\\](http", "")
    assert "(figures/loss%20a.png)" in text
    assert "(figures/cost.png)" in text
    assert "\n````sh\nsymlab compare" in text  # the command holds three ticks itself
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in rows}) == 1
    assert any("1 of 4 diverged" in row for row in rows)
    assert "- **versions:** python 3.11, torch 2.14" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("icml2025_tanh", "icml2025_tanh"),
        ("_x_ **y**", r"\_x\_ \*\*y\*\*"),
        ("a|b\nc", r"a\|b c"),
        ("1 < 2 & 3", "1 &lt; 2 &amp; 3"),
        ("hidden=[70]", "hidden=[70]"),
        ("back\\slash", r"back\\slash"),
    ],
)
def test_escaped(text, expected):
    assert escaped(text) == expected


def test_markdown_table_is_aligned():
    rows = [{"optimizer": "gd", "loss": "0.5", "note": "x"}, {"optimizer": "a|b", "loss": "12.25 ± 0.1", "note": "–"}]
    assert markdown_table(rows).splitlines() == [
        "| optimizer |        loss | note |",
        "| --------- | ----------: | ---- |",
        "| gd        |         0.5 | x    |",
        r"| a\|b      | 12.25 ± 0.1 | –    |",
    ]
    assert markdown_table([]) == html_table([]) == ""


@pytest.mark.parametrize(
    ("cells", "numeric"),
    [
        (["0.5", "–", "-1.5e-7", "∞"], True),
        (["(3.2 ± 1.2)e-7", "[0.1, 2]", "lost"], True),
        (["10", "3 of 10 diverged", "≤ 0.0001", "0.01 to 0.02", "50 (3 diverged, 2 pruned)"], True),
        (["0.5", "1.3 x linear least squares"], False),
        (["EDGE: lr", "no"], False),
        (["lr=0.1"], False),
    ],
)
def test_columns_of_numbers_stand_to_the_right(cells, numeric):
    table = markdown_table([{"name": cell} for cell in cells])
    assert table.splitlines()[1].endswith(":" + " |") == numeric
    assert ('<td class="number">' in html_table([{"name": cell} for cell in cells])) == numeric


# ---- digits


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0074123, "0.00741"),
        (3.2123e-7, "3.21e-7"),
        (-1.5e-12, "-1.50e-12"),
        (12.345, "12.3"),
        (1234.5, "1234"),
        (99999, "99999"),
        (1234567, "1,234,567"),
        (2.5e9, "2.50e9"),
        (200.0, "200"),
        (0.0, "0.00"),
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "∞"),
    ],
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        (0.0074, 0.00068, "0.00740 ± 0.00068"),
        (3.2e-7, 1.2e-7, "(3.2 ± 1.2)e-7"),
        (12.3, 0.004, "12.300 ± 0.004"),
        (0.0123, 0.5, "0.012 ± 0.500"),
        (2.5e6, 1e5, "(2.50 ± 0.10)e6"),
        (0.0, 0.0, "0.0 ± 0.0"),
        (0.5, None, "0.500"),
        (None, None, "–"),
    ],
)
def test_spread(mean, std, text):
    assert spread(mean, std) == text


def test_p_value_and_span():
    assert [p_value(p) for p in (None, 1.0, 0.25, 2 / 2**10, 5e-7)] == ["–", "1.00", "0.25", "0.0020", "≤ 0.0001"]
    assert (span(None, None), span(0.1, 0.25)) == ("–", "[0.100, 0.250]")


# ---- the tables


def test_summary_table_shows_what_was_lost():
    gd, other = summary_table(summary_rows(results(), "test_loss", "gd", resamples=200), "gd")
    assert gd["runs"] == "4"
    assert gd["ratio to gd"] == "1"
    assert gd["mean ± std"] == "0.0240 ± 0.0045"
    assert (other["runs"], other["mean ± std"], other["ratio to gd"]) == ("1 of 4 diverged", "–", "–")
    assert other["median [min, max]"] == "0.0115 [0.0100, lost]"
    assert other["95 % interval"] == "–"


def test_other_tables():
    reached = {"steps_median": 20, "steps_min": 10, "steps_max": 30, "seconds_median": 0.5}
    target = {"target": "0.01", "optimizer": "gd", "level_min": 0.01, "level_max": 0.02, "runs": 10, "reached": 7}
    (row,) = target_table([target | reached | {"seconds_min": 0.25, "seconds_max": 1.0}])
    assert row["reached by"] == "7 of 10"
    assert (row["steps"], row["seconds"], row["test loss"]) == ("20 [10, 30]", "0.500 [0.250, 1]", "0.0100 to 0.0200")
    (row,) = tuning_table(
        [
            {"optimizer": "gd", "settings": '{"lr": 0.123456, "schedule": "cosine"}', "value": 0.01, "trials": 50}
            | {"diverged": 3, "failed": 0, "pruned": 2, "within_10_percent": 4, "edges": "lr,beta"}
        ]
    )
    assert row["best settings"] == "lr=0.1235, schedule=cosine"
    assert (row["trials"], row["at an edge"]) == ("50 (3 diverged, 2 pruned)", "EDGE: lr, beta")
    cost = {"optimizer": "gd", "step_ms": 1.5, "update_ms": 0.25, "state_mib": 0.0, "peak_mib": None}
    for kind in ("step", "update"):
        cost |= {f"{kind}_ratio": 2.0, f"{kind}_ratio_low": 1.5, f"{kind}_ratio_high": 2.5}
    (row,) = cost_table([cost], "adam")
    assert (row["step / adam's"], row["peak memory, MiB"]) == ("2 [1.50, 2.50]", "–")


def test_coverage_is_one_row_per_optimizer_and_rule():
    rows = [{"optimizer": "muon", "tensor": f"w{i}", "rule": "muon", "weights": 700} for i in range(6)]
    rows.append({"optimizer": "muon", "tensor": "b", "rule": "adamw", "weights": 1800})
    muon, adamw = coverage_table(rows)
    assert (muon["weights"], muon["share"], muon["tensors"]) == ("4,200", "70 %", "w0, w1, w2, w3 and 2 more")
    assert (adamw["weights"], adamw["share"]) == ("1,800", "30 %")


def test_settings_text_and_shown():
    assert settings_text({"lr": 0.1, "every": 10, "groups": "auto", "clip": None}) == (
        "lr=0.1, every=10, groups=auto, clip=null"
    )
    assert shown({"a": [1, 2], "b": {"c": None}, "d": True}) == "a [1, 2], b (c none), d yes"
    assert shown([]) == shown({}) == "none"


def test_the_notes_name_the_smallest_p_that_can_be():
    rows = summary_rows(results(), "test_loss", "gd", resamples=200)
    notes = " ".join(statistics_notes(rows, "gd"))
    assert "With 4 pairs p cannot be below 0.12" in notes  # 2 / 2^4
    assert "corrected for the number of optimizers tested (1)" in notes


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        (("loss", b"%PDF", "figures/a.png"), "not a PNG"),
        (("loss", png(), "/tmp/a.png"), "must be relative"),
        (("loss", png(), "http://x/a.png"), "must be relative"),
        (("loss", png(), "../a.png"), "must be relative"),
    ],
)
def test_figures_that_cannot_be_shown(figure, words):
    with pytest.raises(ValueError, match=words):
        content(figures=[figure])


def test_the_verdict_is_that_of_the_corrected_test() -> None:
    rows = [
        {"metric": "test_loss", "optimizer": name, "median": median, "ratio": ratio, "p_holm": p}
        for name, median, ratio, p in (
            ("a", 2.0, 1.0, None),
            ("b", 1.0, 0.5, 0.01),
            ("c", 1.5, 0.75, 0.2),
            ("d", 3.0, 1.5, 0.04),
            ("e", float("inf"), None, 0.01),
        )
    ]
    found = {row["optimizer"]: (row["rank"], row["against a"]) for row in verdict_rows(rows, "a")}
    assert found == {
        "a": ("3", "the reference"),
        "b": ("1", "better"),
        "c": ("2", "undecided"),
        "d": ("4", "worse"),
        "e": ("5", "different, with runs that diverged or failed"),
    }
