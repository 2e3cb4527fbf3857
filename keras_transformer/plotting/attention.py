"""Heat maps and bar charts of attention scores, and plots of attention masks."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from keras_transformer.plotting.drawing import (
    SCORE_COLORS,
    NotebookFigure,
    add_colorbar,
    checked_array,
    score_color,
    styled,
)

_TOKEN_SIZE = 0.32  # inches per token, less in maps that reach `_LARGEST_MAP`
_LARGEST_MAP = 14.0  # inches
_SMALLEST_MAP = 2.0  # inches
_POINTS_PER_INCH = 72
_MOST_COLUMNS = 4
# Of masks.
_PANEL_SIZE = 2.0  # inches
_ATTENDED, _DIAGONAL = 0.45, 0.75  # values on the colour scale of scores
_GAP = 0.1  # between cells, as a fraction of a cell


@styled()
def plot_attention(
    attention_scores: ArrayLike,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    query_label: str = "target tokens",
    key_label: str = "source tokens",
    title: str = "Attention",
) -> Figure:
    """Plots a heat map of one attention head: a row per query, a column per key.

    Args:
        attention_scores: array of shape `(query_length, key_length)`, any float type.
        query_tokens: list of `query_length` str.
        key_tokens: list of `key_length` str.
        query_label: str, label of the vertical axis.
        key_label: str, label of the horizontal axis.
        title: str, title of the figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if the scores are not finite, or their shape does not match the
            numbers of tokens.

    Example:

    >>> import numpy as np
    >>> from keras_transformer import plotting
    >>> scores = np.array([[0.9, 0.1], [0.2, 0.8]])
    >>> figure = plotting.plot_attention(scores, ["une", "chaise"], ["a", "chair"])
    >>> figure.axes[0].get_xlabel()
    'source tokens'

    References:
        - Bahdanau, Cho, Bengio, 2015, figure 3.
    """
    scores = checked_array(
        "attention_scores",
        attention_scores,
        {"query_length": len(query_tokens), "key_length": len(key_tokens)},
    )
    figure, axes = _map_axes(1, query_tokens, key_tokens)
    _draw_scores(axes[0], scores, highest=scores.max())
    _label_tokens(axes[0], query_tokens, key_tokens)
    axes[0].set(xlabel=key_label, ylabel=query_label, title=title)
    add_colorbar(figure, axes, axes[0].collections[0], "attention score")
    return figure


@styled()
def plot_attention_heads(
    attention_scores: ArrayLike,
    query_tokens: Sequence[str],
    key_tokens: Sequence[str],
    query_label: str = "target tokens",
    key_label: str = "source tokens",
    title: str = "Attention heads",
) -> Figure:
    """Plots a grid of heat maps of all heads of a layer, with one colour scale.

    Args:
        attention_scores: array of shape `(num_heads, query_length, key_length)`, any
            float type.
        query_tokens: list of `query_length` str.
        key_tokens: list of `key_length` str.
        query_label: str, label of the vertical axes.
        key_label: str, label of the horizontal axes.
        title: str, title of the figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if the scores are not finite, or their shape does not match the
            numbers of tokens.

    Example:

    >>> import numpy as np
    >>> from keras_transformer import plotting
    >>> scores = np.full((8, 2, 3), 1 / 3)
    >>> figure = plotting.plot_attention_heads(scores, ["a", "b"], ["c", "d", "e"])
    >>> figure.axes[7].get_title()
    'head 8'

    References:
        - Vaswani et al., 2017, figures 3 to 5.
    """
    scores = checked_array(
        "attention_scores",
        attention_scores,
        {
            "num_heads": None,
            "query_length": len(query_tokens),
            "key_length": len(key_tokens),
        },
    )
    figure, axes = _map_axes(len(scores), query_tokens, key_tokens)
    _, columns = _grid(len(scores))
    for head, (panel, head_scores) in enumerate(zip(axes, scores, strict=True)):
        _draw_scores(panel, head_scores, highest=scores.max())
        _label_tokens(
            panel,
            query_tokens if head % columns == 0 else [],
            key_tokens if head + columns >= len(scores) else [],
        )
        panel.set_title(f"head {head + 1}", fontsize="medium")
    figure.suptitle(title)
    figure.supxlabel(key_label, fontsize="medium")
    figure.supylabel(query_label, fontsize="medium")
    add_colorbar(figure, axes, axes[0].collections[0], "attention score")
    return figure


@styled()
def plot_token_attention(
    attention_scores: ArrayLike,
    key_tokens: Sequence[str],
    query_token: str,
    key_label: str = "source tokens",
) -> Figure:
    """Plots a bar chart of the attention scores of one query.

    Args:
        attention_scores: array of shape `(key_length,)`, any float type.
        key_tokens: list of `key_length` str.
        query_token: str, token of the query.
        key_label: str, label of the vertical axis.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if the scores are not finite, or their number is not that of the
            tokens.

    Example:

    >>> from keras_transformer import plotting
    >>> figure = plotting.plot_token_attention([0.9, 0.1], ["a", "chair"], "une")
    >>> figure.axes[0].get_title()
    'Attention of “une”'
    """
    scores = checked_array(
        "attention_scores", attention_scores, {"key_length": len(key_tokens)}
    )
    figure = NotebookFigure(figsize=(6, 1.2 + _TOKEN_SIZE * max(len(scores), 3)))
    axes = figure.add_subplot()
    positions = np.arange(len(scores))
    bars = axes.barh(positions, scores, color=score_color(0.5))
    axes.bar_label(bars, fmt="{:.2f}", padding=3, color="dimgray")
    axes.set_yticks(positions, labels=[_visible(token) for token in key_tokens])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.margins(x=0.1, y=0.02)
    axes.set(
        xlabel="attention score",
        ylabel=key_label,
        title=f"Attention of “{_visible(query_token)}”",
    )
    return figure


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
    rows, columns = _grid(len(masks))
    figure = NotebookFigure(figsize=(columns * _PANEL_SIZE, rows * (_PANEL_SIZE + 0.2)))
    panels = _panels(figure, len(masks))
    for panel, (title, cells) in zip(panels, masks.items(), strict=True):
        _draw_mask(panel, cells)
        panel.set_title(title, fontsize="medium")
    figure.supxlabel("keys", fontsize="medium")
    figure.supylabel("queries", fontsize="medium")
    return figure


def _grid(count: int) -> tuple[int, int]:
    """Returns the rows and columns of a figure with `count` panels."""
    return math.ceil(count / _MOST_COLUMNS), min(count, _MOST_COLUMNS)


def _panels(figure: Figure, count: int) -> list[Axes]:
    rows, columns = _grid(count)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in panels[count:]:
        spare.remove()
    return panels[:count]


def _map_axes(
    count: int, query_tokens: Sequence[str], key_tokens: Sequence[str]
) -> tuple[Figure, list[Axes]]:
    """Returns a figure with `count` axes, sized by the number of tokens."""
    rows, columns = _grid(count)
    longest = max(rows * len(query_tokens), columns * len(key_tokens))
    cell = min(_TOKEN_SIZE, _LARGEST_MAP / longest)
    label_size = min(10, 0.7 * _POINTS_PER_INCH * cell)
    character = 0.7 * label_size / _POINTS_PER_INCH
    height, width = (
        max(cell * len(tokens), _SMALLEST_MAP) for tokens in (query_tokens, key_tokens)
    )
    beside, below = (  # inches of the token labels
        character * max(map(len, tokens)) for tokens in (query_tokens, key_tokens)
    )
    figure = NotebookFigure(
        figsize=(
            columns * (width + 0.2) + beside + 1.6,
            rows * (height + 0.3) + below + 1,
        )
    )
    axes = _panels(figure, count)
    for panel in axes:
        panel.tick_params(length=0, labelsize=label_size)
    return figure, axes


def _draw_scores(axes: Axes, scores: np.ndarray, highest: float) -> None:
    """Draws a heat map whose colour scale ends at `highest`."""
    seaborn.heatmap(
        scores,
        ax=axes,
        cmap=SCORE_COLORS,
        vmin=0,
        vmax=highest or 1,
        cbar=False,
        linewidths=0.5,
        xticklabels=False,
        yticklabels=False,
    )


def _label_tokens(
    axes: Axes, query_tokens: Sequence[str], key_tokens: Sequence[str]
) -> None:
    """Labels the rows and the columns of a heat map with the tokens."""
    upright = max(map(len, key_tokens), default=0) <= 2
    for axis, tokens, rotation in (
        (axes.yaxis, query_tokens, 0),
        (axes.xaxis, key_tokens, 0 if upright else 90),
    ):
        axis.set_ticks(
            np.arange(len(tokens)) + 0.5,
            labels=[_visible(token) for token in tokens],
            rotation=rotation,
        )


def _visible(token: str) -> str:
    """Returns the token, or its `repr` if it is blank or not printable."""
    return token if token.isprintable() and token.strip() else repr(token)


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
    points_per_cell = _POINTS_PER_INCH * _PANEL_SIZE / max(mask.shape)
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
