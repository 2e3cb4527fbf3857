"""Heat maps of confusion matrices."""

from collections.abc import Sequence

import numpy as np
import seaborn
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from keras_transformer.plotting.drawing import (
    SCORE_COLORS,
    NotebookFigure,
    add_colorbar,
    checked_array,
    styled,
)

_CELL = 0.55  # inches of a class, less in figures that reach `_LARGEST`
_SMALLEST, _LARGEST = 2.0, 11.0  # inches of the matrix
_POINTS_PER_INCH = 72
_MOST_NUMBERS = 20  # classes of a matrix with numbers in its cells
_LONGEST_NAME = 28  # characters of a class


@styled()
def plot_confusion_matrix(
    confusion: ArrayLike,
    class_names: Sequence[str],
    title: str = "Confusion matrix",
) -> Figure:
    """Plots how often each class is predicted for each class.

    The colour of a cell is its part of the examples of the correct class, so that rare
    classes are as visible as frequent ones. Up to 20 classes, the cells have the
    numbers of predictions.

    Args:
        confusion: array of shape `(classes, classes)`, a row for each correct class, a
            column for each predicted class, any numeric type.
        class_names: list of `classes` str.
        title: str, title of the figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if the numbers are not finite, or their shape does not match the
            number of names.

    Example:

    >>> from keras_transformer import plotting
    >>> figure = plotting.plot_confusion_matrix([[8, 1], [2, 5]], ["bad", "good"])
    >>> figure.axes[0].get_xlabel()
    'predicted class'
    """
    size = len(class_names)
    counts = checked_array(
        "confusion", confusion, {"correct_classes": size, "predicted_classes": size}
    )
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    names = [_shortened(name) for name in class_names]
    cell = min(_CELL, _LARGEST / size)
    font_size = min(10, 0.7 * _POINTS_PER_INCH * cell)
    beside = 0.7 * font_size / _POINTS_PER_INCH * max(map(len, names))  # inches
    side = max(cell * size, _SMALLEST)
    figure = NotebookFigure(figsize=(side + beside + 1.8, side + beside + 1))
    axes = figure.add_subplot()
    numbers = [[f"{count:,.0f}" if count else "" for count in row] for row in counts]
    longest = max(len(number) for row in numbers for number in row)
    seaborn.heatmap(
        shares,
        ax=axes,
        cmap=SCORE_COLORS,
        vmin=0,
        vmax=1,
        cbar=False,
        linewidths=0.5,
        annot=np.array(numbers) if size <= _MOST_NUMBERS else None,
        fmt="",
        annot_kws={"size": min(font_size, 90 * cell / max(longest, 3))},
    )
    positions = np.arange(size) + 0.5
    axes.set_xticks(positions, labels=names, rotation=90, fontsize=font_size)
    axes.set_yticks(positions, labels=names, rotation=0, fontsize=font_size)
    axes.tick_params(length=0)
    axes.set(xlabel="predicted class", ylabel="correct class", title=title)
    add_colorbar(figure, [axes], axes.collections[0], "part of the correct class")
    return figure


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
