r"""Trains the Transformer with one thing changed at a time, and other architectures.

A table like table 3 of Vaswani et al. (2017), for its direction only: a few epochs on
little text, and one seed (the row `another-seed` tells how much that is worth). The
first row, `base`, is the README's recipe: `transformer_tiny` with pre-norm, dropout
0.3, none of the attention scores, label smoothing 0.1; but half of the steps warm up,
as there are so few. The others change the number of heads or layers, dropout, label
smoothing, positions, or leave out the residual connections or the layer
normalisations; `r-drop` trains with `r_drop=5`, two passes a step.

Rows `lstm` and `convolution` are for the paper's claim that attention is all you need:
models of stock Keras layers (`ablation_models/`) with as many parameters, trained by
`fit` on the same batches with the same loss and optimizer, their gradients clipped. As
the best learning rate is not the same for all, rows that end in `-slow` have a quarter
of it, and the better row stands for its architecture.

Figures are those of the validation set after the last epoch: cross-entropy without
smoothing in nats a token, perplexity, accuracy of the next token, and BLEU of greedy
translations. Seconds are those of a training epoch, the median of all, validation and
(from three epochs on) compilation apart: by the wall, and of all processor cores in
use together, which others on the machine disturb less. Those to a perplexity are so
many of the latter for each epoch; between epochs its logarithm is interpolated.

    python benchmarks/ablations.py --train train.en train.de --valid val.en val.de \
        --lowercase --output runs/ablations --plot runs/ablations.png

A run that was stopped goes on at the last whole epoch of its row when the same command
is given again. `--rows` trains some rows only; several processes may share the work in
one folder, each with rows of its own. With `--rows` alone nothing is trained, but the
tables are printed.
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

from keras_transformer.files import written_whole


def main() -> None:
    """Trains what is missing, prints the tables and draws the picture."""
    parser = make_parser()
    options = parser.parse_args()
    if not (options.train and options.valid and options.output):
        parser.print_usage()
        print("Nothing to do without --train, --valid and --output.")
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
    parser.add_argument("--output", metavar="FOLDER", help="what is finished, as JSON")
    parser.add_argument("--lowercase", action="store_true", help="ignore case")
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
        help="of the validation set, to time; if not given, the lowest that all reach",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="picture to write, once `base` is finished"
    )
    parser.add_argument("--verbose", type=int, choices=(0, 1, 2), default=2)
    return parser


def keep_recipe(options: argparse.Namespace, folder: pathlib.Path) -> Recipe:
    """Refuses a folder with rows that were trained in another way."""
    values = {**vars(options), "backend": keras.backend.backend()}
    names = [field.name for field in dataclasses.fields(Recipe)]
    recipe = Recipe(**{name: values[name] for name in names})
    path = folder / "recipe.json"
    if path.exists():
        kept = Recipe(**json.loads(path.read_text()))
        if kept != recipe:
            sys.exit(
                "`--output` must be a folder whose rows are trained alike; received "
                f"`--output {folder}`, where they have {kept}, not {recipe}. Take "
                "another folder."
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
    """The figures of the rows that are finished, in the order of the table."""
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
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        file.write(json.dumps(value, indent=1).encode())


if __name__ == "__main__":
    main()
