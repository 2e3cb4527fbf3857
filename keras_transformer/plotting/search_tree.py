"""The hypotheses of a beam search as a tree."""

from collections.abc import Hashable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from keras_transformer.plotting.drawing import score_color, styled

Path = tuple[Hashable, ...]

_LIGHT, _BEST = score_color(0.15), score_color(0.75)
_ROW = 0.36  # inches


@styled()
def plot_search_tree(
    paths: Sequence[Path],
    scores: Sequence[float],
    best: Sequence[int] = (),
    title: str = "Beam search",
) -> Figure:
    """Tree of all hypotheses of a beam search, those of the result marked.

    It grows from left to right, a step a column. Behind each hypothesis that was
    left, and each that has ended, stands its score.

    Args:
        paths: list of tuples of tokens, every hypothesis that was kept at a step:
            `SearchTree.paths`.
        scores: list of floats, one for each path.
        best: list of ints, which of the paths are the result, best first.
        title: title of the figure.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if there is no path, or not one score for each.

    Example:

    >>> from keras_transformer import plotting
    >>> paths = [("ein",), ("der",), ("ein", "hund"), ("ein", "mann")]
    >>> figure = plotting.plot_search_tree(paths, [-0.1, -2.5, -0.6, -1.2], best=[2])
    >>> sorted(text.get_text() for text in figure.axes[0].texts)[-2:]
    ['hund', 'mann']
    """
    if not paths or len(paths) != len(scores):
        raise ValueError(
            "`paths` must be at least one, with one of `scores` each; received "
            f"{len(paths)} paths and {len(scores)} scores."
        )
    score_of = dict(zip(map(tuple, paths), scores, strict=True))
    rows = _rows(score_of)
    steps = max(map(len, rows))
    marked = {
        tuple(paths[number])[:length]
        for number in best
        for length in range(len(paths[number]) + 1)
    }
    height = 1 + _ROW * (1 + max(rows.values()))
    figure = Figure(figsize=(1.6 + 1.05 * steps, height))
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
    """Where each hypothesis stands: leaves below each other, others amid their own."""
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
    axes.plot(
        [step - 1, step],
        [above, row],
        color=_BEST if is_best else _LIGHT,
        linewidth=2 if is_best else 1,
        zorder=1,
    )


def _draw_token(axes: Axes, path: Path, row: float, is_best: bool) -> None:
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
