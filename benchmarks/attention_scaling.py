"""Measures time and memory of attention patterns by the length of the source.

`Seq2Seq` with dense attention and with patterns, on each backend, beside LED of Hugging
Face, whose encoder attends to the same window as `LocalWindow`. All models have 4
blocks (and 4 of the decoder) of width 256 with 4 heads, 8,000 tokens and random
weights.

A training step is that of `train_on_batch` with Adam, one source and 64 target tokens;
LED has a loop of PyTorch. Decoding is greedy, one source, 32 tokens. Each measurement
runs in a new process, which first does the same with a short source. Seconds are the
median of the repeats after the first, which compiles; on one core (`taskset --cpu-list
0 python …`) they are processor time. Memory is the peak without the memory after the
short source, so without weights, optimizer and libraries. The script needs Linux.

    python benchmarks/attention_scaling.py --lengths 512 2048 8192
"""

import argparse
import ctypes
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from measuring import (
    BACKENDS,
    environment,
    in_a_process,
    peak_mb,
    print_header,
    print_row,
    report,
    reset_peak,
    seconds,
)

LAYERS, WIDTH, INTERMEDIATE, HEADS, VOCABULARY_SIZE = 4, 256, 1024, 4, 8000
RADIUS = 128
SHORT = 2 * RADIUS
TARGET_LENGTH, OUTPUT_LENGTH = 64, 32
PAD, START, END, FIRST = 0, 2, 3, 4
TASKS = ("training", "decoding")
ATTENTION = ("dense", "LocalWindow", "Strided", "GlobalLocal")

Step = Callable[[int], Any]  # takes the length of the source


def main() -> None:
    """Prints a table for each task."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 2048, 8192])
    parser.add_argument("--backends", nargs="*", choices=BACKENDS, default=BACKENDS)
    parser.add_argument(
        "--attention", nargs="+", choices=ATTENTION, default=["dense", "LocalWindow"]
    )
    parser.add_argument("--repeats", type=int, default=3, help="steps of a process")
    options = parser.parse_args()
    print(environment())
    sides = [
        (attention, backend)
        for attention in options.attention
        for backend in options.backends
    ]
    for task in options.tasks:
        print(f"\n{task}\n")
        titles = (f"{length:,}: s | MB | first, s" for length in options.lengths)
        print_header("", *" | ".join(titles).split(" | "))
        for side in [*sides, ("LED", "torch")]:
            cells = []
            for length in options.lengths:
                work = task, side[0], length, options.repeats
                taken, extra_mb, first = in_a_process(measure, *work, backend=side[1])
                report(*side, length, taken)
                cells += [f"{taken:.3g}", f"{extra_mb:,.0f}", f"{first:.2g}"]
            print_row(", ".join(side), *cells)


def measure(
    task: str, attention: str, length: int, repeats: int
) -> tuple[float, float, float]:
    """Returns seconds, additional MB and the seconds of the first step."""
    side = "led" if attention == "LED" else "our"
    step: Step = globals()[f"{side}_{task}"](attention)
    step(SHORT)
    ctypes.CDLL(None).malloc_trim(0)
    before = reset_peak()
    first = seconds(lambda: step(length))
    taken = [seconds(lambda: step(length)) for _ in range(repeats)]
    return statistics.median(taken), peak_mb() - before, first


def random_ids(length: int) -> np.ndarray:
    """Returns a row of token ids that ends with the end token, `(1, length)`."""
    ids = np.random.default_rng(0).integers(FIRST, VOCABULARY_SIZE, (1, length))
    ids[:, -1] = END
    return ids


def targets() -> tuple[np.ndarray, np.ndarray]:
    """Returns the inputs of a decoder and its targets, `(1, 64)` each."""
    ids = random_ids(TARGET_LENGTH)
    return np.insert(ids, 0, START, axis=1)[:, :-1], ids


def our_model(attention: str) -> Any:
    import keras_transformer as kt

    patterns = {
        "LocalWindow": kt.LocalWindow(RADIUS),
        "Strided": kt.Strided(stride=4, radius=4 * RADIUS),
        "GlobalLocal": kt.GlobalLocal(RADIUS, global_tokens=16),
    }
    options = {"pattern": patterns[attention]} if attention in patterns else {}
    return kt.Seq2Seq(
        num_layers=LAYERS,
        hidden_dim=WIDTH,
        intermediate_dim=INTERMEDIATE,
        num_heads=HEADS,
        vocabulary_size=VOCABULARY_SIZE,
        dropout=0.0,
        normalize_first=False,  # as LED
        attention_options=options,
    )


def our_training(attention: str) -> Step:
    import keras_transformer as kt

    model = our_model(attention)
    model.compile(optimizer="adam", loss=kt.LabelSmoothedCrossEntropy())
    inputs, outputs = targets()

    def step(length: int) -> Any:
        batch = {"encoder_token_ids": random_ids(length), "decoder_token_ids": inputs}
        return model.train_on_batch(batch, outputs)

    return step


def our_decoding(attention: str) -> Step:
    model = our_model(attention)

    def step(length: int) -> Any:
        rows = random_ids(length).tolist()
        return model.generate(rows, max_length=OUTPUT_LENGTH, min_length=OUTPUT_LENGTH)

    return step


def led_model(**options: Any) -> Any:
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


def led_training(_: str) -> Step:
    import torch

    model = led_model(use_cache=False).train()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    inputs, outputs = map(torch.from_numpy, targets())

    def step(length: int) -> float:
        optimizer.zero_grad()
        source = torch.from_numpy(random_ids(length))
        logits = model(input_ids=source, decoder_input_ids=inputs).logits
        loss = torch.nn.functional.cross_entropy(
            logits[0], outputs[0], label_smoothing=0.1
        )
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def led_decoding(_: str) -> Step:
    import torch

    model = led_model().eval()

    def step(length: int) -> Any:
        return model.generate(
            input_ids=torch.from_numpy(random_ids(length)),
            num_beams=1,
            do_sample=False,
            min_new_tokens=OUTPUT_LENGTH,
            max_new_tokens=OUTPUT_LENGTH,
        )

    return step


if __name__ == "__main__":
    main()
