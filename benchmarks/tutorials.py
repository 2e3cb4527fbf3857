r"""Compares the tutorials on translation of this library, Keras and TensorFlow.

All sides learn the same task with the same sizes of model and vocabulary and for the
same number of epochs: tokenizer, batches, optimizer, dropout and search are those of
each tutorial. `ours` is `examples/tutorials/translation.py`; `keras` is the tutorial of
Keras, which defines the blocks; `keras_hub` is that tutorial with the tokenizer, the
layers and the sampler of KerasHub; `tensorflow` is the tutorial of TensorFlow.

The lines are those of the module of the side in `tutorial_sides/` without empty lines,
comments and docstrings. The speed of training is that of the steps of all epochs except
the first, without validation. The minutes of training include the vocabulary,
compilation, validation and checkpoints. The seconds of translation include compilation.

The default is a number of epochs, which makes a result independent of the machine and
its load. With `--minutes`, each side instead stops at the end of the epoch in which the
time ends. Each side runs in a separate process. On one core (`taskset --cpu-list 0
python …`) seconds are processor time, which other processes affect little.

    python benchmarks/tutorials.py --train train.en train.de --valid val.en val.de \
        --test test.en test.de
"""

import argparse
import json
import pathlib
import tempfile
from typing import Any

from training import environment, in_a_process, report
from tutorial_sides.measuring import run

SIDES = {
    "ours": ("ours", "ours"),
    "keras": ("Keras", "keras_layers"),
    "keras_hub": ("KerasHub", "keras_hub"),
    "tensorflow": ("TensorFlow", "tensorflow_layers"),
}
EPOCHS = 20
MOST_EPOCHS = 1000  # with `--minutes`
SHARE = 50  # training pairs per test pair with `--lines`


def main() -> None:
    """Prints a table with a row per side and, with `--json`, writes all figures."""
    parser = make_parser()
    options = parser.parse_args()
    if not (options.train and options.valid and options.test):
        parser.print_usage()
        print("Requires --train, --valid and --test.")
        return
    epochs = options.epochs or (MOST_EPOCHS if options.minutes else EPOCHS)
    vocabulary_size = options.vocabulary_size
    results: dict[str, dict[str, Any]] = {}
    print(environment())
    with tempfile.TemporaryDirectory() as folder:
        files = {
            name: tuple(getattr(options, name)) for name in ("train", "valid", "test")
        }
        if options.lines:
            files = shortened(files, options.lines, pathlib.Path(folder))
            vocabulary_size = min(vocabulary_size, 2 * options.lines)
        for side in options.sides:
            name, module = SIDES[side]
            task = module, files, vocabulary_size, epochs, options.minutes
            results[name] = in_a_process(run, *task, backend="tensorflow")
            numbers = {
                figure: value
                for figure, value in results[name].items()
                if not isinstance(value, str)
            }
            report(name, numbers)
            if options.json:
                write_json(options, results)
    print_table(results)
    print(f"\nBLEU: {next(iter(results.values()))['signature']}")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("train", "valid", "test"):
        parser.add_argument(
            f"--{name}", nargs=2, metavar="FILE", help="source and target text"
        )
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=[*SIDES])
    parser.add_argument(
        "--epochs",
        type=int,
        help=f"default: {EPOCHS}, those of the tutorial of TensorFlow",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="train each side for this time, up to the end of the epoch",
    )
    parser.add_argument("--vocabulary-size", type=int, default=8000, metavar="N")
    parser.add_argument(
        "--lines",
        type=int,
        metavar="N",
        help=f"only N pairs of the training text, N / {SHARE} of the others, and at "
        "most 2 · N subwords",
    )
    parser.add_argument("--json", metavar="FILE")
    return parser


def shortened(
    files: dict[str, tuple[str, ...]], lines: int, folder: pathlib.Path
) -> dict[str, tuple[str, ...]]:
    """Writes the first lines of the files to a folder and returns their paths."""
    short = {}
    for name, pair in files.items():
        count = lines if name == "train" else max(1, lines // SHARE)
        paths = [folder / f"{name}.{number}" for number in range(len(pair))]
        for path, file in zip(paths, pair, strict=True):
            text = pathlib.Path(file).read_text("utf-8").splitlines()[:count]
            path.write_text("\n".join(text) + "\n", "utf-8")
        short[name] = tuple(map(str, paths))
    return short


def print_table(results: dict[str, dict[str, Any]]) -> None:
    print(
        "\n| tutorial | lines of code | parameters | epochs | training, min "
        "| target tokens/s | pairs/s | translation, s | BLEU | load of others |"
    )
    print("|" + " --- |" * 10)
    for name, row in results.items():
        cells = [
            name,
            f"{row['lines']}",
            f"{row['parameters']:,}",
            f"{row['epochs']}",
            f"{row['training_minutes']:.1f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['pairs_per_second']:,.0f}",
            f"{row['translation_seconds']:,.0f}",
            f"{row['bleu']:.2f}",
            f"{row['taken_by_others']:.0%}",
        ]
        print("|", " | ".join(cells), "|")


def write_json(options: argparse.Namespace, results: dict[str, Any]) -> None:
    with open(options.json, "w") as file:
        json.dump({"options": vars(options), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
