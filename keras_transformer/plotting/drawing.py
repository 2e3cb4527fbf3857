"""Style, colours and checks of arrays of all figures."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import matplotlib
import numpy as np
import seaborn
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

SCORE_COLORS = "rocket_r"
SIGNED_COLORS = "vlag"

# Matplotlib tries them in this order for each character. The last font has a glyph
# for every script.
_FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK JP",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Arial Unicode MS",
    "Last Resort High-Efficiency",
)


class NotebookFigure(Figure):
    """A figure that a notebook displays, also if pyplot is not imported."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", bbox_inches="tight")
        return file.getvalue()


@contextmanager
def styled() -> Iterator[None]:
    """Decorates a function that plots with the settings of all figures."""
    installed = font_manager.get_font_names()
    with matplotlib.rc_context(
        {
            "axes.grid": False,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "figure.constrained_layout.h_pad": 0.1,
            "figure.constrained_layout.use": True,
            "figure.constrained_layout.w_pad": 0.1,
            "figure.dpi": 144,
            "font.family": [font for font in _FONTS if font in installed],
            "font.size": 10,
            "text.parse_math": False,  # a token may hold a "$"
        }
    ):
        yield


def checked_array(
    name: str, value: ArrayLike, shape: Mapping[str, int | None]
) -> np.ndarray:
    """Returns a float64 array after checks of its shape and its values.

    `shape` has the size of each axis by its name; `None` allows any size but 0.
    """
    array = np.asarray(value, dtype="float64")
    sizes = tuple(shape.values())
    fits = array.ndim == len(sizes) and all(
        size and expected in (None, size)
        for size, expected in zip(array.shape, sizes, strict=True)
    )
    if not fits:
        axes = (f"{axis}={size}" if size else axis for axis, size in shape.items())
        raise ValueError(
            f"`{name}` must have the shape ({', '.join(axes)}); received "
            f"`{name}.shape={array.shape}`. Select one item of the batch, and pass one "
            "label for each row and column."
        )
    if not np.isfinite(array).all():
        raise ValueError(
            f"`{name}` must be finite; received "
            f"`{name}={array[~np.isfinite(array)][0]}` in at least one place. Find the "
            "layer that computes it."
        )
    return array


def add_colorbar(
    figure: Figure, axes: Sequence[Axes], mappable: ScalarMappable, label: str
) -> None:
    """Adds one colour bar for all `axes` to a figure."""
    colorbar = figure.colorbar(mappable, ax=axes, label=label, aspect=30, pad=0.02)
    colorbar.outline.set_visible(False)


def score_color(value: float) -> tuple[float, ...]:
    """Returns the red, green, blue and alpha of a score from 0 to 1."""
    return seaborn.color_palette(SCORE_COLORS, as_cmap=True)(value)
