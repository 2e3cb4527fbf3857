"""Plots of the hypotheses of a beam search."""

from collections.abc import Hashable, Sequence
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_transformer.plotting.drawing import NotebookFigure, score_color, styled

# The tokens of a hypothesis. `()` is the root of the tree.
Path: TypeAlias = tuple[Hashable, ...]

_LIGHT, _BEST = score_color(0.15), score_color(0.75)
_ROW_HEIGHT = 0.36  # inches


@styled()
def plot_search_tree(
    paths: Sequence[Path],
    scores: Sequence[float],
    best: Sequence[int] = (),
    title: str = "Beam search",
) -> Figure:
    """Plots the hypotheses of a beam search as a tree and marks the result.

    Each column is a step of the search. The label of a leaf is the score of its
    hypothesis, which is finished or was pruned.

    Args:
        paths: list of tuples of tokens, the hypotheses that the beam search kept at
            any step: `SearchTree.paths`.
        scores: list of floats, the score of each path.
        best: list of ints, indices of the paths that are the result.
        title: str, title of the figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if `paths` is empty, or `scores` has another length.

    Example:

    >>> from keras_transformer import plotting
    >>> paths = [("ein",), ("der",), ("ein", "hund"), ("ein", "mann")]
    >>> figure = plotting.plot_search_tree(paths, [-0.1, -2.5, -0.6, -1.2], best=[2])
    >>> sorted(text.get_text() for text in figure.axes[0].texts)[-2:]
    ['hund', 'mann']
    """
    if not paths or len(paths) != len(scores):
        raise ValueError(
            "`paths` must be a list of at least one path, and `scores` must have one "
            f"score per path; received {len(paths)} paths and {len(scores)} scores. "
            "Pass all fields of a `SearchTree`."
        )
    score_of = dict(zip(map(tuple, paths), scores, strict=True))
    rows = _rows(score_of)
    steps = max(map(len, rows))
    marked = {  # the result and all its beginnings
        tuple(paths[index])[:length]
        for index in best
        for length in range(len(paths[index]) + 1)
    }
    height = 1 + _ROW_HEIGHT * (1 + max(rows.values()))
    figure = NotebookFigure(figsize=(1.6 + 1.05 * steps, height))
    axes = figure.add_subplot()
    for path, row in rows.items():
        is_best = path in marked
        if path:
            _draw_edge(axes, len(path), rows[path[:-1]], row, is_best)
            _draw_token(axes, path, row, is_best)
        if path in score_of and not any(path == other[:-1] for other in rows):
            axes.annotate(
                f"{score_of[path]:.2f}",
                (len(path) + 0.45, row),
                verticalalignment="center",
                fontsize=8,
                color=_BEST if is_best else "black",
            )
    axes.set(xlim=(-0.2, steps + 1), title=title, xlabel="step")
    axes.set_ylim(max(rows.values()) + 0.6, -0.6)
    axes.set_xticks(range(1, steps + 1))
    axes.set_yticks([])
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    return figure


def _rows(score_of: dict[Path, float]) -> dict[Path, float]:
    """Returns the row of each node: leaves in order, parents between their children."""
    children: dict[Path, list[Path]] = {}
    nodes = {path[:length] for path in score_of for length in range(len(path) + 1)}
    for path in sorted(nodes, key=lambda path: -score_of.get(path, 0.0)):
        if path:
            children.setdefault(path[:-1], []).append(path)
    rows: dict[Path, float] = {}

    def place(path: Path) -> float:
        below = [place(child) for child in children.get(path, [])]
        leaves = sum(1 for other in rows if other not in children)
        rows[path] = (below[0] + below[-1]) / 2 if below else float(leaves)
        return rows[path]

    place(())
    return rows


def _draw_edge(axes: Axes, step: int, above: float, row: float, is_best: bool) -> None:
    """Draws the line from a parent in row `above` to a node in row `row`."""
    axes.plot(
        [step - 1, step],
        [above, row],
        color=_BEST if is_best else _LIGHT,
        linewidth=2 if is_best else 1,
        zorder=1,
    )


def _draw_token(axes: Axes, path: Path, row: float, is_best: bool) -> None:
    """Draws the last token of a path in a box."""
    axes.annotate(
        str(path[-1]),
        (len(path), row),
        horizontalalignment="center",
        verticalalignment="center",
        fontsize=9,
        bbox={
            "boxstyle": "round,pad=0.25",
            "facecolor": "white",
            "edgecolor": _BEST if is_best else _LIGHT,
            "linewidth": 1.5 if is_best else 0.8,
        },
    )
