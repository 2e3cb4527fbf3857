"""Times the layers against those of Keras, KerasHub and torch.nn.

Each Keras layer is the only layer of a model, with the paper's base size by default.
A step is `predict_on_batch` (forward) or `train_on_batch` (forward, backward and a
plain SGD update), as in `predict` and `fit`. The layers of torch.nn, eager and
compiled, run the same step in plain PyTorch. All sides take turns. The first calls,
which compile, are not counted.

    KERAS_BACKEND=jax python benchmarks/layers.py
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import keras
import keras_nlp
import numpy as np
import torch
from measuring import environment, in_turns, median_ratio, print_header, print_row

import keras_transformer as kt

LAYERS = {
    "MultiHeadAttention": (kt.MultiHeadAttention, keras.layers.MultiHeadAttention),
    "EncoderBlock": (kt.EncoderBlock, keras_nlp.layers.TransformerEncoder),
    "DecoderBlock": (kt.DecoderBlock, keras_nlp.layers.TransformerDecoder),
}
PEERS = ("Keras or KerasHub", "torch.nn", "compiled")


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--hidden-dim", type=int, default=512)
    parser.add_argument("--intermediate-dim", type=int, default=2048)
    parser.add_argument("--num-heads", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    print(f"{environment()}; {keras.backend.backend()}")
    print("The time of each peer, divided by ours:\n")
    print_header("layer", "length", "pass", "ours, ms", *PEERS)
    for length in options.length:
        for name in LAYERS:
            for kind in ("forward", "training"):
                steps = all_steps(name, kind, length, options)
                ours, *peers = in_turns(steps, options.repeats, warmups=3).values()
                ratios = [f"{median_ratio(peer, ours):.2f}" for peer in peers]
                ms = f"{1000 * statistics.median(ours):.1f}"
                print_row(name, length, kind, ms, *ratios)


def all_steps(
    name: str, kind: str, length: int, options: argparse.Namespace
) -> dict[str, Callable[[], Any]]:
    """Returns the same step of our layer and of its peers."""
    rng = np.random.default_rng(0)
    shape = (options.batch, length, options.hidden_dim)
    first, second = (rng.normal(size=shape).astype("float32") for _ in range(2))
    arguments = {"num_heads": options.num_heads, "dropout": options.dropout}
    if name == "MultiHeadAttention":
        arguments["key_dim"] = options.hidden_dim // options.num_heads
    else:
        arguments["intermediate_dim"] = options.intermediate_dim
    steps = [
        keras_step(layer(**arguments), name, kind, first, second)
        for layer in LAYERS[name]
    ]
    torch.compiler.reset()
    module = torch_module(name, options)
    compiled = torch.compile(module)
    steps += [torch_step(m, name, kind, first, second) for m in (module, compiled)]
    return dict(zip(("ours", *PEERS), steps, strict=True))


def keras_step(
    layer: Any, name: str, kind: str, first: np.ndarray, second: np.ndarray
) -> Callable[[], Any]:
    """Returns a step of a model with the layer as its only layer."""
    inputs = keras.Input(first.shape[1:]), keras.Input(first.shape[1:])
    used = {"MultiHeadAttention": (0, 0), "EncoderBlock": (0,), "DecoderBlock": (0, 1)}
    outputs = layer(*(inputs[number] for number in used[name]))
    model = keras.Model(inputs, outputs)
    model.compile(optimizer="sgd", loss="mse")
    if kind == "forward":
        return lambda: model.predict_on_batch((first, second))
    return lambda: model.train_on_batch((first, second), first)


def torch_module(name: str, options: argparse.Namespace) -> torch.nn.Module:
    """Returns the layer of torch.nn that corresponds to ours."""
    shared = {"dropout": options.dropout, "batch_first": True}
    sizes = options.hidden_dim, options.num_heads
    if name == "MultiHeadAttention":
        return torch.nn.MultiheadAttention(*sizes, **shared)
    blocks = {
        "EncoderBlock": torch.nn.TransformerEncoderLayer,
        "DecoderBlock": torch.nn.TransformerDecoderLayer,
    }
    return blocks[name](*sizes, options.intermediate_dim, **shared)


def torch_step(
    module: torch.nn.Module,
    name: str,
    kind: str,
    first: np.ndarray,
    second: np.ndarray,
) -> Callable[[], Any]:
    """Returns the same step of a layer of torch.nn."""
    module.to("cpu").train(kind == "training")
    first, second = torch.from_numpy(first), torch.from_numpy(second)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(first.shape[1])
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def call() -> torch.Tensor:
        if name == "EncoderBlock":
            return module(first)
        if name == "DecoderBlock":
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


if __name__ == "__main__":
    main()
