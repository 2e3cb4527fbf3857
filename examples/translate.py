r"""Train a translation model on parallel text and translate with it.

The script runs the recipe of the command `keras-transformer train`, which has more
options. docs/training.md describes them, and the steps of a run. A text is two files,
or one file with a tab between source and target; docs/data.md has further forms.

    python examples/translate.py --train train.en train.de \
        --valid val.en val.de --test test.en test.de --output runs/en-de

The same command resumes a stopped run. The output folder holds `model.keras`, which
loads on every backend, a SavedModel that takes and returns strings, and `options.toml`,
with which the command reproduces the run.

`attention.png` shows, for each head of the last layer of the encoder, what a word of a
source attends to: "it" in the first source that has this word, or the word and the
sentence that you name:

    --word it --sentence "The animal did not cross the street, it was too tired."
"""

import argparse
import pathlib
from typing import Any

import keras
import numpy as np

from keras_transformer.dataset import read_pairs
from keras_transformer.plotting import plot_attention
from keras_transformer.recipe import Recipe, train


def main(arguments: list[str] | None = None) -> float:
    """Runs the example and returns BLEU on the test set, if any, or validation set."""
    options = vars(parse_arguments(arguments))
    word, sentence = options.pop("word"), options.pop("sentence")
    recipe = Recipe(**options)
    model, search, figures = train(recipe)
    print(f"BLEU {figures.bleu:.2f}  ({figures.bleu_signature})")
    print(f"chrF {figures.chrf:.2f}  ({figures.chrf_signature})")

    source, target = (*(options["test"] or options["valid"]), None)[:2]
    sources = [source for source, _ in read_pairs(source, target)]
    texts, scores = model.generate(sources[:5], search, return_scores=True)
    for source, text, score in zip(sources, texts, scores, strict=False):
        print(f"  {source}\n    → {text}  ({score:.2f})")
    path = pathlib.Path(options["output"]) / "attention.png"
    draw_attention(model, word, [sentence] if sentence else sources, path)
    return figures.bleu


def draw_attention(
    model: Any, word: str, sources: list[str], path: pathlib.Path
) -> None:
    """Plots what each head of the encoder attends to at `word` in the first source."""
    tokenizer = model.source_tokenizer
    for source in sources:
        token_ids = tokenizer.tokenize([source], add_end=True).to_tensor().numpy()
        tokens = [tokenizer.id_to_token(int(token)) for token in token_ids[0]]
        words = [token.strip("▁").lower() for token in tokens]
        if word.lower() in words:
            break
    else:
        print(f"no picture: no source has “{word}” as one token")
        return
    start = np.array([[model.start_token_id]])
    inputs = {"encoder_token_ids": token_ids, "decoder_token_ids": start}
    _, scores = model(inputs, return_attention_scores=True)
    heads = keras.ops.convert_to_numpy(scores["encoder"][-1])[0]
    figure = plot_attention(
        heads[:, words.index(word.lower())],
        [str(1 + head) for head in range(len(heads))],
        tokens,
        query_label="head",
        key_label="token",
        title=f"What “{word}” attends to in the last layer of the encoder",
    )
    figure.savefig(path, dpi=150, bbox_inches="tight")
    print(f"attention: {path}")


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
    parser.add_argument("--word", default="it", help="the word of attention.png")
    parser.add_argument("--sentence", help="the source of attention.png")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
