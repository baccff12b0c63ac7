"""Matrices on weight space as images: one symmetric colour scale, borders and names of the layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from symlab.plots.style import SMALL_PT, plain

COLOUR_MAP = "RdBu_r"  # red and blue: told apart in all common forms of colour blindness


def draw_matrix(axes: Axes, matrix: np.ndarray, largest: float) -> AxesImage:
    """The entries of `matrix` as colours between -largest and largest."""
    return axes.imshow(matrix, cmap=COLOUR_MAP, vmin=-largest, vmax=largest, interpolation="nearest")


def mark_borders(axes: Axes, sizes: Mapping[str, int], names: bool, least: float = 0.0) -> None:
    """Lines between parts of a matrix, their names at the left where wanted and where there is room for them
    (parts of at least the share `least` of the whole).
    """
    borders = np.cumsum([0, *sizes.values()])
    for border in borders[1:-1]:
        axes.axhline(border - 0.5, color="black", linewidth=0.4)
        axes.axvline(border - 0.5, color="black", linewidth=0.4)
    axes.set_xticks([])
    middles = (borders[:-1] + borders[1:] - 1) / 2
    shown = [
        (middle, plain(name))
        for middle, (name, size) in zip(middles, sizes.items(), strict=True)
        if names and size >= least * borders[-1]
    ]
    axes.set_yticks([middle for middle, _ in shown], [name for _, name in shown], fontsize=SMALL_PT)
    axes.tick_params(length=0)


def colour_limit(matrices: list[np.ndarray], quantile: float) -> float:
    """The `quantile` of the magnitudes of all entries that are not zero; 1 where there are none."""
    magnitudes = np.abs(np.concatenate([matrix.ravel() for matrix in matrices]))
    magnitudes = magnitudes[magnitudes > 0]
    return float(np.quantile(magnitudes, quantile)) if len(magnitudes) else 1.0


def add_colour_bar(figure: Figure, image: AxesImage, axes: Axes | np.ndarray, beyond: bool, label: str) -> None:
    """The scale under `axes` (one, or all that share it); pointed ends where entries lie `beyond` it."""
    ends = "both" if beyond else "neither"
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.7, aspect=30, pad=0.03, extend=ends)
    bar.ax.tick_params(labelsize=SMALL_PT)
    bar.ax.ticklabel_format(axis="x", style="sci", scilimits=(-2, 3))
    bar.ax.xaxis.get_offset_text().set_fontsize(SMALL_PT)
    bar.set_label(label, fontsize=SMALL_PT)
