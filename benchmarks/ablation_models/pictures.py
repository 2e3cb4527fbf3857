"""Plots of the results."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from keras_transformer.plotting.drawing import score_color, styled

SHADES = (0.8, 0.55, 0.25)  # of the architectures, on the colour scale of scores

Curve = tuple[list[float], list[float]]  # processor seconds, perplexities


@styled()
def plot_rows(curves: Mapping[str, Curve], bleu: Mapping[str, float | None]) -> Figure:
    """Plots perplexity over training time, and BLEU relative to the first row."""
    figure = Figure(figsize=(11, 1.8 + 0.2 * max(len(bleu), 14)))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_curves(left, curves)
    draw_bleu(right, bleu)
    return figure


def draw_curves(axes: Axes, curves: Mapping[str, Curve]) -> None:
    for (name, points), shade in zip(curves.items(), SHADES, strict=False):
        axes.plot(*points, "o-", markersize=4, color=score_color(shade), label=name)
    axes.legend(frameon=False)
    axes.set(
        yscale="log",
        xlim=(0, None),
        xlabel="processor seconds of training",
        ylabel="validation perplexity",
        title="Architectures",
    )
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(ScalarFormatter())


def draw_bleu(axes: Axes, bleu: Mapping[str, float | None]) -> None:
    names = [
        f"{name}  " + ("diverged" if score is None else f"{score:.1f}")
        for name, score in bleu.items()
    ]
    scores = np.array(list(bleu.values()), "float64")  # NaN, not drawn, for None
    rows = np.arange(len(names))
    color = score_color(SHADES[0])
    axes.axvline(scores[0], color=color, linewidth=1)
    axes.hlines(rows, scores[0], scores, color=score_color(0.15))
    axes.plot(scores, rows, "o", color=color)
    axes.set(
        yticks=rows, yticklabels=names, xlabel="validation BLEU", title="Ablations"
    )
    axes.invert_yaxis()
