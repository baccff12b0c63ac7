"""The figures of a comparison: what they draw, on made-up tables."""

import io
import json
import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from symlab.plots.loss import loss
from symlab.plots.performance_profile import performance_profile, ratios_to_best, steps_of
from symlab.plots.step_time_bars import relative_times, step_time_bars
from symlab.plots.tuned_axis import axis_of, chosen_keys
from symlab.plots.tuning import settings_table, tuning


def saved(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def legend_labels(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def trial(settings, value, status="completed", seed=0, optimizer="adam"):
    cell = None if status != "completed" else value
    return {"optimizer": optimizer, "seed": seed, "settings": json.dumps(settings), "status": status, "value": cell}


def places(axes):
    """Positions of all scattered points, in the order of drawing."""
    return [tuple(float(v) for v in xy) for points in axes.collections for xy in points.get_offsets()]


# ---- tuning


def test_a_setting_is_the_mean_of_its_seeds_and_one_lost_seed_loses_it():
    table = settings_table(
        pd.DataFrame(
            [
                trial({"lr": 0.1, "beta": 0.9}, 3.0, seed=0),
                trial({"beta": 0.9, "lr": 0.1}, 5.0, seed=1),
                trial({"lr": 0.2}, 1.0, seed=0),
                trial({"lr": 0.2}, None, "diverged", seed=1),
                trial({"lr": 0.3}, 2.0),
                trial({"lr": 0.4}, None, "pruned"),
            ]
        )
    )
    assert list(table["settings"]) == [{"lr": 0.2}, {"lr": 0.4}, {"lr": 0.1, "beta": 0.9}, {"lr": 0.3}]
    assert list(table["status"]) == ["diverged", "pruned", "completed", "completed"]
    np.testing.assert_array_equal(table["value"], [math.nan, math.nan, 4.0, 2.0])


@pytest.mark.parametrize(
    ("values", "scale", "place"),
    [
        ([0.001, 0.1, 0.5], "log", (0.1, -1.0)),
        ([0.5, 0.9, 0.999], "log_complement", (0.99, 2.0)),
        ([0.5, 0.6, 0.9], "linear", (0.6, 0.6)),
        ([0.0, 0.9, 0.99], "log_complement", (0.9, 1.0)),
        ([-1.0, 0.0, 5.0], "linear", (5.0, 5.0)),
        (["auto", "free"], "choice", ("free", 1.0)),
        ([True, False], "choice", (False, 1.0)),
    ],
)
def test_the_scale_follows_from_the_tried_values(values, scale, place):
    axis = axis_of("key", [{"key": value} for value in values])
    assert axis.scale == scale
    assert axis.place(place[0]) == pytest.approx(place[1])
    assert not axis.missing
    for tick in axis.tick_values():
        assert axis.low - 1e-6 <= axis.place(tick) <= axis.high + 1e-6


def test_settings_without_the_key_stand_below_all_values():
    axis = axis_of("final", [{"final": 0.01}, {"lr": 1.0}, {"final": 1.0}])
    assert axis.missing
    assert axis.place(None) < axis.place(0.01) - 0.1


def test_keys_that_all_settings_have_come_first_and_constants_never():
    both = [{"lr": 0.1 * k, "eps": 1e-8, "schedule": f"s{k}", "final": 0.1 * k, "beta": 0.3 * k} for k in (1, 2)]
    assert chosen_keys(both) == ["lr", "final"]
    assert chosen_keys([*both, {"lr": 0.5, "eps": 1e-8, "beta": 0.1}]) == ["lr", "beta"]
    assert chosen_keys([{"schedule": "a"}, {"schedule": "b"}]) == ["schedule"]
    assert chosen_keys([{"lr": 1.0, "groups": "a"}, {"lr": 2.0, "groups": "b"}]) == ["lr", "groups"]
    assert chosen_keys([{"lr": 1.0}]) == []


def test_tuning_has_a_panel_per_optimizer_with_the_best_ringed_and_the_lost_crossed():
    rows = [
        trial({"lr": lr, "beta": beta}, 1 + lr + (1 - beta), optimizer="adam")
        for lr in (0.001, 0.01, 0.1)
        for beta in (0.5, 0.9, 0.99)
    ]
    rows += [trial({"lr": 1.0, "beta": 0.5}, None, "diverged"), trial({"lr": 1.0, "beta": 0.9}, None, "failed")]
    rows += [
        trial({"lr": lr, "schedule": name}, lr, optimizer="gd") for lr in (0.1, 1.0) for name in ("cosine", "step")
    ]
    figure = tuning(pd.DataFrame(rows), {"linear": 0.3}, title="tuned")
    adam, gd = (axes for axes in figure.axes if axes.get_title())
    assert (adam.get_title(), gd.get_title()) == ("adam: best 1.01", "gd: best 0.1")
    assert (adam.get_xlabel(), adam.get_ylabel()) == ("lr", "beta")
    assert (gd.get_xlabel(), gd.get_ylabel(), gd.get_yscale()) == ("lr", "objective / best", "log")
    drawn = places(adam)
    assert len(drawn) == 9 + 2 + 1  # completed, lost, the ring
    assert drawn[-1] == pytest.approx((-3.0, 2.0))  # lr 0.001, beta 0.99
    assert (0.0, pytest.approx(-math.log10(0.5))) in drawn  # the diverged one
    assert legend_labels(figure) == ["cosine", "step", "diverged", "failed", "best"]
    assert saved(figure).startswith(b"\x89PNG")  # colours are set when it is drawn
    best, worst = to_hex(adam.collections[-2].get_facecolor()[-1]), to_hex(gd.collections[3].get_facecolor()[0])
    assert best == "#440154"  # the dark end of viridis: 1 x the best
    assert worst == "#fde725"  # the light end: 10 x the best


def test_tuning_survives_optimizers_without_a_completed_setting_or_a_tuned_key():
    rows = [trial({"lr": lr}, None, "diverged", optimizer="a") for lr in (0.1, 1.0)]
    rows += [
        trial({}, 0.5, optimizer="b"),
        trial({"lr": 0.1}, 0.0, optimizer="c"),
        trial({"lr": 1}, -2.0, optimizer="c"),
    ]
    figure = tuning(pd.DataFrame(rows), {}, title="$x")
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["a: none completed", "b: best 0.5", "c: best -2"]
    assert [text.get_text() for text in figure.axes[1].texts] == ["nothing was tuned"]
    saved(figure)


@pytest.mark.parametrize("draw", [tuning, performance_profile, step_time_bars])
def test_tables_that_cannot_be_drawn(draw):
    with pytest.raises(ValueError, match="no rows"):
        draw(pd.DataFrame(), {}, title="t")
    with pytest.raises(ValueError, match="no column"):
        draw(pd.DataFrame([{"optimizer": "a", "seed": 0}]), {}, title="t")


# ---- performance profile


def costs(**optimizers):
    return pd.DataFrame(
        [
            {"optimizer": name, "task": task, "cost": cost}
            for name, column in optimizers.items()
            for task, cost in enumerate(column)
        ]
    )


def test_profile_by_hand():
    """Five tasks; the last is solved by nobody and stays in the divisor."""
    table = costs(b=[10, 20, 30, None, None], a=[20, 20, 90, 5, None])
    ratios = ratios_to_best(table)
    assert list(ratios) == ["b", "a"]
    np.testing.assert_allclose(ratios["a"], [2, 1, 3, 1, np.inf])
    np.testing.assert_allclose(ratios["b"], [1, 1, 1, np.inf, np.inf])
    tau, share = steps_of(ratios["a"].to_numpy(), 4.0)
    assert list(tau) == [1, 2, 3, 4]
    np.testing.assert_allclose(share, [2 / 5, 3 / 5, 4 / 5, 4 / 5])
    figure = performance_profile(table, {}, title="profile", cost="steps")
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert all(line.get_drawstyle() == "steps-post" for line in axes.lines)
    np.testing.assert_allclose(axes.lines[0].get_ydata()[[0, -1]], [3 / 5, 3 / 5])
    assert legend_labels(figure) == ["b: solved 3 of 5", "a: solved 4 of 5"]
    assert "steps" in axes.get_xlabel()
    saved(figure)


def test_profile_leaves_out_what_was_solved_at_the_start_and_counts_a_missing_row_as_unsolved():
    ratios = ratios_to_best(costs(a=[0.0, 2.0, 3.0], b=[0.0, 4.0]))
    np.testing.assert_allclose(ratios["a"], [1, 1])
    np.testing.assert_allclose(ratios["b"], [2, np.inf])
    figure = performance_profile(costs(a=[0.0], b=[0.0]), {}, title="all at the start")
    assert legend_labels(figure) == ["a: solved 0 of 0", "b: solved 0 of 0"]
    saved(figure)


def test_profile_where_nothing_was_solved():
    figure = performance_profile(costs(a=[None, np.inf], b=[None, None]), {}, title="none")
    assert legend_labels(figure) == ["a: solved 0 of 2", "b: solved 0 of 2"]
    assert list(figure.axes[0].lines[0].get_ydata()) == [0, 0]
    saved(figure)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pd.concat([costs(a=[1.0]), costs(a=[1.0])]), "two rows for optimizer a and task 0"),
        (costs(a=[-1.0]), "a cost is not negative, got -1"),
    ],
)
def test_profile_refuses_tables_that_would_mislead(table, words):
    with pytest.raises(ValueError, match=words):
        performance_profile(table, {}, title="t")


# ---- time per step


def times(slow=(1, 2, 1, 1)):
    return pd.DataFrame(
        [
            {"optimizer": name, "repeat": repeat, "step_time_s": factor * step, "update_time_s": factor * update}
            for repeat, factor in enumerate(slow)
            for name, step, update in (("gd", 0.002, 0.0005), ("kfac", 0.008, 0.007))
        ]
    )


def test_bars_are_ratios_within_a_repeat():
    table = times()
    table.loc[(table["optimizer"] == "kfac") & (table["repeat"] == 3), "step_time_s"] = 0.016
    rows = relative_times(table)
    assert list(rows.loc["kfac", ["step", "low", "high", "update"]]) == pytest.approx([4, 4, 5, 3.5])
    assert list(rows.loc["gd", ["step", "update", "ms"]]) == pytest.approx([1, 0.25, 2])
    figure = step_time_bars(table, {}, title="times")
    (axes,) = figure.axes
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == pytest.approx([0.25, 3.5, 0.75, 0.5])  # the updates, then what is on top of them
    assert [text.get_text() for text in axes.texts] == ["1  (2 ms)", "4  (12 ms)"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["gd", "kfac"]
    assert axes.get_xlabel() == "time of a step / gd's"
    saved(figure)


def test_bars_need_every_optimizer_in_every_repeat():
    with pytest.raises(ValueError, match="every repeat"):
        step_time_bars(times().iloc[:-1], {}, title="t")


# ---- loss against seconds


@pytest.mark.parametrize(("runs", "label"), [(1, "training time (s)"), (2, "training time (s), mean over runs")])
def test_seconds_are_said_to_be_a_mean_over_runs(runs, label):
    steps = np.arange(4)
    table = pd.concat(
        [
            pd.DataFrame({"step": steps, "time_s": steps * (1 + k), "train_loss": 1.0, "test_loss": 1.0, "run": k})
            for k in range(runs)
        ]
    )
    axes = loss(table, {}, title="t", x="time_s").axes[0]
    assert axes.get_xlabel() == label
    assert list(axes.lines[0].get_xdata()) == list(steps * (runs + 1) / 2)
    assert loss(table, {}, title="t").axes[0].get_xlabel() == "step (updates)"
