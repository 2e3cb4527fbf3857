"""Attention masks as squares: which positions attend to which."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from keras_transformer.plotting.drawing import SCORE_COLORS, checked_array, styled

_PANEL_SIZE = 2.0  # inches
_MOST_COLUMNS = 4
_ATTENDED, _ITSELF = 0.45, 0.75  # on the scale of the colours of scores
_GAP = 0.1  # between cells, as a part of one


@styled()
def plot_attention_pattern(mask: ArrayLike | Mapping[str, ArrayLike]) -> Figure:
    """Squares with one attention mask or several: queries down, keys across.

    A filled cell is a key that the query attends to. Where there are as many keys as
    queries, the key at the query's own position is darker: a causal mask fills nothing
    to its right.

    Args:
        mask: boolean array of shape `(query_length, key_length)`, True = attend; or a
            dictionary of such, the title of each to its mask.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if there is no mask, or one is not boolean or no matrix.

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
    """The masks by their titles, 1 where a query attends."""
    masks = mask if isinstance(mask, Mapping) else {"Attention pattern": mask}
    if not masks:
        raise ValueError(
            "`mask` must be one mask or more; received `mask={}`. Give the dictionary "
            "a title and its mask."
        )
    shape = {"query_length": None, "key_length": None}
    checked = {title: checked_array("mask", m, shape) for title, m in masks.items()}
    for title, cells in checked.items():
        others = cells[(cells != 0) & (cells != 1)]
        if others.size:
            raise ValueError(
                "`mask` must be boolean, True = attend; received "
                f"`{others[0]}` in the mask of {title!r}. To see attention scores, "
                "call `plot_attention`."
            )
    return checked


def _draw_mask(axes: Axes, mask: np.ndarray) -> None:
    query_length, key_length = mask.shape
    shades = _ATTENDED * mask
    if query_length == key_length:
        np.fill_diagonal(shades, _ITSELF * mask.diagonal())
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
