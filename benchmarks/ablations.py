r"""Trains ablations of the Transformer, and other architectures.

The ablations are those of table 3 of Vaswani et al. (2017), at a small scale: few
epochs, little text and one seed. The row `another-seed` shows the variance. The first
row, `base`, is the recipe of the README: `transformer_tiny` with pre-norm, dropout 0.3,
no attention dropout and label smoothing 0.1, with a warm-up in half of the steps. The
other rows change the number of heads or layers, dropout, label smoothing or positions,
or remove the residual connections or layer normalisations. `r-drop` trains with R-Drop
(α = 5), which evaluates the model twice per step.

The rows `lstm` and `convolution` are models of Keras layers (`ablation_models/`) with
as many parameters, trained by `fit` on the same batches with the same loss and
optimizer, with gradient clipping. They test the claim of the paper that attention is
all you need. The best learning rate differs between architectures: rows that end in
`-slow` have a quarter of the learning rate, and the better row represents its
architecture.

The figures are those of the validation set after the last epoch: cross-entropy without
label smoothing in nats per token, perplexity, accuracy of the next token, and BLEU of
greedy search. Seconds are the median of the training epochs without validation and,
with three or more epochs, without compilation: wall time, and processor time of all
cores, which other processes affect less. The time to a perplexity is processor time;
the logarithm of the perplexity is interpolated between epochs.

    python benchmarks/ablations.py --train train.en train.de --valid val.en val.de \
        --lowercase --output runs/ablations --plot runs/ablations.png

The same command resumes a stopped run after the last complete epoch of its row.
`--rows` trains some of the rows only. Several processes can train different rows in one
folder. `--rows` without names prints the tables and trains nothing.
"""

import argparse
import dataclasses
import json
import pathlib
import shutil
import sys
import time
from typing import Any

import keras
from ablation_models.pictures import plot_rows
from ablation_models.rows import ABLATIONS, BASE, ROWS
from ablation_models.tables import (
    Figures,
    best_rows,
    curve,
    print_ablations,
    print_architectures,
)
from ablation_models.training import Recipe, Text, train
from matplotlib.figure import Figure

from keras_transformer_runtime.files import written_whole


def main() -> None:
    """Trains the missing rows, prints the tables and plots the figure."""
    parser = make_parser()
    options = parser.parse_args()
    if not (options.train and options.valid and options.output):
        parser.print_usage()
        print("Requires --train, --valid and --output.")
        return
    folder = pathlib.Path(options.output)
    recipe = keep_recipe(options, folder)
    train_rows(options.rows, recipe, folder, options.verbose)
    figures = read_figures(folder)
    print_ablations(figures)
    print_architectures(figures, options.perplexity)
    if options.plot and BASE.name in figures:
        draw(figures).savefig(options.plot)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    files: dict[str, Any] = {"nargs": 2, "metavar": ("SOURCE", "TARGET")}
    parser.add_argument("--train", **files)
    parser.add_argument("--valid", **files)
    parser.add_argument("--output", metavar="FOLDER", help="results as JSON")
    parser.add_argument("--lowercase", action="store_true", help="lower-case all text")
    parser.add_argument("--vocabulary-size", type=int, default=8000, metavar="N")
    parser.add_argument("--tokens-per-batch", type=int, default=2048, metavar="N")
    parser.add_argument("--epochs", type=int, default=8, metavar="N")
    parser.add_argument("--learning-rate", type=float, default=4e-3, metavar="PEAK")
    parser.add_argument("--warmup-steps", type=int, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument(
        "--perplexity",
        type=float,
        help="perplexity of the time column; default: the lowest that all reach",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="figure to write, if `base` is finished"
    )
    parser.add_argument("--verbose", type=int, choices=(0, 1, 2), default=2)
    return parser


def keep_recipe(options: argparse.Namespace, folder: pathlib.Path) -> Recipe:
    """Returns the recipe, or exits if the rows of the folder have another one."""
    values = {**vars(options), "backend": keras.backend.backend()}
    names = [field.name for field in dataclasses.fields(Recipe)]
    recipe = Recipe(**{name: values[name] for name in names})
    path = folder / "recipe.json"
    if path.exists():
        kept = Recipe(**json.loads(path.read_text()))
        if kept != recipe:
            sys.exit(
                "`--output` must be a folder of rows with the same recipe; received "
                f"`--output {folder}`, whose recipe is {kept} instead of {recipe}. "
                "Choose another folder."
            )
    write_json(path, dataclasses.asdict(recipe))
    return recipe


def train_rows(
    names: list[str], recipe: Recipe, folder: pathlib.Path, verbose: int
) -> None:
    missing = [name for name in names if not result_path(folder, name).exists()]
    if not missing:
        return
    text = Text(recipe, folder)
    for number, name in enumerate(missing, start=1):
        print(
            f"{time.strftime('%H:%M')} {name}, {number} of {len(missing)}", flush=True
        )
        checkpoints = folder / "checkpoints" / name
        figures = train(ROWS[name], recipe, text, checkpoints, verbose)
        write_json(result_path(folder, name), figures)
        shutil.rmtree(checkpoints)


def read_figures(folder: pathlib.Path) -> dict[str, Figures]:
    """Returns the figures of the finished rows, in the order of the table."""
    paths = {name: result_path(folder, name) for name in ROWS}
    return {
        name: json.loads(path.read_text())
        for name, path in paths.items()
        if path.exists()
    }


def draw(figures: dict[str, Figures]) -> Figure:
    curves = {name: curve(row) for name, row in best_rows(figures).items()}
    names = [row.name for row in ABLATIONS if row.name in figures]
    return plot_rows(curves, {name: figures[name]["bleu"] for name in names})


def result_path(folder: pathlib.Path, name: str) -> pathlib.Path:
    return folder / f"{name}.json"


def write_json(path: pathlib.Path, value: Any) -> None:
    """Writes a JSON file completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        file.write(json.dumps(value, indent=1).encode())


if __name__ == "__main__":
    main()
