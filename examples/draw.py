"""Draws handwritten digits with a language model whose words are pixels.

A decoder-only Transformer reads a digit and the pixels so far, row by row, and predicts
the next pixel: one of 17 shades. It takes about 2 minutes on two cores:

    python examples/draw.py

The pictures are the digits of scikit-learn, 8 by 8 pixels. Of 1,797 pictures, 360 are
not trained on. The loss on them is printed in nats per pixel, and that of the
frequencies of the shades of each pixel of each digit, without the previous pixels.
`digits.png` shows drawings, and the training picture nearest to the last drawing of
each digit. The share of the drawings that a support vector machine recognises is
printed.
"""

import argparse
import pathlib
from typing import Any

import keras
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.svm import SVC

import keras_transformer as kt

PIXELS, SHADES = 64, 17
TEST = 360  # pictures
# The vocabulary: 4 special tokens, 10 digits, 17 shades.
DIGIT = 4
SHADE = DIGIT + 10
VOCABULARY_SIZE = SHADE + SHADES


def main(arguments: list[str] | None = None) -> float:
    """Runs the example and returns the loss on the test pictures in nats per pixel."""
    options = parse_arguments(arguments)
    keras.utils.set_random_seed(options.seed)
    digits = load_digits()
    order = np.random.default_rng(options.seed).permutation(len(digits.data))
    pictures, labels = digits.data[order].astype("int32"), digits.target[order]
    train, train_labels = pictures[TEST:], labels[TEST:]
    test, test_labels = pictures[:TEST], labels[:TEST]

    model = build_model()
    updates = options.epochs * -(-len(train) // 64)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, updates, warmup_target=3e-3, warmup_steps=updates // 20
    )
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.1, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma", "scale"])
    model.compile(optimizer, kt.LabelSmoothedCrossEntropy(0.0))
    model.fit(
        *token_ids(train, train_labels),
        batch_size=64,
        epochs=options.epochs,
        callbacks=[kt.TrainingProgress()],
    )

    frequencies = loss_of_frequencies(train, train_labels, test, test_labels)
    print(f"loss of the frequencies: {frequencies:.3f} nats per pixel")
    loss = model.evaluate(*token_ids(test, test_labels), batch_size=64, verbose=0)
    print(f"loss of the model: {loss:.3f} nats per pixel")

    prompts = [[DIGIT + digit] for digit in range(10)]
    search = kt.Sampling(options.samples, top_p=0.95)
    result = model.generate(
        prompts, search, max_length=PIXELS, min_length=PIXELS, seed=options.seed
    )
    drawings = np.clip(result.token_ids - SHADE, 0, SHADES - 1)  # (10, samples, 64)
    path = pathlib.Path(options.output) / "digits.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    show(drawings, train).savefig(path, bbox_inches="tight")
    print(f"drawings: {path}")
    judge = SVC(gamma=0.001).fit(train, train_labels)
    drawn_labels = np.repeat(np.arange(10), options.samples)
    recognised = judge.score(drawings.reshape(-1, PIXELS), drawn_labels)
    print(f"recognised of the test pictures: {judge.score(test, test_labels):.1%}")
    print(f"recognised of {len(drawn_labels)} drawings: {recognised:.1%}")
    return float(loss)


def build_model() -> kt.CausalLM:
    """Builds a model of 0.3 million parameters."""
    return kt.CausalLM(
        num_layers=3,
        hidden_dim=96,
        intermediate_dim=192,
        num_heads=4,
        dropout=0.2,
        positions=kt.LearnedPositionalEncoding(PIXELS),
        vocabulary_size=VOCABULARY_SIZE,
    )


def token_ids(pictures: np.ndarray, labels: np.ndarray) -> tuple[Any, Any]:
    """Returns inputs, digits and all pixels but the last, and targets, all pixels."""
    targets = SHADE + pictures
    return np.concatenate([DIGIT + labels[:, None], targets[:, :-1]], axis=1), targets


def loss_of_frequencies(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, labels: np.ndarray
) -> float:
    """Returns the loss of a table of the shades of each pixel of each digit."""
    table = np.full((10, PIXELS, SHADES), 0.1)  # Nothing has a probability of 0.
    pixels = np.arange(PIXELS)
    np.add.at(table, (train_labels[:, None], pixels, train), 1)
    table /= table.sum(axis=-1, keepdims=True)
    return float(-np.log(table[labels[:, None], pixels, test]).mean())


def show(drawings: np.ndarray, train: np.ndarray) -> Figure:
    """Shows drawings `(10, samples, 64)`, and training pictures in the last row."""
    distances = np.square(drawings[:, -1, None] - train).sum(axis=-1)
    nearest = train[distances.argmin(axis=1)]
    rows = [*drawings.swapaxes(0, 1)[-7:], nearest]
    figure = Figure(figsize=(8, 0.8 * len(rows)), dpi=150)
    axes = figure.subplots(len(rows), 10)
    for axis, picture in zip(axes.flat, np.concatenate(rows), strict=True):
        axis.imshow(picture.reshape(8, 8), cmap="gray_r", vmin=0, vmax=SHADES - 1)
        axis.set(xticks=[], yticks=[])
    for axis in axes[-1]:
        axis.set_xlabel("nearest")
    return figure


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=40, help="number of epochs")
    parser.add_argument("--samples", type=int, default=20, help="drawings of a digit")
    parser.add_argument("--output", default="runs/draw", help="folder of the picture")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
