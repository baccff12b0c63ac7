"""The figures of a model's symmetry: its axes, and a matrix on its weights."""

import io

import numpy as np
import pytest
from matplotlib.colors import to_hex

from symlab.plots.axes import GROUP_COLOURS, axes
from symlab.plots.structure import structure


def row(axis, size, group, role, places):
    return {"axis": axis, "size": size, "used_group": group, "role": role, "places": places}


SMALL = [
    row("a:0", 3, "permutation", "hidden", "a:0 b:0 c:1"),
    row("in:a:1", 2, "trivial", "input", "a:1"),
    row("c:0", 5, "signed_permutation", "hidden", "c:0"),
]
WEIGHTS = {"a": 6, "b": 3, "c": 15}


def cells(panel):
    """(column, row) -> colour."""
    return {
        (round(p.get_x() + p.get_width() / 2), round(p.get_y() + p.get_height() / 2)): to_hex(p.get_facecolor())
        for p in panel.patches
    }


def within(figure):
    """All texts lie inside of the figure and have at least 7 pt."""
    figure.canvas.draw()
    panel = figure.axes[0]
    texts = [panel.title, panel.xaxis.label, *panel.get_xticklabels(), *panel.get_yticklabels(), *panel.texts]
    texts += figure.legends[0].get_texts()
    for text in (text for text in texts if text.get_text()):
        box = text.get_window_extent()
        assert box.x0 >= 0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y0 >= 0, text
        assert box.y1 <= figure.bbox.y1, text
        assert text.get_fontsize() >= 7
    for kind in ("png", "pdf"):
        figure.savefig(io.BytesIO(), format=kind)


def test_chart_of_a_small_net():
    figure = axes(SMALL, WEIGHTS, title="t")
    panel = figure.axes[0]
    blue, grey, orange = (GROUP_COLOURS[g].lower() for g in ("permutation", "trivial", "signed_permutation"))
    assert cells(panel) == {(0, 0): blue, (0, 1): blue, (0, 2): blue, (1, 0): grey, (2, 2): orange}
    assert [text.get_text() for text in panel.texts] == ["0", "0", "1", "1", "0"]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["a:0 [3]", "in:a:1 [2]", "c:0 [5]"]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["a", "b", "c"]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["permutation", "free", "signed permutation"]
    within(figure)


def test_many_free_axes_of_one_role_share_a_column():
    kernel = [row(f"free:a:{d}", 3, "trivial", "kernel", f"a:{d}") for d in (1, 2, 3)]
    panel = axes([SMALL[0], *kernel], WEIGHTS, title="t").axes[0]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["a:0 [3]", "3 kernel axes"]
    assert (1, 0) in cells(panel)


def test_free_axes_of_one_unit_are_left_out():
    single = row("free:a:1", 1, "trivial", "free", "a:1")
    panel = axes([SMALL[0], single], WEIGHTS, title="t").axes[0]
    assert [label.get_text() for label in panel.get_xticklabels()] == ["a:0 [3]"]
    figure = axes([single], {"a": 1}, title="nothing else")
    assert not figure.axes[0].patches
    figure.savefig(io.BytesIO(), format="png")


def test_bars_of_a_large_net():
    many = [row(f"p{i}:0", i + 1, "permutation", "hidden", f"p{i}:0 p{i}:1") for i in range(80)]
    many.append(row("in:p0:2", 7, "trivial", "input", "p0:2"))
    figure = axes(many, {f"p{i}": 10 for i in range(160)}, title="a title that is too long for one line, " * 3)
    panel = figure.axes[0]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["hidden", "input"]
    assert [patch.get_width() for patch in panel.patches] == pytest.approx([50.0, 100 / 160])
    assert [text.get_text() for text in panel.texts] == ["80 axes, size 1 to 80", "1 axis, size 7"]
    within(figure)


def test_dollars_and_bad_widths():
    within(axes([row("a$:0", 3, "orthogonal", "hidden", "a$:0")], {"a$": 3}, title="$"))
    with pytest.raises(ValueError, match="width_in must be positive, got 0"):
        axes(SMALL, WEIGHTS, title="t", width_in=0)


def test_structure_shows_the_matrix_on_a_symmetric_scale():
    matrix = np.diag([1.0, -3.0, 2.0])
    figure = structure(matrix, {"w": 2, "b$": 1}, title="t")
    panel = figure.axes[0]
    (image,) = panel.get_images()
    assert image.get_clim() == (-3.0, 3.0)
    np.testing.assert_array_equal(image.get_array(), matrix)
    assert [label.get_text() for label in panel.get_yticklabels()] == ["w", r"b\$"]
    with pytest.raises(ValueError, match=r"matrix must be \[2, 2\] like its layers, got \[3, 3\]"):
        structure(matrix, {"w": 2}, title="t")
    with pytest.raises(ValueError, match="NaN"):
        structure(np.full((1, 1), np.nan), {"w": 1}, title="t")
