"""Plots of positional encodings."""

from collections.abc import Sequence

import numpy as np
import seaborn
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from keras_transformer.plotting.drawing import (
    SIGNED_COLORS,
    NotebookFigure,
    add_colorbar,
    checked_array,
    styled,
)


@styled()
def plot_positional_encoding(encoding: ArrayLike) -> Figure:
    """Plots a positional encoding as an image: a row per position.

    Args:
        encoding: array of shape `(length, hidden_dim)`, any float type.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if the encoding is not a finite matrix.

    Example:

    >>> import numpy as np
    >>> from keras_transformer import plotting
    >>> angles = np.arange(50)[:, None] / 10000 ** (np.arange(64) / 64)
    >>> figure = plotting.plot_positional_encoding(np.sin(angles))
    >>> figure.axes[0].get_ylabel()
    'position'

    References:
        - Vaswani et al., 2017, section 3.5.
    """
    table = checked_array("encoding", encoding, {"length": None, "hidden_dim": None})
    figure = NotebookFigure(figsize=(7.5, 4.5))
    axes = figure.add_subplot()
    highest = np.abs(table).max()
    image = axes.imshow(
        table,
        aspect="auto",
        interpolation="nearest",
        cmap=SIGNED_COLORS,
        vmin=-highest,
        vmax=highest,
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="dimension", ylabel="position", title="Positional encoding")
    add_colorbar(figure, [axes], image, "value")
    return figure


@styled()
def plot_positional_encoding_waves(
    encoding: ArrayLike, dimensions: Sequence[int] | None = None
) -> Figure:
    """Plots dimensions of a positional encoding as curves over the positions.

    Args:
        encoding: array of shape `(length, hidden_dim)`, any float type.
        dimensions: list of int from 0 to `hidden_dim - 1`. Default: four of the
            first half, in which the sinusoidal encoding has wavelengths from 2π to
            about 200 positions.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if the encoding is not a finite matrix, or `dimensions` is empty
            or out of range.

    Example:

    >>> import numpy as np
    >>> from keras_transformer import plotting
    >>> angles = np.arange(50)[:, None] / 10000 ** (np.arange(64) / 64)
    >>> figure = plotting.plot_positional_encoding_waves(np.sin(angles), [0, 20])
    >>> [axes.get_title("left") for axes in figure.axes]
    ['dimension 0', 'dimension 20']

    References:
        - Vaswani et al., 2017, section 3.5.
    """
    table = checked_array("encoding", encoding, {"length": None, "hidden_dim": None})
    hidden_dim = table.shape[1]
    if dimensions is None:
        dimensions = sorted({hidden_dim * eighth // 8 for eighth in range(4)})
    if len(dimensions) == 0 or not all(0 <= index < hidden_dim for index in dimensions):
        raise ValueError(
            f"`dimensions` must be one or more numbers from 0 to {hidden_dim - 1} "
            f"(hidden_dim - 1); received `dimensions={dimensions!r}`. Choose columns "
            "of `encoding`."
        )
    figure = NotebookFigure(figsize=(8, 1 + len(dimensions)))
    rows = figure.subplots(len(dimensions), sharex=True, sharey=True, squeeze=False)
    colors = seaborn.color_palette("flare", len(dimensions))
    for axes, index, color in zip(rows.flat, dimensions, colors, strict=True):
        axes.plot(table[:, index], color=color)
        axes.set_title(f"dimension {index}", loc="left", fontsize="small")
        axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("position")
    figure.suptitle("Positional encoding")
    figure.supylabel("value", fontsize="medium")
    return figure
