r"""Train a translation model on parallel text and translate with it.

The script runs the recipe of the command `keras-transformer train`, which has more
options. docs/training.md describes them, and the steps of a run. A text is two files,
or one file with a tab between source and target.

    python examples/translate.py --train train.en train.de \
        --valid val.en val.de --test test.en test.de --output runs/en-de

The same command resumes a stopped run. The output folder holds `model.keras`, which
loads on every backend, a SavedModel that takes and returns strings, and `options.toml`,
with which the command reproduces the run.
"""

import argparse

from keras_transformer.dataset import read_pairs
from keras_transformer.recipe import Recipe, train


def main(arguments: list[str] | None = None) -> float:
    """Runs the example and returns BLEU on the test set, if any, or validation set."""
    options = parse_arguments(arguments)
    recipe = Recipe(**vars(options))
    model, search, figures = train(recipe)
    print(f"BLEU {figures.bleu:.2f}  ({figures.bleu_signature})")
    print(f"chrF {figures.chrf:.2f}  ({figures.chrf_signature})")

    source, target = (*(options.test or options.valid), None)[:2]
    sources = [source for source, _ in read_pairs(source, target)][:5]
    texts, scores = model.generate(sources, search, return_scores=True)
    for source, text, score in zip(sources, texts, scores, strict=True):
        print(f"  {source}\n    → {text}  ({score:.2f})")
    return figures.bleu


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", nargs="+", required=True, help="training text")
    parser.add_argument("--valid", nargs="+", required=True, help="validation text")
    parser.add_argument("--test", nargs="+", help="test text")
    parser.add_argument("--output", required=True, help="folder for all results")
    parser.add_argument("--lowercase", action="store_true", help="lower-case all text")
    parser.add_argument("--vocabulary-size", type=int)
    parser.add_argument("--tokens-per-batch", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument(
        "--no-export",
        dest="export",
        action="store_false",
        help="do not write a SavedModel",
    )
    parser.add_argument("--verbose", type=int, choices=(0, 1, 2), default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
