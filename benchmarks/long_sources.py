"""Compares models for long sources with LED and Longformer of Hugging Face.

`Seq2Seq` with dense attention and with `LocalWindow`, on each backend, beside LED. The
encoder of LED attends to the same window. `encoder` is the encoder alone, without a
decoder, beside Longformer. All models have 4 blocks (and 4 of the decoder) of width 256
with 4 heads, 8,000 tokens and random weights.

A training step is that of `train_on_batch` with Adam, one source and, for `seq2seq`, 64
target tokens; the peers have a loop of PyTorch. Decoding is greedy, one source, 32
tokens. Each measurement runs in a new process, which first does the same with a short
source. Seconds are the median of the repeats after the first, which compiles; on one
core (`taskset --cpu-list 0 python …`) they are processor time. Memory is the peak
without the resident memory after the short source, so without weights, optimizer and
libraries. The script needs Linux.

    python benchmarks/long_sources.py --lengths 512 2048 8192
"""

import argparse
import ctypes
import json
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from training import environment, in_a_process, report
from training_sides.clocks import peak_mb, reset_peak, seconds

BACKENDS = ("tensorflow", "jax", "torch")
LAYERS, WIDTH, INTERMEDIATE, HEADS, VOCABULARY_SIZE = 4, 256, 1024, 4, 8000
RADIUS = 128
SHORT = 2 * RADIUS
TARGET_LENGTH, OUTPUT_LENGTH = 64, 32
PAD, START, END, FIRST = 0, 2, 3, 4

Step = Callable[[int], Any]
Figures = dict[str, float]


def main() -> None:
    """Prints a table for each task and, with `--json`, writes all figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 2048, 8192])
    parser.add_argument("--backends", nargs="*", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--repeats", type=int, default=3, help="steps of a process")
    parser.add_argument(
        "--dense-up-to",
        type=int,
        default=8192,
        help="longest source of dense attention",
    )
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    print(environment())
    results: dict[str, dict[str, dict[int, Figures]]] = {}
    for task in options.tasks:
        results[task] = {}
        for name, backend in sides(task, options.backends):
            lengths = [
                length
                for length in options.lengths
                if not name.startswith("dense") or length <= options.dense_up_to
            ]
            rows = results[task][name] = {}
            for length in lengths:
                arguments = task, name, length, options.repeats
                rows[length] = in_a_process(measure, *arguments, backend=backend)
                report(f"{task}, {name}, {length}", rows[length])
        print_table(task, results[task], options.lengths)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"options": vars(options), "results": results}, file, indent=1)


def sides(task: str, backends: list[str]) -> list[tuple[str, str]]:
    """Returns the names of the sides of a task and their backends."""
    ours = [
        (f"{attention}, {backend}", backend)
        for attention in ("dense", "LocalWindow")
        for backend in backends
    ]
    _, peer, _ = TASKS[task]
    return [*ours, (peer, "torch")]


def measure(task: str, side: str, length: int, repeats: int) -> Figures:
    """Returns the figures of a source length. Runs in the process of the side."""
    ours, peer, theirs = TASKS[task]
    step = theirs(True) if side == peer else ours(side.startswith("LocalWindow"))
    step(SHORT)
    ctypes.CDLL(None).malloc_trim(0)
    before = reset_peak()
    first = seconds(lambda: step(length))
    taken = [seconds(lambda: step(length)) for _ in range(repeats)]
    return {
        "seconds": statistics.median(taken),
        "first_seconds": first,
        "extra_mb": peak_mb() - before,
    }


def random_ids(length: int) -> np.ndarray:
    """Returns a row of token ids that ends with the end token, `(1, length)`."""
    ids = np.random.default_rng(0).integers(FIRST, VOCABULARY_SIZE, (1, length))
    ids[:, -1] = END
    return ids


def targets() -> tuple[np.ndarray, np.ndarray]:
    """Returns the inputs of a decoder and its targets, `(1, 64)` each."""
    ids = random_ids(TARGET_LENGTH)
    return np.insert(ids, 0, START, axis=1)[:, :-1], ids


def our_seq2seq(has_window: bool) -> Any:
    import keras_transformer as kt

    return kt.Seq2Seq(
        num_layers=LAYERS,
        hidden_dim=WIDTH,
        intermediate_dim=INTERMEDIATE,
        num_heads=HEADS,
        vocabulary_size=VOCABULARY_SIZE,
        dropout=0.0,
        normalize_first=False,  # as LED
        attention_options=our_attention(has_window),
    )


def our_attention(has_window: bool) -> dict[str, Any]:
    import keras_transformer as kt

    return {"pattern": kt.LocalWindow(RADIUS)} if has_window else {}


def our_training(has_window: bool) -> Step:
    import keras_transformer as kt

    model = our_seq2seq(has_window)
    model.compile(optimizer="adam", loss=kt.LabelSmoothedCrossEntropy())
    inputs, outputs = targets()

    def step(length: int) -> Any:
        batch = {"encoder_token_ids": random_ids(length), "decoder_token_ids": inputs}
        return model.train_on_batch(batch, outputs)

    return step


def our_decoding(has_window: bool) -> Step:
    model = our_seq2seq(has_window)

    def step(length: int) -> Any:
        rows = random_ids(length).tolist()
        return model.generate(rows, max_length=OUTPUT_LENGTH, min_length=OUTPUT_LENGTH)

    return step


def our_encoder(has_window: bool) -> Step:
    import keras

    import keras_transformer as kt

    ids = keras.Input((None,), dtype="int32")
    embedded = keras.layers.Embedding(VOCABULARY_SIZE, WIDTH)(ids)
    encoded = kt.EncoderStack(
        num_layers=LAYERS,
        intermediate_dim=INTERMEDIATE,
        num_heads=HEADS,
        attention_options=our_attention(has_window),
    )(kt.PositionalEncoding()(embedded))
    model = keras.Model(ids, keras.layers.Dense(1)(encoded))
    model.compile(optimizer="adam", loss="mse")
    return lambda length: model.train_on_batch(
        random_ids(length), np.ones((1, length, 1), "float32")
    )


def led(**options: Any) -> Any:
    from transformers import LEDConfig, LEDForConditionalGeneration

    return LEDForConditionalGeneration(
        LEDConfig(
            vocab_size=VOCABULARY_SIZE,
            d_model=WIDTH,
            encoder_layers=LAYERS,
            decoder_layers=LAYERS,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=INTERMEDIATE,
            decoder_ffn_dim=INTERMEDIATE,
            attention_window=2 * RADIUS,
            activation_function="relu",
            dropout=0.0,
            pad_token_id=PAD,
            bos_token_id=START,
            decoder_start_token_id=START,
            eos_token_id=END,
            **options,
        )
    )


def led_training(_: bool) -> Step:
    import torch

    model = led(use_cache=False)
    inputs, outputs = map(torch.from_numpy, targets())

    def loss_of(source: Any) -> Any:
        logits = model(input_ids=source, decoder_input_ids=inputs).logits
        return torch.nn.functional.cross_entropy(
            logits[0], outputs[0], label_smoothing=0.1
        )

    return torch_step(model, loss_of)


def led_decoding(_: bool) -> Step:
    import torch

    model = led().eval()

    def step(length: int) -> Any:
        return model.generate(
            input_ids=torch.from_numpy(random_ids(length)),
            num_beams=1,
            do_sample=False,
            min_new_tokens=OUTPUT_LENGTH,
            max_new_tokens=OUTPUT_LENGTH,
        )

    return step


def longformer_encoder(_: bool) -> Step:
    import torch
    from transformers import LongformerConfig, LongformerModel

    encoder = LongformerModel(
        LongformerConfig(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=INTERMEDIATE,
            attention_window=2 * RADIUS,
            hidden_act="relu",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=16384,
            pad_token_id=PAD,
        ),
        add_pooling_layer=False,
    )
    model = torch.nn.ModuleList([encoder, torch.nn.Linear(WIDTH, 1)])
    return torch_step(
        model,
        lambda ids: (model[1](encoder(ids).last_hidden_state) - 1).square().mean(),
    )


def torch_step(model: Any, loss_of: Callable[[Any], Any]) -> Step:
    import torch

    model.train()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def step(length: int) -> float:
        optimizer.zero_grad()
        loss = loss_of(torch.from_numpy(random_ids(length)))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


Make = Callable[[bool], Step]
TASKS: dict[str, tuple[Make, str, Make]] = {
    "training": (our_training, "LED", led_training),
    "decoding": (our_decoding, "LED", led_decoding),
    "encoder": (our_encoder, "Longformer", longformer_encoder),
}


def print_table(
    task: str, rows: dict[str, dict[int, Figures]], lengths: list[int]
) -> None:
    titles = [f"{length:,}: s | MB | first, s" for length in lengths]
    print(f"\n| {task} | {' | '.join(titles)} |\n|{' --- |' * (1 + 3 * len(lengths))}")
    for name, figures in rows.items():
        cells = [
            f"{row['seconds']:.3g} | {row['extra_mb']:,.0f} | "
            f"{row['first_seconds']:.2g}"
            for row in figures.values()
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
