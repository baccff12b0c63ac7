"""The figures: what they draw, how they read, and that they survive any table."""

import gc
import io
import math
import subprocess
import sys
import weakref

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from symlab.plots.accuracy import accuracy
from symlab.plots.loss import loss

REFERENCES = {"linear least squares": 0.0067}


def run(name: str = "a", group: str = "", *, steps: int = 21, rate: float = 0.1, floor: float = 0.005) -> pd.DataFrame:
    step = np.arange(steps)
    test = 0.12 * np.exp(-rate * step) + floor
    return pd.DataFrame(
        {
            "step": step,
            "epoch": step / 2,
            "time_s": step * 0.01,
            "train_loss": 0.9 * test,
            "test_loss": test,
            "train_accuracy": 1 - test,
            "test_accuracy": 1 - 2 * test,
            "run": name,
            "group": group,
        }
    )


def saved(figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    figure.savefig(io.BytesIO(), format="pdf")
    return buffer.getvalue()


def lines(figure) -> list:
    return [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) > 0]


def legend_labels(figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_single_run_draws_both_losses_and_the_reference():
    figure = loss(run(), REFERENCES, title="toy")
    axes = figure.axes[0]
    drawn = lines(figure)
    table = run()
    np.testing.assert_allclose(drawn[0].get_ydata(), table["test_loss"])
    np.testing.assert_allclose(drawn[1].get_ydata(), table["train_loss"])
    assert (drawn[0].get_linestyle(), drawn[1].get_linestyle()) == ("-", ":")
    assert list(drawn[2].get_ydata()) == [0.0067, 0.0067]
    assert (axes.get_yscale(), axes.get_xlabel(), axes.get_ylabel()) == ("log", "step (updates)", "loss")
    assert figure.get_suptitle() == "toy"
    assert legend_labels(figure) == ["test", "train", "linear least squares: 0.0067"]


@pytest.mark.parametrize(("x", "label", "last"), [("epoch", "epoch", 10), ("time_s", "training time (s)", 0.2)])
def test_other_x_axes(x, label, last):
    figure = loss(run(), {}, title="toy", x=x)
    assert figure.axes[0].get_xlabel() == label
    assert lines(figure)[0].get_xdata()[-1] == pytest.approx(last)


def test_groups_have_their_colours_counts_and_bands():
    table = pd.concat(
        [run(f"{group}{i}", f"optimizer={group}", floor=0.005 * (i + 1)) for group in ("gd", "adam") for i in range(3)]
    )
    figure = loss(table, {}, title="toy")
    assert legend_labels(figure) == [
        "optimizer=gd (n=3)",
        "optimizer=adam (n=3)",
        "test",
        "train",
        "±1 std over runs (test)",
    ]
    assert len({to_hex(line.get_color()) for line in lines(figure)}) == 2
    assert len(figure.axes[0].collections) == 2, "one band per group"
    np.testing.assert_allclose(lines(figure)[0].get_ydata(), run(floor=0.01)["test_loss"])


def test_training_loss_can_be_left_out():
    figure = loss(run(), {}, title="toy", train=False)
    assert len(lines(figure)) == 1
    assert legend_labels(figure) == ["test"]


@pytest.mark.parametrize("value", [2e-29, 0.0, -1.0, 1e9])
def test_far_reference_is_named_but_does_not_stretch_the_axis(value):
    figure = loss(run(), {"linear least squares": value}, title="toy")
    low, high = figure.axes[0].get_ylim()
    assert low > 1e-3
    assert high < 1
    assert legend_labels(figure)[-1] == f"linear least squares: {value:.1e}, off the axis"


def test_diverging_run_does_not_flatten_the_others():
    bad = run("b")
    bad.loc[15:, "test_loss"] = 1e30
    bad.loc[18:, ["test_loss", "train_loss"]] = math.inf
    figure = loss(pd.concat([run(), bad]), {}, title="toy")
    assert figure.axes[0].get_ylim()[1] < 20
    saved(figure)


@pytest.mark.parametrize(
    "table",
    [
        run(steps=1),
        run().assign(train_loss=None),
        run().assign(train_loss=np.nan, test_loss=np.nan),
        run().assign(train_loss=np.inf, test_loss=-np.inf),
        run().assign(train_loss=0.0, test_loss=0.0),
        run().assign(test_loss=0.1, train_loss=0.1),
        run().assign(test_loss=1e-300, train_loss=1e300),
        run().drop(columns=["run", "group"]).astype(str),
        pd.concat([run("a"), run("b", steps=5), run("c", steps=1)]),
        pd.concat([run(f"r{i}", steps=5) for i in range(60)]),
        pd.concat([run(f"r{i}", f"lr={i}", steps=5) for i in range(60)]),
    ],
    ids=["one-row", "no-train", "nan", "inf", "zeros", "flat", "extreme", "text", "lengths", "60-runs", "60-groups"],
)
def test_any_table_makes_a_figure(table):
    for x in ("step", "time_s"):
        assert len(saved(loss(table, REFERENCES, title="toy", x=x))) > 2000


def test_no_finite_loss_says_so():
    figure = loss(run().assign(train_loss=np.nan, test_loss=np.inf), REFERENCES, title="toy")
    assert [text.get_text() for text in figure.axes[0].texts] == ["no finite loss"]


def test_fonts_size_and_resolution():
    table = pd.concat([run(f"r{i}", f"lr={i}", steps=5) for i in range(3)])
    figure = loss(table, REFERENCES, title="a title so long that it has to be broken into more than one line, " * 2)
    axes = figure.axes[0]
    figure.canvas.draw()
    texts = [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]
    texts += figure.legends[0].get_texts()
    assert min(text.get_fontsize() for text in texts) >= 7
    assert figure.get_size_inches()[0] == pytest.approx(3.4)
    assert figure.dpi >= 200
    edges = figure.bbox
    for text in (*texts[:3], *figure.legends[0].get_texts()):
        box = text.get_window_extent()
        assert box.x0 >= 0, text
        assert box.x1 <= edges.x1, text
        assert box.y1 <= edges.y1, text
    legend_box, axes_box = figure.legends[0].get_window_extent(), axes.get_tightbbox()
    assert legend_box.y1 <= axes_box.y0 + 2, "the legend covers the axes"


def test_dollars_are_no_formula():
    figure = loss(run("a", "cost=$x_{1}$"), {"$\\alpha": 0.01}, title="100$ or 200$ \\nonsense{")
    saved(figure)


def test_accuracy_is_in_per_cent():
    figure = accuracy(run(), {"linear least squares": 0.1}, title="toy")
    np.testing.assert_allclose(lines(figure)[0].get_ydata(), 100 * run()["test_accuracy"])
    assert figure.axes[0].get_ylabel() == "accuracy (%)"
    assert figure.axes[0].get_ylim()[1] <= 102
    saved(figure)
    saved(accuracy(run().assign(train_accuracy=None, test_accuracy=np.nan), {}, title="toy"))
    with pytest.raises(ValueError, match="test_accuracy"):
        accuracy(run().drop(columns=["test_accuracy"]), {}, title="toy")


@pytest.mark.parametrize("keys", [{"width_in": 0}, {"height_in": -1.0}, {"width_in": math.nan}])
def test_bad_sizes_are_named(keys):
    with pytest.raises(ValueError, match=next(iter(keys))):
        loss(run(), {}, title="toy", **keys)


def test_figures_are_freed():
    saved(loss(run(), REFERENCES, title="toy"))
    references = []
    for _ in range(30):
        figure = loss(run(), REFERENCES, title="toy")
        references.append(weakref.ref(figure))
        del figure
    gc.collect()
    assert not any(reference() for reference in references)


def test_neither_torch_nor_pyplot_is_imported():
    code = (
        "import sys, symlab.plots.loss, symlab.plots.accuracy, symlab.plots.grouping, symlab.plots.spread\n"
        "print([name for name in ('torch', 'matplotlib.pyplot', 'tkinter') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
