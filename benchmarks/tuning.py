"""Measures what each processor-specific optimization gains in `fit` and `generate`.

Each optimization is replaced from outside by its plain equivalent in `keras.ops` (or by
nothing). Models are built and compiled once for each combination, and the combinations
take turns. Times are the CPU seconds of this process, which runs on one core, so other
processes hardly change them; figures are medians of the ratios within a turn. With
`--all-cores` the process uses all cores, as in practice, and times are seconds by the
clock: measure on an idle machine.

- "alone": the time without any of the optimizations, divided by the time with this one;
- "last": the time without this one, divided by the time with all of them;
- "all": the time without any, divided by the time with all of them.

    KERAS_BACKEND=jax python benchmarks/tuning.py

With `--check` the command fails if an optimization gains less than 5 % both ways.
"""

import argparse
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pathlib
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

if hasattr(os, "sched_setaffinity") and "--all-cores" not in sys.argv:
    # Before the libraries create their threads.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})

import keras
import numpy as np
from keras import ops

import keras_transformer as kt

MIN_GAIN = 1.05
clock = time.perf_counter if "--all-cores" in sys.argv else time.process_time
VOCABULARY_SIZE = 8000
BATCHES = 3  # Of one turn of `fit`.
STEPS = 16  # Tokens of each generated sentence.
LOADS = 3  # Of a SavedModel, in one turn.


class Optimization(NamedTuple):
    """An optimization of the library and its plain equivalent.

    Attributes:
        name: its module.
        backends: the backends on which it does anything.
        paths: the paths of `PATHS` that it is for.
        plain: of each attribute of a module that has to be replaced, the replacement.
    """

    name: str
    backends: tuple[str, ...]
    paths: tuple[str, ...]
    plain: dict[str, Callable[..., Any]]


def identity(x: Any) -> Any:
    return x


def plain_while_loop(cond: Any, body: Any, loop_vars: Any, constants: Any) -> Any:
    return ops.while_loop(cond, lambda *now: body(constants, *now), loop_vars)


def plain_slice_update(x: Any, updates: Any, index: Any, axis: int) -> Any:
    start: list[Any] = [0] * len(x.shape)
    start[axis] = index
    return ops.slice_update(x, tuple(start), updates)


def nothing(*args: Any) -> None:
    """Replaces a function that is called for its effect."""


OPTIMIZATIONS = (
    Optimization(
        "materialization_barrier",
        ("jax",),
        ("fit",),
        {"layers.residual.materialization_barrier": identity},
    ),
    Optimization(
        "fusion_barrier",
        ("tensorflow",),
        ("generate", "generate, greedy"),
        {"layers.projection.fusion_barrier": identity},
    ),
    Optimization(
        "matmul",
        ("torch",),
        ("fit", "generate"),
        {"backend.matmul._is_mkl_slow": lambda: False},
    ),
    Optimization(
        "random_bits",
        ("jax", "tensorflow"),
        ("fit", "fit, XLA"),
        {"layers.dropout.Dropout.call": keras.layers.Dropout.call},
    ),
    Optimization("freed_memory", ("torch",), ("fit",), {}),
    Optimization(
        "while_loop",
        ("torch",),
        ("generate", "generate, greedy"),
        {"decoding.loop.while_loop": plain_while_loop},
    ),
    Optimization(
        "slice_update",
        ("torch",),
        ("generate", "generate, greedy"),
        {
            "layers.attention.key_values.slice_update": plain_slice_update,
            "models.beam_caches.slice_update": plain_slice_update,
        },
    ),
    Optimization(
        "compact_graph",
        ("tensorflow",),
        ("load",),
        {"export.saved_model.writer.compact": nothing},
    ),
)


@contextlib.contextmanager
def replaced(optimizations: Sequence[Optimization]) -> Iterator[None]:
    """Replaces optimizations by their plain equivalents."""
    with contextlib.ExitStack() as stack:
        for optimization in optimizations:
            for path, plain in optimization.plain.items():
                owner, name = resolve(path)
                stack.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, plain)
        set_memory(all(each.name != "freed_memory" for each in optimizations))
        yield


def resolve(path: str) -> tuple[Any, str]:
    """The module or class, and the name of the attribute."""
    owner, _, name = path.rpartition(".")
    module, _, kind = owner.rpartition(".")
    if kind[:1].isupper():
        return getattr(
            importlib.import_module(f"keras_transformer.{module}"), kind
        ), name
    return importlib.import_module(f"keras_transformer.{owner}"), name


def set_memory(is_kept: bool) -> None:
    """Sets glibc's thresholds as the library does, or as TensorFlow's generators do."""
    if platform.libc_ver()[0] != "glibc" or keras.backend.backend() != "torch":
        return
    if is_kept:
        module = importlib.import_module("keras_transformer.backend.freed_memory")
        module.keep_freed_memory()
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 128 * 1024)  # M_MMAP_THRESHOLD
    libc.mallopt(-1, 128 * 1024)  # M_TRIM_THRESHOLD


def make_model(options: argparse.Namespace, **compiling: Any) -> kt.Seq2Seq:
    depth = {"num_layers": options.layers} if options.layers else {}
    model = kt.Seq2Seq.from_preset(
        f"transformer_{options.size}",
        vocabulary_size=VOCABULARY_SIZE,
        normalize_first=True,  # as `keras-transformer train`
        **depth,
    )
    model.compile(
        keras.optimizers.Adam(1e-4),
        kt.LabelSmoothedCrossEntropy(0.1),
        metrics=[kt.MaskedTokenAccuracy(), kt.Perplexity()],
        **compiling,
    )
    return model


def token_ids(rows: int, length: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    ids = rng.integers(4, VOCABULARY_SIZE, (rows, length), dtype="int32")
    ids[:, -1] = 3
    return ids


def fit_path(
    options: argparse.Namespace, jit_compile: bool | str = "auto"
) -> Callable[[], None]:
    rows = options.rows
    model = make_model(options, jit_compile=jit_compile)
    ids = token_ids(BATCHES * rows, options.length)
    inputs = {"encoder_token_ids": ids, "decoder_token_ids": ids[:, ::-1].copy()}
    return lambda: model.fit(inputs, ids, batch_size=rows, verbose=0) and None


def generate_path(search: Any) -> Callable[[argparse.Namespace], Callable[[], None]]:
    def path(options: argparse.Namespace) -> Callable[[], None]:
        model, source = make_model(options), token_ids(1, options.length)
        lengths = {"max_length": STEPS, "min_length": STEPS}
        return lambda: model.generate(source, search, **lengths) and None

    return path


def load_path(options: argparse.Namespace) -> Callable[[], None]:
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
    print(f"saved_model.pb: {(folder / 'saved_model.pb').stat().st_size:,} bytes")

    def load() -> None:
        for _ in range(LOADS):
            tf.saved_model.load(str(folder))

    return load


# The real paths, with default arguments: one sentence for `generate`.
PATHS: dict[str, Callable[[argparse.Namespace], Callable[[], None]]] = {
    "fit": fit_path,
    "generate": generate_path(None),
    "generate, greedy": generate_path(kt.GreedySearch()),
    "load": load_path,
}
if keras.backend.backend() == "tensorflow":  # JAX always uses XLA.
    PATHS["fit, XLA"] = functools.partial(fit_path, jit_compile=True)


class Gain(NamedTuple):
    """How much faster a path is; see the text at the top."""

    path: str
    name: str
    alone: float
    last: float


def measure_path(
    path: str, optimizations: list[Optimization], options: argparse.Namespace
) -> list[Gain]:
    """Measures each optimization of a path, and all of them."""
    every = frozenset(each.name for each in optimizations)
    used = {frozenset(), every}
    for name in every:
        used |= {frozenset({name}), every - {name}}
    plain = {
        names: [each for each in optimizations if each.name not in names]
        for names in used
    }
    runs = {}
    for names in used:
        with replaced(plain[names]):
            runs[names] = PATHS[path](options)
            for _ in range(2):  # Compiles; PyTorch records after eight steps.
                runs[names]()
    turns: list[dict[frozenset[str], float]] = []
    for _ in range(options.turns):
        turn = {}
        for names, run in runs.items():
            with replaced(plain[names]):
                gc.collect()
                began = clock()
                run()
                turn[names] = clock() - began
        turns.append(turn)

    def ratio(slow: frozenset[str], fast: frozenset[str]) -> float:
        return statistics.median(turn[slow] / turn[fast] for turn in turns)

    none: frozenset[str] = frozenset()
    gains = [
        Gain(path, n, ratio(none, frozenset({n})), ratio(every - {n}, every))
        for n in sorted(every)
    ]
    if len(every) > 1:
        total = ratio(none, every)
        gains.append(Gain(path, "all", total, total))
    return gains


def main() -> None:
    """Prints a table and, with --json, writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", default="tiny", choices=("tiny", "small", "base"))
    parser.add_argument(
        "--layers", type=int, help="blocks of the encoder and of the decoder"
    )
    parser.add_argument("--length", type=int, default=20, help="tokens of a sentence")
    parser.add_argument("--rows", type=int, default=16, help="of a batch of `fit`")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--paths", nargs="+", default=[*PATHS], choices=[*PATHS])
    parser.add_argument("--all-cores", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    backend = keras.backend.backend()
    print(f"backend {backend}, Keras {keras.version()}, size {options.size}", end="")
    print(f" with {options.layers} layers" if options.layers else "", end="")
    print(f", length {options.length}, {options.rows} rows", end="")
    print(", all cores" if options.all_cores else ", one core")
    print(f"{'path':18}{'optimization':25}{'alone':>7}{'last':>7}", flush=True)
    gains = []
    with tempfile.TemporaryDirectory() as options.folder:
        for path in options.paths:
            here = [o for o in OPTIMIZATIONS if backend in o.backends]
            here = [o for o in here if path in o.paths]
            for gain in measure_path(path, here, options) if here else ():
                gains.append(gain)
                print(f"{gain.path:18}{gain.name:25}", end="")
                print(f"{gain.alone:7.2f}{gain.last:7.2f}", flush=True)
    if options.json:
        rows = [gain._asdict() for gain in gains]
        content = {"backend": backend, "size": options.size, "gains": rows}
        pathlib.Path(options.json).write_text(json.dumps(content))
    if options.check:
        check(gains)


def check(gains: list[Gain]) -> None:
    """Fails if an optimization gains less than 5 % on all of its paths."""
    best: dict[str, float] = {}
    for gain in gains:
        value = max(gain.alone, gain.last)
        best[gain.name] = max(value, best.get(gain.name, 0.0))
    lost = {name: value for name, value in best.items() if value < MIN_GAIN}
    for name, value in sorted(lost.items()):
        print(f"{name} gains {value - 1:.0%}, less than 5 %: remove it.")
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
