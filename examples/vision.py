"""Recognises handwritten digits, and draws what the model attends to.

A vision Transformer (ViT) cuts a picture into patches, which an encoder processes as it
processes the tokens of a text. A learned vector, the class token, is the first token;
the encoder writes the answer there. It takes less than a minute on two cores:

    python examples/vision.py

The pictures are the digits of scikit-learn, 8 by 8 pixels. Of 1,797 pictures, 360 are
not trained on. `attention.png` shows some of them, and how much the class token attends
to each patch (in red).
"""

import argparse
import pathlib

import keras
import numpy as np
from keras import ops
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

from keras_transformer import EncoderStack, LearnedPositionalEncoding, TrainingProgress
from keras_transformer.types import Tensor

SIZE, PATCH = 8, 2  # pixels of an edge
PATCHES = (SIZE // PATCH) ** 2
TEST = 360  # pictures


def main(arguments: list[str] | None = None) -> float:
    """Runs the example and returns the accuracy on the test pictures in percent."""
    options = parse_arguments(arguments)
    keras.utils.set_random_seed(options.seed)
    digits = load_digits()
    order = np.random.default_rng(options.seed).permutation(len(digits.images))
    pictures = digits.images[order, :, :, None].astype("float32") / 16
    labels = digits.target[order]
    print(f"{len(labels) - TEST} training pictures, {TEST} test pictures")

    model, attention = build_models()
    updates = options.epochs * -(-(len(labels) - TEST) // 64)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, updates, warmup_target=2e-3, warmup_steps=updates // 10
    )
    model.compile(
        keras.optimizers.AdamW(schedule),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        pictures[TEST:],
        labels[TEST:],
        batch_size=64,
        epochs=options.epochs,
        verbose=0,
        callbacks=[TrainingProgress()],
    )
    accuracy = 100 * model.evaluate(pictures[:TEST], labels[:TEST], verbose=0)[1]

    path = pathlib.Path(options.output) / "attention.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    answers = model.predict(pictures[:8], verbose=0).argmax(axis=-1)
    scores = attention.predict(pictures[:8], verbose=0)
    draw_attention(pictures[:8], scores, answers).savefig(path, bbox_inches="tight")
    print(f"attention of the class token: {path}")
    print(f"accuracy: {accuracy:.2f} %")
    return accuracy


class ClassToken(keras.layers.Layer):
    """Puts a learned vector before the tokens `(batch, length, hidden_dim)`."""

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.vector = self.add_weight((1, 1, input_shape[-1]), "zeros", name="vector")

    def call(self, tokens: Tensor) -> Tensor:
        first = ops.repeat(self.vector, ops.shape(tokens)[0], axis=0)
        return ops.concatenate([first, tokens], axis=1)


def build_models(hidden_dim: int = 64) -> tuple[keras.Model, keras.Model]:
    """Builds a classifier and a model of the attention inside it.

    Returns:
        A model of pictures `(batch, 8, 8, 1)` to logits `(batch, 10)`, and a model with
        the same weights to the scores of the class token in the last block,
        `(batch, num_heads, 16)`.
    """
    pictures = keras.Input((SIZE, SIZE, 1))
    # One convolution is the same linear layer for every patch.
    x = keras.layers.Conv2D(hidden_dim, PATCH, strides=PATCH)(pictures)
    x = ClassToken()(keras.layers.Reshape((PATCHES, hidden_dim))(x))
    encoder = EncoderStack(
        num_layers=3,
        intermediate_dim=2 * hidden_dim,
        num_heads=4,
        dropout=0.1,
        activation="gelu",
        normalize_first=True,
        positions=LearnedPositionalEncoding(1 + PATCHES),
    )
    x, scores = encoder(x, return_attention_scores=True)
    logits = keras.layers.Dense(10)(x[:, 0])
    return keras.Model(pictures, logits), keras.Model(pictures, scores[-1][:, :, 0, 1:])


def draw_attention(
    pictures: np.ndarray, scores: np.ndarray, answers: np.ndarray
) -> Figure:
    """Draws each picture, and below it the mean attention of the heads in red."""
    figure = Figure(figsize=(1.2 * len(pictures), 2.6), dpi=150)
    axes = figure.subplots(2, len(pictures))
    for column, picture, heads, answer in zip(
        axes.T, pictures[..., 0], scores, answers, strict=True
    ):
        mean = heads.mean(axis=0).reshape(SIZE // PATCH, SIZE // PATCH)
        opacity = np.kron(mean / mean.max(), np.ones((PATCH, PATCH)))
        column[0].set_title(str(answer))
        for axis in column:
            axis.imshow(picture, cmap="gray_r", vmax=1.5)
            axis.set(xticks=[], yticks=[])
        red = np.broadcast_to([0.8, 0.1, 0.1, 1.0], (SIZE, SIZE, 4)).copy()
        red[..., 3] = 0.8 * opacity
        column[1].imshow(red)
    return figure


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=40, help="number of epochs")
    parser.add_argument("--output", default="runs/vision", help="folder of the picture")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
