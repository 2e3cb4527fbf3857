"""Measures what each special path for speed gains in training, decoding and loading.

Each is replaced from outside by its plain equivalent. A model with it and models
without it take turns. The figure is the time without it, divided by the time with it:
the median of the ratios within the turns. Times are the CPU seconds of this process,
which runs on one core, so other processes hardly change them.

    KERAS_BACKEND=torch taskset --cpu-list 0 python benchmarks/tuning.py

With `--check` the command fails if a special path gains less than 10 %.
"""

import argparse
import contextlib
import ctypes
import gc
import importlib
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

import keras_transformer as kt
from keras_transformer.backend import cross_entropy, freed_memory
from keras_transformer.backend.top_k import top_k
from keras_transformer.decoding.top_candidates import TopCandidates

MIN_GAIN = 1.1
VOCABULARY_SIZE = 8000
STEPS = 16  # Tokens of each generated sentence.
BACKEND = keras.backend.backend()
Run = Callable[[], Any]


# The plain equivalents.


def plain_while_loop(cond: Any, body: Any, loop_vars: Any, constants: Any) -> Any:
    return ops.while_loop(cond, lambda *now: body(constants, *now), loop_vars)


def plain_slice_update(x: Any, updates: Any, index: Any, axis: int) -> Any:
    start: list[Any] = [0] * len(x.shape)
    start[axis] = index
    return ops.slice_update(x, tuple(start), updates)


def plain_top_candidates(offsets: Any, values: Any, k: int) -> TopCandidates:
    batch, rows, columns = ops.shape(values)
    sums = ops.reshape(values + offsets[:, :, None], (batch, rows * columns))
    sums = ops.where(ops.isnan(sums), -float("inf"), sums)
    sums, places = top_k(sums, k)
    return TopCandidates(sums, places // columns, places % columns)


def plain_logsumexp(logits: Any) -> Any:
    return ops.logsumexp(logits, axis=-1)


def plain_lowest_of_nucleus(probabilities: Any, top_p: float) -> Any:
    descending = -ops.sort(-probabilities, axis=-1)
    before = ops.cumsum(descending, axis=-1) - descending
    kept = ops.where(before < top_p, descending, float("inf"))
    return ops.min(kept, axis=-1, keepdims=True)


def nothing(*args: Any) -> None:
    """Replaces a function that is called for its effect."""


class SpecialPath(NamedTuple):
    """A part of the library that is there for speed alone.

    Attributes:
        name: its module.
        backends: the backends on which it does anything.
        uses: the names in `USES` of what it makes faster.
        plain: the replacement of each attribute of a module or a class.
    """

    name: str
    backends: tuple[str, ...]
    uses: tuple[str, ...]
    plain: dict[str, Any]


SPECIAL_PATHS = (
    SpecialPath(
        "cross_entropy",
        ("torch",),
        ("fit",),
        {
            "backend.cross_entropy._torch_logsumexp": plain_logsumexp,
            "backend.cross_entropy._torch_gradient": cross_entropy._gradient,
        },
    ),
    SpecialPath("freed_memory", ("torch",), ("fit",), {}),
    SpecialPath(
        "while_loop",
        ("torch",),
        ("generate", "generate, greedy"),
        {"decoding.loop.while_loop": plain_while_loop},
    ),
    SpecialPath(
        "slice_update",
        ("torch",),
        ("generate", "generate, greedy"),
        {
            "layers.attention.key_values.slice_update": plain_slice_update,
            "models.beam_mask.slice_update": plain_slice_update,
        },
    ),
    SpecialPath(
        "top_candidates",
        ("jax", "tensorflow", "torch"),
        ("generate, 64",),
        {"decoding.beam_search.top_candidates": plain_top_candidates},
    ),
    SpecialPath(
        "scaled_dot_product_attention",
        ("torch",),
        ("generate, 64",),
        {"layers.attention.scaled_dot_product_attention.FEW_QUERIES": 0},
    ),
    SpecialPath(
        "sampling",
        ("jax", "tensorflow", "torch"),
        ("generate, top-p",),
        {"decoding.sampling._lowest_of_nucleus": plain_lowest_of_nucleus},
    ),
    SpecialPath(
        "compact_graph",
        ("tensorflow",),
        ("load",),
        {"export.saved_model.writer.compact": nothing},
    ),
)


@contextlib.contextmanager
def without(special: SpecialPath | None) -> Iterator[None]:
    """Replaces a special path by its plain equivalent."""
    with contextlib.ExitStack() as stack:
        for path, plain in (special.plain if special else {}).items():
            owner, name = resolve(path)
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, plain)
        if BACKEND == "torch":
            set_memory(special is None or special.name != "freed_memory")
        yield


def resolve(path: str) -> tuple[Any, str]:
    """Returns the module or class, and the name of the attribute."""
    owner, _, name = path.rpartition(".")
    module, _, kind = owner.rpartition(".")
    if kind[:1].isupper():
        module = importlib.import_module(f"keras_transformer.{module}")
        return getattr(module, kind), name
    return importlib.import_module(f"keras_transformer.{owner}"), name


def set_memory(is_kept: bool) -> None:
    """Sets glibc's thresholds as the library does, or as TensorFlow's generators do."""
    if is_kept:
        freed_memory.keep_freed_memory()
    elif mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(-3, 128 * 1024)  # M_MMAP_THRESHOLD
        mallopt(-1, 128 * 1024)  # M_TRIM_THRESHOLD


# What users do, with default arguments.


def make_model(options: argparse.Namespace) -> kt.Seq2Seq:
    model = kt.Seq2Seq.from_preset(
        f"transformer_{options.size}", vocabulary_size=VOCABULARY_SIZE
    )
    model.compile(
        keras.optimizers.Adam(1e-4),
        kt.LabelSmoothedCrossEntropy(0.1),
        metrics=[kt.MaskedTokenAccuracy(), kt.Perplexity()],
    )
    return model


def token_ids(rows: int, length: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    ids = rng.integers(4, VOCABULARY_SIZE, (rows, length), dtype="int32")
    ids[:, -1] = 3
    return ids


def fit(options: argparse.Namespace) -> Run:
    model, ids = make_model(options), token_ids(options.rows, options.length)
    inputs = {"encoder_token_ids": ids, "decoder_token_ids": ids[:, ::-1].copy()}
    return lambda: model.fit(inputs, ids, batch_size=options.rows, verbose=0)


def generate(
    options: argparse.Namespace, search: Any = None, sentences: int = 1
) -> Run:
    model, source = make_model(options), token_ids(sentences, options.length)
    return lambda: model.generate(source, search, max_length=STEPS, min_length=STEPS)


def load(options: argparse.Namespace) -> Run:
    import tensorflow as tf

    lines = [f"w{number}" for number in range(4, VOCABULARY_SIZE)]
    tokenizer = kt.WordTokenizer.train(lines=lines)
    model = kt.Seq2Seq.from_preset(
        f"transformer_{options.size}",
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
    )
    folder = pathlib.Path(tempfile.mkdtemp(dir=options.folder), "model")
    model.export(folder, max_length=STEPS)
    return lambda: tf.saved_model.load(str(folder))


USES: dict[str, Callable[[argparse.Namespace], Run]] = {
    "fit": fit,
    "generate": generate,
    "generate, greedy": lambda options: generate(options, kt.GreedySearch()),
    "generate, 64": lambda options: generate(options, sentences=64),
    "generate, top-p": lambda options: generate(options, kt.Sampling(top_p=0.9), 16),
    "load": load,
}


def measure(use: str, options: argparse.Namespace) -> dict[str, float]:
    """Returns the gain of each special path in what a user does, by its name."""
    sides: list[SpecialPath | None] = [
        special
        for special in SPECIAL_PATHS
        if BACKEND in special.backends and use in special.uses
    ]
    if not sides:
        return {}
    sides.append(None)
    runs = []
    for special in sides:
        with without(special):
            runs.append(USES[use](options))
            runs[-1]()  # Compiles.
    turns = []
    for _ in range(options.turns):
        seconds = []
        for special, run in zip(sides, runs, strict=True):
            with without(special):
                gc.collect()
                start = time.process_time()
                run()
                seconds.append(time.process_time() - start)
        turns.append(seconds)
    return {
        special.name: statistics.median(turn[side] / turn[-1] for turn in turns)
        for side, special in enumerate(sides)
        if special is not None
    }


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", default="tiny", choices=("tiny", "small", "base"))
    parser.add_argument("--length", type=int, default=32, help="tokens of a sentence")
    parser.add_argument("--rows", type=int, default=128, help="of a batch of `fit`")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--uses", nargs="+", default=[*USES], choices=[*USES])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    print(f"Keras {keras.version()} on {BACKEND}, {vars(options)}\n")
    print("| | special path | gain |\n| --- | --- | --- |", flush=True)
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as options.folder:
        for use in options.uses:
            for name, gain in measure(use, options).items():
                print(f"| {use} | `{name}` | {gain:.2f} |", flush=True)
                best[name] = max(gain, best.get(name, 0.0))
    lost = sorted(name for name, gain in best.items() if gain < MIN_GAIN)
    if options.check and lost:
        sys.exit(f"Less than 10 %, remove: {', '.join(lost)}")


if __name__ == "__main__":
    main()
