"""Plots of attention masks."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from keras_transformer.plotting.drawing import SCORE_COLORS, checked_array, styled

_PANEL_SIZE = 2.0  # inches
_MOST_COLUMNS = 4
_ATTENDED, _DIAGONAL = 0.45, 0.75  # values on the colour scale of scores
_GAP = 0.1  # between cells, as a fraction of a cell


@styled()
def plot_attention_pattern(mask: ArrayLike | Mapping[str, ArrayLike]) -> Figure:
    """Plots one or more attention masks: a row per query, a column per key.

    A filled cell is a key that the query attends to. In a square mask the diagonal is
    darker. A causal mask fills no cell to the right of the diagonal.

    Args:
        mask: boolean array of shape `(query_length, key_length)`, True = attend; or a
            dictionary that maps titles to such arrays.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if there is no mask, or a mask is not a boolean matrix.

    Example:

    >>> import numpy as np
    >>> from keras_transformer import plotting
    >>> causal = np.tri(7, dtype=bool)
    >>> figure = plotting.plot_attention_pattern({"all": causal | 1, "causal": causal})
    >>> [axes.get_title() for axes in figure.axes]
    ['all', 'causal']

    References:
        - Child et al., 2019, figure 3.
        - Beltagy et al., 2020, figure 2.
    """
    masks = _checked_masks(mask)
    columns = min(len(masks), _MOST_COLUMNS)
    rows = math.ceil(len(masks) / columns)
    figure = Figure(figsize=(columns * _PANEL_SIZE, rows * (_PANEL_SIZE + 0.2)))
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in panels[len(masks) :]:
        spare.remove()
    for panel, (title, cells) in zip(panels, masks.items(), strict=False):
        _draw_mask(panel, cells)
        panel.set_title(title, fontsize="medium")
    figure.supxlabel("keys", fontsize="medium")
    figure.supylabel("queries", fontsize="medium")
    return figure


def _checked_masks(
    mask: ArrayLike | Mapping[str, ArrayLike],
) -> dict[str, np.ndarray]:
    """Returns float64 masks by title, 1 where a query attends to a key."""
    masks = mask if isinstance(mask, Mapping) else {"Attention pattern": mask}
    if not masks:
        raise ValueError(
            "`mask` must hold at least one mask; received `mask={}`. Add a title and "
            "its mask to the dictionary."
        )
    shape = {"query_length": None, "key_length": None}
    checked = {title: checked_array("mask", m, shape) for title, m in masks.items()}
    for title, cells in checked.items():
        others = cells[(cells != 0) & (cells != 1)]
        if others.size:
            raise ValueError(
                "`mask` must be boolean, True = attend; received "
                f"`{others[0]}` in the mask of {title!r}. Use `plot_attention` to plot "
                "attention scores."
            )
    return checked


def _draw_mask(axes: Axes, mask: np.ndarray) -> None:
    """Draws a mask in which 1 = attend."""
    query_length, key_length = mask.shape
    shades = _ATTENDED * mask
    if query_length == key_length:
        np.fill_diagonal(shades, _DIAGONAL * mask.diagonal())
    points_per_cell = 72 * _PANEL_SIZE / max(mask.shape)
    axes.pcolormesh(
        shades,
        cmap=SCORE_COLORS,
        vmin=0,
        vmax=1,
        edgecolors="white",
        linewidth=_GAP * points_per_cell,
    )
    axes.invert_yaxis()
    axes.set(aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
