"""Creates the images of the documentation in docs/images.

python docs/images.py
"""

import io
import pathlib

import numpy as np
from keras import ops
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.console import Console

from keras_transformer.layers import (
    AttentionPattern,
    GlobalLocal,
    LocalWindow,
    PositionalEncoding,
    Strided,
)
from keras_transformer.plotting import (
    plot_attention_pattern,
    plot_positional_encoding,
    plot_positional_encoding_waves,
    plot_schedule,
)
from keras_transformer.training import WarmupInverseSquareRoot
from keras_transformer_runtime.display import Stage

FOLDER = pathlib.Path(__file__).parent / "images"


def main(folder: pathlib.Path = FOLDER) -> None:
    """Writes each image to a file."""
    figures = {
        "attention_patterns": attention_patterns(),
        "blocks": blocks(),
        "positional_encoding": plot_positional_encoding(sinusoids()),
        "positional_encoding_waves": plot_positional_encoding_waves(
            sinusoids(), [0, 8]
        ),
        "schedule": schedule(),
    }
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=100, pil_kwargs={"optimize": True})
    (folder / "train.svg").write_text(terminal(), "utf-8")


def terminal() -> str:
    """Returns a terminal in the third epoch of the run on the page of training."""
    page = (FOLDER.parent / "training.md").read_text("utf-8")
    log = page.partition("```text\n")[2].partition("Epoch 3/4")[0]
    command = "$ keras-transformer train --train train.en train.de --output runs/en-de"
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True)
    console.print(f"{command}\n{log}", end="", highlight=False, markup=False)
    stage = Stage("Epoch 3/4", total=92, done=30)
    stage.details = ["64 s left", "loss 4.700", "5,992 tokens/s"]  # in such a run
    console.print(stage.line(79))
    return console.export_svg(title="keras-transformer train", unique_id="train")


def attention_patterns(length: int = 16) -> Figure:
    """Draws the patterns without and with a causal mask."""
    patterns = {
        "LocalWindow(3)": mask_of(LocalWindow(3), length),
        "Strided(2, 6)": mask_of(Strided(stride=2, radius=6), length),
        "GlobalLocal(2, 2)": mask_of(GlobalLocal(radius=2, global_tokens=2), length),
    }
    causal = np.tri(length, dtype=bool)
    masks = {"full": np.ones_like(causal), **patterns, "causal": causal}
    masks |= {f"causal {name}": mask & causal for name, mask in patterns.items()}
    return plot_attention_pattern(masks)


def blocks(length: int = 32, radius: int = 4) -> Figure:
    """Frames the scores that each implementation computes for a local window."""
    local = mask_of(LocalWindow(radius), length)
    figure = plot_attention_pattern(
        {
            f"dense: {length} × {length} scores": local,
            f"blockwise: {length} × {3 * radius}": local,
            f"blockwise, causal: {length} × {2 * radius}": local
            & np.tri(length, dtype=bool),
        }
    )
    dense, blockwise, causal = figure.axes
    frame(dense, range(length), range(length))
    for start in range(0, length, radius):
        queries = range(start, start + radius)
        before, after = max(start - radius, 0), min(start + 2 * radius, length)
        frame(blockwise, queries, range(before, after))
        frame(causal, queries, range(before, start + radius))
    return figure


def frame(axes: Axes, queries: range, keys: range) -> None:
    """Draws a frame around the scores of a range of queries and keys."""
    corner = keys.start, queries.start
    axes.add_patch(
        Rectangle(corner, len(keys), len(queries), fill=False, clip_on=False)
    )


def sinusoids(length: int = 64, hidden_dim: int = 64) -> np.ndarray:
    """Returns the sinusoidal encoding `(length, hidden_dim)`."""
    encoded = PositionalEncoding()(np.zeros((1, length, hidden_dim), "float32"))
    return ops.convert_to_numpy(encoded)[0]


def schedule(num_steps: int = 10_000) -> Figure:
    """Draws the learning rate schedule of the README."""
    rates = WarmupInverseSquareRoot(peak_learning_rate=4e-3, warmup_steps=2000)
    return plot_schedule(ops.convert_to_numpy(rates(np.arange(num_steps))))


def mask_of(pattern: AttentionPattern, length: int) -> np.ndarray:
    """Returns the boolean mask `(length, length)` of a pattern."""
    positions = np.arange(length)
    return ops.convert_to_numpy(pattern.mask(positions, positions))


if __name__ == "__main__":
    main()
