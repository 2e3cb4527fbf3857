"""Times the layers against those of Keras and KerasHub on the current backend.

Each layer stands alone in a Keras model, at the paper's base size by default. A
step is `predict_on_batch` (forward) or `train_on_batch` (forward, backward and
a plain SGD update), so that both sides go the way of `predict` and `fit`. The
two sides take turns; the first calls, which compile, are not counted.

    KERAS_BACKEND=jax python benchmarks/layers.py
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import keras_nlp
import numpy as np

import keras_transformer


def main() -> None:
    """Prints a table and, with --json, writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--hidden-dim", type=int, default=512)
    parser.add_argument("--intermediate-dim", type=int, default=2048)
    parser.add_argument("--num-heads", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()

    rows = []
    print(f"backend {keras.backend.backend()}, keras {keras.__version__}")
    print(f"{'layer':20} {'pass':9} {'ours ms':>9} {'peer ms':>9} {'peer / ours':>12}")
    for name, layers in layer_pairs(options).items():
        models = [as_model(layer, options) for layer in layers]
        for kind in ("forward", "training"):
            ours, peer = measure(
                [step(model, kind, options) for model in models],
                repeats=options.repeats,
            )
            ratio = statistics.median(p / o for o, p in zip(ours, peer, strict=True))
            row = {
                "layer": name,
                "pass": kind,
                "ours_ms": statistics.median(ours),
                "peer_ms": statistics.median(peer),
                "ratio": ratio,
            }
            rows.append(row)
            print(
                f"{name:20} {kind:9} {row['ours_ms']:9.2f} {row['peer_ms']:9.2f} "
                f"{ratio:12.2f}"
            )
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"backend": keras.backend.backend(), "rows": rows}, file)


def layer_pairs(options: argparse.Namespace) -> dict[str, tuple[Any, Any]]:
    """Pairs of our layer and its peer, built alike."""
    attention = {
        "num_heads": options.num_heads,
        "key_dim": options.hidden_dim // options.num_heads,
        "dropout": options.dropout,
    }
    block = {
        "intermediate_dim": options.intermediate_dim,
        "num_heads": options.num_heads,
        "dropout": options.dropout,
    }
    return {
        "MultiHeadAttention": (
            keras_transformer.MultiHeadAttention(**attention),
            keras.layers.MultiHeadAttention(**attention),
        ),
        "EncoderBlock": (
            keras_transformer.EncoderBlock(**block),
            keras_nlp.layers.TransformerEncoder(**block),
        ),
        "DecoderBlock": (
            keras_transformer.DecoderBlock(**block),
            keras_nlp.layers.TransformerDecoder(**block),
        ),
    }


def as_model(layer: keras.Layer, options: argparse.Namespace) -> keras.Model:
    """A model with nothing in it but the layer."""
    shape = (options.length, options.hidden_dim)
    first, second = keras.Input(shape), keras.Input(shape)
    one_input = "Encoder" in type(layer).__name__
    outputs = layer(first) if one_input else layer(first, second)
    model = keras.Model([first, second], outputs)
    model.compile(optimizer="sgd", loss="mse")
    return model


def step(
    model: keras.Model, kind: str, options: argparse.Namespace
) -> Callable[[], Any]:
    """One step of inference or training on fixed data."""
    rng = np.random.default_rng(0)
    shape = (options.batch, options.length, options.hidden_dim)
    inputs = [rng.normal(size=shape).astype("float32") for _ in range(2)]
    if kind == "forward":
        return lambda: model.predict_on_batch(inputs)
    return lambda: model.train_on_batch(inputs, inputs[0])


def measure(
    steps: list[Callable[[], Any]], warmups: int = 3, repeats: int = 15
) -> list[list[float]]:
    """Milliseconds of each repeat of each step, taken in turns."""
    times: list[list[float]] = [[] for _ in steps]
    for repeat in range(warmups + repeats):
        for index, run in enumerate(steps):
            started = time.perf_counter()
            run()
            if repeat >= warmups:
                times[index].append(1000 * (time.perf_counter() - started))
    return times


if __name__ == "__main__":
    main()
