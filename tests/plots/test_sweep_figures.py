"""The generic figures of a sweep: what they draw, on made-up tables, also ragged ones and those of several runs."""

import io
import itertools

import numpy as np
import pandas as pd
import pytest

from symlab.plots.phase_diagram import cell_text, phase_diagram
from symlab.plots.sweep_lines import sweep_lines

DECAYS, RATES = (1e-4, 1e-3, 1e-2), (0.1, 0.3)


def sweep(decays=DECAYS, rates=RATES, seeds=(0, 1, 2), arms=("u * v", "w")):
    """zero_fraction = place of the decay + ten times that of the rate + a deviation of the seed; 0 for w."""
    rows = [
        {"part": arm, "arm": arm, "decay": decay, "lr": lr, "seed": seed, "diverged": False}
        | {"zero_fraction": float(i + 10 * j + (seed - 1) / 10 if arm != "w" else 0)}
        for arm, (i, decay), (j, lr), seed in itertools.product(arms, enumerate(decays), enumerate(rates), seeds)
    ]
    return pd.DataFrame(rows)


def merged(*groups):
    """Rows as `symlab plot` merges them from several runs."""
    return pd.concat([t.assign(run=f"/{g}", group=g, status="completed") for g, t in groups], ignore_index=True)


def drawn(figure):
    """The figure laid out, so that warnings of the layout come up here."""
    figure.draw_without_rendering()
    return figure


def saved(figure):
    figure.savefig(buffer := io.BytesIO(), format="png", dpi=60)
    figure.savefig(io.BytesIO(), format="pdf")
    assert buffer.getvalue()[:4] == b"\x89PNG"
    return figure


def panels(figure):
    return [axes for axes in figure.axes if axes.images and axes.get_title()]


def labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def crosses(axes):
    return [
        tuple(map(float, line.get_xdata())) for line in axes.lines if line.get_marker() == "x" and len(line.get_xdata())
    ]


def test_a_cell_is_the_mean_over_seeds_with_its_deviation():
    figure = drawn(
        phase_diagram(sweep(), {}, title="t $x", x_label="weight decay", value_label="zeros", low=0, high=20)
    )
    first, second = panels(figure)
    assert [axes.get_title() for axes in (first, second)] == ["u * v", "w"]
    np.testing.assert_allclose(first.images[0].get_array(), [[0, 1, 2], [10, 11, 12]], atol=1e-12)
    assert [tick.get_text() for tick in first.get_xticklabels()] == ["0.0001", "0.001", "0.01"]
    assert [tick.get_text() for tick in first.get_yticklabels()] == ["0.1", "0.3"]
    assert (first.get_xlabel(), first.get_ylabel()) == ("weight decay", "learning rate")
    assert texts(first)[-1] == "12.0\n±0.10"
    assert first.images[0].get_clim() == (0, 20)
    assert figure.axes[-1].get_xlabel() == "zeros"
    assert labels(figure) == ["number: mean ±1 std over 3 seeds"]
    assert figure.get_size_inches()[0] == 3.4


def test_what_diverged_is_left_out_hatched_and_named():
    table = sweep(arms=("a",))
    table.loc[(table["decay"] == 1e-2) & (table["lr"] == 0.3), "diverged"] = True
    table.loc[(table["decay"] == 1e-2) & (table["lr"] == 0.1) & (table["seed"] == 2), "zero_fraction"] = np.inf
    table = table[~((table["decay"] == 1e-4) & (table["lr"] == 0.1))]
    figure = saved(phase_diagram(table, {}, title="t"))
    (axes,) = panels(figure)
    means = np.ma.filled(axes.images[0].get_array(), np.nan)
    np.testing.assert_allclose(means, [[np.nan, 1, 1.95], [10, 11, np.nan]])
    assert {tuple(patch.get_xy()): patch.get_facecolor()[3] for patch in axes.patches} == {
        (1.5, -0.5): 0,
        (1.5, 0.5): 1,
    }
    assert len(axes.texts) == 4
    assert labels(figure)[1:] == [
        "all seeds diverged or without a number",
        "some seeds diverged, mean of the others",
        "not run",
    ]


@pytest.mark.parametrize("size", [{"seeds": (0,)}, {"decays": (0.1,)}, {"decays": (0.1,), "rates": (1,)}])
def test_tables_of_one_seed_or_one_value(size):
    figure = drawn(phase_diagram(sweep(**size), {}, title="t"))
    assert len(panels(figure)) == 2
    figure = drawn(sweep_lines(sweep(**size), {}, title="t"))
    assert ("±1 std" in " ".join(labels(figure))) == ("seeds" not in size)


def test_many_cells_keep_their_numbers_and_panels_go_below_each_other():
    eight = [10.0**-k for k in range(8)]
    first, second = panels(drawn(phase_diagram(sweep(eight, eight, seeds=(0, 1)), {}, title="t")))
    assert len(first.texts) == 64
    assert first.get_position().x0 == pytest.approx(second.get_position().x0)
    first, second = panels(drawn(phase_diagram(sweep(), {}, title="t")))
    assert first.get_position().y0 == pytest.approx(second.get_position().y0)
    crowd = [float(k) for k in range(40)]
    assert not panels(drawn(phase_diagram(sweep(crowd, seeds=(0,)), {}, title="t")))[0].texts


def test_a_table_without_a_number_is_drawn_as_such():
    table = sweep().assign(zero_fraction=None)
    figure = drawn(phase_diagram(table, {}, title="t"))
    assert all(len(axes.patches) == 6 and not axes.texts for axes in panels(figure))
    (axes,) = drawn(sweep_lines(table, {}, title="t")).axes
    assert texts(axes) == ["no finite number"]
    (axes,) = drawn(sweep_lines(sweep(arms=("w",)), {}, title="t", log_y=True)).axes
    assert texts(axes) == ["no positive number"]


def test_runs_that_share_cells_are_kept_apart_and_runs_that_do_not_stand_together():
    whole, shifted = sweep(), sweep()
    shifted["zero_fraction"] += 100
    figure = drawn(phase_diagram(merged(("p=1", whole), ("p=2", shifted)), {}, title="t"))
    assert [axes.get_title() for axes in panels(figure)] == ["u * v, p=1", "w, p=1", "u * v, p=2", "w, p=2"]
    assert float(panels(figure)[2].images[0].get_array()[0, 0]) == pytest.approx(100)
    parts = merged(*((f"lr={rate:g}", whole[whole["lr"] == rate]) for rate in RATES))
    figure = drawn(phase_diagram(parts, {}, title="t"))
    assert [axes.get_title() for axes in panels(figure)] == ["u * v", "w"]
    figure = drawn(phase_diagram(merged(("p=1", whole), ("p=2", shifted)), {}, title="t", panel=None))
    assert [axes.get_title() for axes in panels(figure)] == ["p=1", "p=2"]
    figure = drawn(sweep_lines(merged(("p=1", whole), ("p=2", shifted)), {}, title="t"))
    assert labels(figure)[:4] == ["u * v, p=1", "w, p=1", "u * v, p=2", "w, p=2"]
    (axes,) = drawn(sweep_lines(parts, {}, title="t")).axes
    assert len([line for line in axes.lines if len(line.get_xdata()) == 3]) == 4  # each rate its own line


def test_seeds_of_several_runs_are_seeds():
    runs = merged(("", sweep(seeds=(0,))), ("", sweep(seeds=(1, 2))))
    runs["run"] = np.where(runs["seed"] == 0, "/a", "/b")
    figure = drawn(phase_diagram(runs, {}, title="t"))
    assert texts(panels(figure)[0])[0].endswith("±0.10")


def test_lines_are_means_with_a_band():
    one = sweep(rates=(0.1,))
    references = {"edge": 3e-3, "best": 1.5, "other (p=1)": 2.0, "other (p=2)": 3.0}
    figure = saved(sweep_lines(one, references, title="t", guide="edge", level="other", x_label="weight decay"))
    (axes,) = figure.axes
    np.testing.assert_allclose(axes.lines[0].get_xdata(), DECAYS)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0, 1, 2], atol=1e-12)
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((-0.1, 2.1))
    assert (axes.get_xscale(), axes.get_xlabel(), axes.get_ylabel()) == ("log", "weight decay", "zero fraction")
    assert labels(figure) == [
        *("u * v", "w", "edge: 0.003", "other (p=1): 2", "other (p=2): 3", "±1 std over 3 seeds"),
    ]
    straight = axes.lines[-3:]
    assert [float(np.ravel(line.get_xdata())[0]) for line in straight[:1]] == [3e-3]
    assert [float(np.ravel(line.get_ydata())[0]) for line in straight[1:]] == [2, 3]


def test_lines_on_each_other_are_all_seen():
    table = pd.concat([sweep(rates=(0.1,), arms=("a", "b", "c")), sweep(rates=(0.1,), arms=("w",))])
    (axes,) = drawn(sweep_lines(table, {}, title="t")).axes
    styles = [line.get_linestyle() for line in axes.lines if len(line.get_xdata()) == 3]
    assert styles == ["-", "--", ":", "-"]


def test_a_seed_with_several_rows_counts_once():
    figure = drawn(sweep_lines(sweep(), {}, title="t"))
    (axes,) = figure.axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [5, 6, 7])
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((4.9, 7.1))
    assert labels(figure)[-1] == "±1 std over 3 seeds, each the mean of up to 2 rows"


def test_settings_that_differ_by_rounding_are_one():
    table = sweep()
    first = (table["seed"] == 0) & (table["decay"] == 1e-3)
    table.loc[first, "decay"] = 1e-3 * (1 + 3e-16)
    assert table["decay"].nunique() == 4
    (axes,) = drawn(sweep_lines(table, {}, title="t")).axes
    np.testing.assert_allclose(axes.lines[0].get_xdata(), DECAYS)
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [5, 6, 7])


def test_crosses_tell_what_is_missing():
    table = sweep(rates=(0.1,), arms=("a",))
    table.loc[(table["decay"] == 1e-3) & (table["seed"] == 1), "diverged"] = True
    table.loc[table["decay"] == 1e-2, "zero_fraction"] = np.nan
    figure = drawn(sweep_lines(table, {}, title="t"))
    (axes,) = figure.axes
    np.testing.assert_allclose(axes.lines[0].get_xdata(), DECAYS[:2])
    assert crosses(axes) == [(1e-3,), (1e-2,)]
    assert labels(figure)[-1] == "seeds that diverged or have no number left out"


def test_axes_of_zero_of_words_and_of_nothing():
    (axes,) = drawn(sweep_lines(sweep((0.0, 1e-4, 1e-2)), {}, title="t")).axes
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [1e-6, 1e-4, 1e-2])
    assert axes.get_xticklabels()[0].get_text() == "0"
    (axes,) = drawn(sweep_lines(sweep(("sgd", "adam")), {}, title="t")).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["sgd", "adam"]
    (axes,) = drawn(sweep_lines(sweep((64, None, 8)), {}, title="t", group=None)).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["8", "64", "none"]
    (axes,) = drawn(sweep_lines(sweep((2, 8, 32)), {}, title="t")).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["2", "8", "32"]
    (axes,) = drawn(sweep_lines(sweep((0.0, 0.003, 0.01, 0.02, 0.0201, 0.03)), {}, title="t")).axes  # one power of ten
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "0.003", "0.01", "0.02", "0.03"]
    (axes,) = drawn(sweep_lines(sweep((-1, 0, 1)), {}, title="t", log_x=False)).axes
    assert axes.get_xscale() == "linear"


def test_cell_texts_are_short():
    values = (0, 0.98, 1, 9.99, 9.999, 15.6, 99.96, 123.4, 3e-4, 12345, -0.5, 1e-12)
    found = [cell_text(value) for value in values]
    assert found == ["0", "0.98", "1.00", "9.99", "10.0", "15.6", "100", "123", "3e-4", "1e4", "-0.50", "1e-12"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda t: phase_diagram(t.iloc[:0], {}, title="t"), "nothing to draw"),
        (lambda t: phase_diagram(t, {}, title="t", value="rank"), "value='rank': the table has no such column; it has"),
        (lambda t: phase_diagram(t, {}, title="t", value="part"), "the column 'part' holds text"),
        (lambda t: phase_diagram(t, {}, title="t", low=2, high=1), "low must be below high, got 2 and 1"),
        (lambda t: phase_diagram(t, {}, title="t", height_in=0), "must be positive, got 3.4 and 0"),
        (lambda t: sweep_lines(t.iloc[:0], {}, title="t"), "nothing to draw"),
        (lambda t: sweep_lines(t, {}, title="t", x="rank"), "x='rank': the table has no such column"),
        (lambda t: sweep_lines(t, {}, title="t", y="arm"), "the column 'arm' holds text"),
        (lambda t: sweep_lines(t, {"a": 1}, title="t", guide="b"), "guide='b': no reference of that name; there are a"),
        (lambda t: sweep_lines(t, {}, title="t", level="b"), "level='b': no reference of that name; there are none"),
        (lambda t: sweep_lines(t.assign(decay=-1.0), {}, title="t"), "negative value -1; log_x=false draws it"),
        (lambda t: sweep_lines(t, {}, title="t", width_in=-1), "must be positive, got -1"),
    ],
)
def test_what_cannot_be_drawn(draw, message):
    with pytest.raises(ValueError, match=message):
        draw(sweep())
