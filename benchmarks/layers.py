"""Times the layers against those of Keras, KerasHub and torch.nn.

Each Keras layer is the only layer of a model, with the paper's base size by default.
A step is `predict_on_batch` (forward) or `train_on_batch` (forward, backward and a
plain SGD update), as in `predict` and `fit`. The layers of torch.nn, eager and
compiled, run the same step in plain PyTorch. All sides take turns. The first calls,
which compile, are not counted.

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
import torch

import keras_transformer

PEERS = ("Keras", "torch.nn", "compiled")


def main() -> None:
    """Prints a table and, with --json, writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--hidden-dim", type=int, default=512)
    parser.add_argument("--intermediate-dim", type=int, default=2048)
    parser.add_argument("--num-heads", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()

    rows = []
    print(f"backend {keras.backend.backend()}, keras {keras.__version__}")
    print("a peer's time divided by ours (Keras = Keras or KerasHub):")
    print(f"{'layer':19}{'length':>6} {'pass':9}{'ours ms':>8}", end="")
    print(*(f"{peer:>9}" for peer in PEERS), sep="")
    for length in options.length:
        for name, layers in layer_pairs(options).items():
            for kind in ("forward", "training"):
                steps = all_steps(name, layers, kind, length, options)
                times = measure(steps, repeats=options.repeats)
                rows.append(as_row(name, length, kind, times))
                print_row(rows[-1])
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"backend": keras.backend.backend(), "rows": rows}, file)


def as_row(name: str, length: int, kind: str, times: list[list[float]]) -> dict:
    """Returns the median of our times, and of the ratios within each turn."""
    ours, *peers = times
    row = {"layer": name, "length": length, "pass": kind}
    row["ours_ms"] = statistics.median(ours)
    for peer, theirs in zip(PEERS, peers, strict=True):
        ratios = (b / a for a, b in zip(ours, theirs, strict=True))
        row[peer] = statistics.median(ratios)
    return row


def print_row(row: dict) -> None:
    """Prints a line of the table."""
    print(f"{row['layer']:19}{row['length']:6} {row['pass']:9}", end="")
    print(f"{row['ours_ms']:8.1f}", end="")
    print(*(f"{row[peer]:9.2f}" for peer in PEERS), sep="", flush=True)


def layer_pairs(options: argparse.Namespace) -> dict[str, tuple[Any, Any]]:
    """Returns pairs of our layer and its peer, with the same arguments."""
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


def all_steps(
    name: str,
    layers: tuple[Any, Any],
    kind: str,
    length: int,
    options: argparse.Namespace,
) -> list[Callable[[], Any]]:
    """Returns the same step of our layer and of its peers."""
    rng = np.random.default_rng(0)
    shape = (options.batch, length, options.hidden_dim)
    first, second = (rng.normal(size=shape).astype("float32") for _ in range(2))
    if name != "DecoderBlock":
        second = first
    steps = [
        keras_step(as_model(layer, name, length, options), kind, first, second)
        for layer in layers
    ]
    torch.compiler.reset()
    module = torch_module(name, options)
    steps.append(torch_step(module, kind, first, second))
    steps.append(torch_step(torch.compile(module), kind, first, second))
    return steps


def as_model(
    layer: keras.Layer, name: str, length: int, options: argparse.Namespace
) -> keras.Model:
    """Returns a model with the layer as its only layer."""
    shape = (length, options.hidden_dim)
    first, second = keras.Input(shape), keras.Input(shape)
    arguments = {"EncoderBlock": (first,), "DecoderBlock": (first, second)}
    outputs = layer(*arguments.get(name, (first, first)))
    model = keras.Model([first, second], outputs)
    model.compile(optimizer="sgd", loss="mse")
    return model


def keras_step(
    model: keras.Model, kind: str, first: np.ndarray, second: np.ndarray
) -> Callable[[], Any]:
    """Returns a step of inference or training on constant data."""
    if kind == "forward":
        return lambda: model.predict_on_batch([first, second])
    return lambda: model.train_on_batch([first, second], first)


def torch_module(name: str, options: argparse.Namespace) -> torch.nn.Module:
    """Returns the layer of torch.nn that corresponds to ours."""
    block = {
        "d_model": options.hidden_dim,
        "nhead": options.num_heads,
        "dim_feedforward": options.intermediate_dim,
        "dropout": options.dropout,
        "batch_first": True,
    }
    if name == "EncoderBlock":
        return torch.nn.TransformerEncoderLayer(**block)
    if name == "DecoderBlock":
        return torch.nn.TransformerDecoderLayer(**block)
    return torch.nn.MultiheadAttention(
        options.hidden_dim,
        options.num_heads,
        dropout=options.dropout,
        batch_first=True,
    )


def torch_step(
    module: torch.nn.Module, kind: str, first: np.ndarray, second: np.ndarray
) -> Callable[[], Any]:
    """Returns the same step of a layer of torch.nn."""
    module.to("cpu").train(kind == "training")
    first, second = torch.from_numpy(first), torch.from_numpy(second)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(first.shape[1])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def call() -> torch.Tensor:
        kind = type(getattr(module, "_orig_mod", module)).__name__
        if kind == "TransformerEncoderLayer":
            return module(first)
        if kind == "TransformerDecoderLayer":
            return module(first, second, tgt_mask=causal, tgt_is_causal=True)
        return module(first, first, first, need_weights=False)[0]

    @torch.inference_mode()
    def forward() -> np.ndarray:
        return call().numpy()

    def training() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(call(), first)
        loss.backward()
        optimizer.step()
        return loss.item()

    return forward if kind == "forward" else training


def measure(
    steps: list[Callable[[], Any]], warmups: int = 3, repeats: int = 15
) -> list[list[float]]:
    """Returns the milliseconds of each repeat of each step, measured in turns.

    Each turn starts with another step, since a step may be slowed by threads of the
    previous step that are still spinning.
    """
    times: list[list[float]] = [[] for _ in steps]
    for repeat in range(warmups + repeats):
        for turn in range(len(steps)):
            index = (turn * (1 + 2 * (repeat % 2)) + repeat) % len(steps)
            started = time.perf_counter()
            steps[index]()
            if repeat >= warmups:
                times[index].append(1000 * (time.perf_counter() - started))
    return times


if __name__ == "__main__":
    main()
