"""The figures of the job curvature: what they draw, on made-up arrays."""

import io

import numpy as np
import pandas as pd
import pytest

from symlab.plots import curvature_view
from symlab.plots.curvature_view import CurvatureView, StepView, expanded
from symlab.plots.matrix_panels import matrix_panels
from symlab.plots.reduced_matrix import reduced_matrix
from symlab.plots.residual import log_slope, residual
from symlab.plots.spectrum import spectrum

PLOTS = (matrix_panels, spectrum, residual, reduced_matrix)
LAYERS = {"layers.0.weight": 6, "layers.0.bias": 3, "layers.2.weight": 2}
REDUCED = {"{h} x3": np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.5]]), "{} x1": np.diag([1.0, 4.0])}


def step_view(shift: float = 0.0, dense: bool = True, seed: int = 0) -> StepView:
    """A matrix [11, 11] whose eigenvalues are those of REDUCED, 3-fold and single, with a little noise."""
    values = np.concatenate([np.linalg.eigvalsh(block) for block in REDUCED.values()]) + shift
    times = np.array([3, 3, 3, 1, 1])
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(11, 11)))
    fitted = rotation @ np.diag(np.repeat(values, times)) @ rotation.T
    noise = 1e-3 * np.random.default_rng(seed + 1).normal(size=(11, 11))
    measured = fitted + noise + noise.T
    return StepView(
        measured=measured if dense else None,
        fitted=fitted if dense else None,
        spectrum=np.linalg.eigvalsh(measured)[::-1] if dense else None,
        predicted=values[np.argsort(-values)],
        multiplicity=times[np.argsort(-values)],
        reduced=REDUCED,
    )


def table(steps=(0, 20), structures=("right", "wrong")) -> pd.DataFrame:
    rows = []
    for step in steps:
        for structure in structures:
            for models in (100, 1000, 10000):
                own = 3 * models**-0.5 if structure == "right" else (0.2**2 + 9 / models) ** 0.5
                row = {"step": step, "structure": structure, "models": models, "groups": 10000 // models}
                row |= {"outside": own, "outside_std": 0.1 * own if models < 10000 else None}
                rows.append(row | {"noise": 3 * models**-0.5})
    return pd.DataFrame(rows)


def view(shift: float = 0.0, dense: bool = True, steps=(0, 20)) -> CurvatureView:
    views = {step: step_view(shift, dense, seed=step) for step in steps}
    return CurvatureView("gradient covariance", LAYERS, views, table(steps))


def saved(figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    figure.savefig(io.BytesIO(), format="pdf")
    return buffer.getvalue()


def labels(figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("case", ["two steps", "one step", "indefinite"])
def test_figures_are_drawn_at_column_width_without_warnings(plot, case):
    data = view(shift=-1.0 if case == "indefinite" else 0.0, steps=(0,) if case == "one step" else (0, 20))
    figure = plot(data, title="gradient covariance of 10,000 tanh nets 5-5-5 on teacher_student, lr 0.2, $seed 0")
    assert saved(figure)[:4] == b"\x89PNG"
    assert figure.get_size_inches()[0] == 3.4
    texts = [axes.get_title() for axes in figure.axes]
    texts += [figure.get_suptitle()]
    assert any("5-5-5" in text for text in texts)


def test_panels_show_the_matrices_on_one_symmetric_scale():
    data = view()
    figure = matrix_panels(data, title="t", quantile=1.0)
    images = [axes.images[0] for axes in figure.axes if axes.get_images()]
    shown = [image.get_array() for image in images]
    end = data.steps[20]
    units = [max(np.abs(x).max() for x in (own.measured, own.fitted)) for own in (data.steps[0], end)]
    np.testing.assert_allclose(shown[0], data.steps[0].measured / units[0])
    np.testing.assert_allclose(shown[1], end.measured / units[1])
    np.testing.assert_allclose(shown[2], end.fitted / units[1])
    np.testing.assert_allclose(shown[3], (end.measured - end.fitted) / units[1])
    assert {image.get_clim() for image in images} == {(-1, 1)}
    assert figure.axes[0].get_title() == f"step 0, unit {units[0]:.1e}"
    first = figure.axes[0]
    assert [label.get_text() for label in first.get_yticklabels()] == list(LAYERS)
    assert sorted({line.get_ydata()[0] for line in first.lines} - {0, 1}) == [5.5, 8.5]
    with pytest.raises(ValueError, match="quantile must lie in"):
        matrix_panels(data, title="t", quantile=0.0)


def test_without_dense_matrices_there_are_no_panels_and_no_measured_points():
    data = view(dense=False)
    assert matrix_panels(data, title="t") is None
    assert labels(spectrum(data, title="t")) == ["predicted, with multiplicity"]
    assert residual(CurvatureView("hessian", LAYERS, data.steps, table()[:0]), title="t") is None
    assert saved(reduced_matrix(data, title="t"))


def test_a_vector_has_a_residual_only():
    data = CurvatureView("mean gradient", LAYERS, {}, table())
    assert [plot(data, title="t") is None for plot in PLOTS] == [True, True, False, True]


def test_views_are_read_from_saved_arrays():
    own = step_view()
    blocks = {f"block_{index}": block for index, block in enumerate(REDUCED.values())}
    arrays = {"measured": own.measured, "fitted": own.fitted, "spectrum": own.spectrum, "predicted": own.predicted}
    arrays |= {"multiplicity": own.multiplicity, "block_names": np.array(list(REDUCED)), **blocks}
    back = curvature_view.step_view(arrays)
    assert back.measured is own.measured
    assert list(back.reduced) == list(REDUCED)
    np.testing.assert_array_equal(back.reduced["{} x1"], REDUCED["{} x1"])
    assert curvature_view.step_view({k: v for k, v in arrays.items() if k != "measured"}).measured is None
    layers = {"layer_names": np.array(list(LAYERS)), "layer_sizes": np.array(list(LAYERS.values()))}
    assert curvature_view.layers_of(layers) == LAYERS


def test_plateaus_are_as_long_as_the_multiplicities_and_points_lie_on_them():
    data = view()
    axes = spectrum(data, title="t").axes[0]
    plateaus = [line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_xdata()[0] > 0]
    lengths = [round(line.get_xdata()[1] - line.get_xdata()[0] + 0.1) for line in plateaus]
    assert lengths == data.steps[0].multiplicity.tolist()
    (points,) = [line for line in axes.lines if len(line.get_xdata()) == 11]
    predicted = expanded(data.steps[0].predicted, data.steps[0].multiplicity)
    np.testing.assert_allclose(points.get_ydata(), predicted, atol=0.02)
    assert {text.get_text() for text in axes.texts} == {"3"}
    assert axes.get_yscale() == "log"
    assert spectrum(view(shift=-1.0), title="t").axes[0].get_yscale() == "symlog"


def test_residual_tells_the_slopes_of_right_and_wrong_structure():
    figure = residual(view(), title="t")
    told = labels(figure)
    assert "right structure, step 0: slope -0.50" in told
    assert "right structure, step 20: slope -0.50" in told
    wrong = next(text for text in told if text.startswith("wrong structure, step 0"))
    assert -0.15 < float(wrong.rpartition(" ")[2]) < -0.05
    axes = figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert len(axes.collections) == 4  # a band for each
    curve = next(line for line in axes.lines if line.get_marker() == "o")
    np.testing.assert_allclose(curve.get_ydata(), 3 * np.array([100, 1000, 10000.0]) ** -0.5)


def test_residual_averages_over_data_sets():
    rows = pd.concat([table((0,), ("right",)).assign(outside=scale) for scale in (0.1, 0.3)])
    figure = residual(CurvatureView("hessian", LAYERS, {}, rows), title="t")
    curve = next(line for line in figure.axes[0].lines if line.get_marker() == "o")
    np.testing.assert_allclose(curve.get_ydata(), 0.2)


def test_log_slope():
    models = np.array([10.0, 100.0, 1000.0])
    assert log_slope(models, models**-0.37) == pytest.approx(-0.37)
    assert np.isnan(log_slope(models[:1], models[:1]))


def test_reduced_matrix_is_the_direct_sum():
    figure = reduced_matrix(view(), title="t", quantile=1.0)
    above, below = figure.axes[:2]
    matrix = above.images[0].get_array()
    assert matrix.shape == (5, 5)
    np.testing.assert_array_equal(matrix[:3, :3], REDUCED["{h} x3"])
    np.testing.assert_array_equal(matrix[3:, 3:], REDUCED["{} x1"])
    assert not matrix[:3, 3:].any()
    assert [label.get_text() for label in above.get_yticklabels()] == list(REDUCED)
    drawn = [line for line in below.lines if line.get_marker() in ("o", "s")]
    np.testing.assert_allclose(drawn[0].get_ydata(), [3.0, 1.0, 0.5])
    np.testing.assert_allclose(drawn[1].get_ydata(), [4.0, 1.0])
