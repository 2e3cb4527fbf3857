"""Generates captions of images: which handwritten digits are in them, and where.

The sources of this `Seq2Seq` are pixels. Its `source_embedding` cuts a picture into
patches, and the decoder writes a text about them. It takes 2 minutes on two cores:

    python examples/caption.py

A picture has 3 by 3 cells, and one to four digits of scikit-learn in them. No digit of
a test picture is in a training picture. The exact match is the share of the captions
that are right word for word. For comparison, it is printed for a support vector machine
that receives each digit alone; the rest of its captions is given. `captions.png` shows
test pictures with the captions of the model.
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

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PLACES = (
    *("top left", "top", "top right"),
    *("left", "center", "right"),
    *("bottom left", "bottom", "bottom right"),
)
SIZE, PATCH = 3 * 8, 4  # pixels of an edge
TEST, TEST_PICTURES = 360, 1000  # digits, pictures made of them
WIDTH = 64


def main(arguments: list[str] | None = None) -> float:
    """Runs the example and returns the exact match on the test pictures in percent."""
    options = parse_arguments(arguments)
    keras.utils.set_random_seed(options.seed)
    digits = load_digits()
    order = np.random.default_rng(options.seed).permutation(len(digits.images))
    images, labels = digits.images[order] / 16, digits.target[order]
    train, test = (images[TEST:], labels[TEST:]), (images[:TEST], labels[:TEST])
    pictures, captions = make_pictures(*train, options.pictures, options.seed)
    test_pictures, correct = make_pictures(*test, TEST_PICTURES, options.seed + 1)
    print(f"{len(captions):,} training pictures, {len(correct):,} test pictures")

    tokenizer = kt.WordTokenizer.train(lines=captions)
    rows = tokenizer.tokenize(captions, add_start=True, add_end=True)
    ids = rows.to_tensor().numpy()
    model = build_model(tokenizer)
    updates = options.epochs * -(-len(captions) // 64)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, updates, warmup_target=2e-3, warmup_steps=updates // 20
    )
    optimizer = keras.optimizers.AdamW(schedule, global_clipnorm=1.0)
    model.compile(optimizer, kt.LabelSmoothedCrossEntropy(0.0))
    data: Any = {"encoder_token_ids": pictures, "decoder_token_ids": ids[:, :-1]}
    model.fit(
        data,
        ids[:, 1:],
        batch_size=64,
        epochs=options.epochs,
        callbacks=[kt.TrainingProgress()],
    )

    written = model.generate(test_pictures, kt.GreedySearch(), max_length=20)
    path = pathlib.Path(options.output) / "captions.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_captions(test_pictures[:4], written[:4]).savefig(path, bbox_inches="tight")
    print(f"pictures with their captions: {path}")
    judge = SVC().fit(images[TEST:].reshape(-1, 64), labels[TEST:])
    judged = judge.predict(images[:TEST].reshape(-1, 64))
    told = make_pictures(images[:TEST], judged, TEST_PICTURES, options.seed + 1)[1]
    match = 100 * float(np.mean(np.array(told) == correct))
    print(f"exact match of the support vector machine: {match:.2f} %")
    match = 100 * float(np.mean(np.array(written) == correct))
    print(f"exact match of the model: {match:.2f} %")
    return match


def make_pictures(
    images: np.ndarray, labels: np.ndarray, number: int, seed: int
) -> tuple[np.ndarray, list[str]]:
    """Puts random digits into random cells.

    Returns:
        Pictures `(number, 24, 24, 1)`, and captions such as `"one top , two center"`.
        A seed gives the same pictures with any labels.
    """
    random = np.random.default_rng(seed)
    pictures = np.zeros((number, 3, 8, 3, 8, 1), "float32")
    captions = []
    for picture in pictures:
        cells = np.sort(random.permutation(9)[: random.integers(1, 5)])
        chosen = random.integers(len(images), size=len(cells))
        picture[cells // 3, :, cells % 3, :, 0] = images[chosen]
        phrases = zip(labels[chosen], cells, strict=True)
        captions.append(" , ".join(f"{NAMES[n]} {PLACES[c]}" for n, c in phrases))
    return pictures.reshape(number, SIZE, SIZE, 1), captions


def build_model(tokenizer: kt.WordTokenizer) -> kt.Seq2Seq:
    """Builds a model of pictures `(batch, 24, 24, 1)` to texts."""
    embedding = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(WIDTH, PATCH, strides=PATCH),
            keras.layers.Reshape((-1, WIDTH)),
            kt.LearnedPositionalEncoding((SIZE // PATCH) ** 2),
        ]
    )
    return kt.Seq2Seq(
        num_layers=2,
        hidden_dim=WIDTH,
        intermediate_dim=2 * WIDTH,
        num_heads=4,
        dropout=0.1,
        target_tokenizer=tokenizer,
        source_embedding=embedding,
    )


def draw_captions(pictures: np.ndarray, captions: list[str]) -> Figure:
    """Draws each picture with its caption above, a digit a line."""
    figure = Figure(figsize=(2.2 * len(pictures), 3), dpi=150)
    row = figure.subplots(1, len(pictures))
    for axis, picture, caption in zip(row, pictures[..., 0], captions, strict=True):
        axis.imshow(picture, cmap="gray_r")
        axis.set(xticks=[], yticks=[], title=caption.replace(" , ", ",\n"))
    return figure


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8, help="number of epochs")
    parser.add_argument("--pictures", type=int, default=20_000, help="to train on")
    parser.add_argument("--output", default="runs/caption", help="folder of the PNG")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
