"""Times the way from text to batches, and measures its memory.

Speed: pairs a second that come out as padded batches, ours against keras-nlp's
tokenizer in a `tf.data` pipeline as one would write it, and against what plain
`sentencepiece` takes to tokenize the same lines, without making batches of them. All
sides read the same files with the same model and take turns. As others may use the
machine too, the pairs per second of processor time (all threads together) are shown
beside those per second of the clock.

Memory: a process streams corpora of more and more lines, all different, until 400
batches have come. What it has at most beyond what it had before must not grow with
the lines, but for 16 bytes a line where duplicates are dropped.

    python benchmarks/data.py --source train.en --target train.de
"""

import argparse
import contextlib
import ctypes
import itertools
import json
import multiprocessing
import os
import pathlib
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras_nlp
import numpy as np
import sentencepiece
import tensorflow as tf

from keras_transformer import SentencePieceTokenizer, Tokenizer, parallel_dataset

BATCHES = 400
BUCKETS = (8, 12, 16, 20, 24, 32, 48)  # Of the pipeline as one would write it.
Files = tuple[pathlib.Path, pathlib.Path]


def main() -> None:
    """Prints the tables and, with --json, writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--target", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each side")
    parser.add_argument(
        "--lines", type=int, nargs="*", default=[100_000, 1_000_000, 10_000_000]
    )
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if (options.source is None) != (options.target is None):
        parser.error("--source and --target belong together")

    with tempfile.TemporaryDirectory() as folder:
        files = options.source, options.target
        if options.source is None:
            files = write_corpus(pathlib.Path(folder), 30_000)
        tokenizer = SentencePieceTokenizer.train(files, vocabulary_size=8000)
        tokenizer.save(pathlib.Path(folder) / "tokenizer.json")
        figures = {
            "speed": measure_speed(files, tokenizer, options.repeats),
            "memory": measure_memory(pathlib.Path(folder), options.lines),
        }
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(figures))


# Text.


def write_corpus(folder: pathlib.Path, lines: int) -> Files:
    """Two files of words with Zipf's frequencies, as long as captions are.

    The last word of a line is its number, so that no two lines are equal.
    """
    random = np.random.default_rng(0)
    syllables = ["".join(s) for s in itertools.product("bdfgklmnprstvz", "aeiou", " nr")]
    words = [
        "".join(random.choice(syllables, random.integers(1, 4))).replace(" ", "")
        for _ in range(20_000)
    ]
    files = folder / f"{lines}.source", folder / f"{lines}.target"
    for path in files:
        block = [
            " ".join(words[n % len(words)] for n in random.zipf(1.2, length))
            for length in random.lognormal(2.5, 0.35, min(lines, 20_000)).astype(int) + 1
        ]
        with path.open("w", encoding="utf-8") as file:
            for number in range(lines):
                file.write(f"{block[number % len(block)]} {number:x}\n")
    return files


# Speed.


def measure_speed(
    files: Files, tokenizer: SentencePieceTokenizer, repeats: int
) -> list[dict[str, Any]]:
    """Pairs a second of every side, the medians of all turns."""
    sides = make_sides(files, tokenizer)
    taken: dict[str, list[tuple[int, float, float]]] = {name: [] for name in sides}
    for side in sides.values():
        side()
    for _ in range(repeats):
        for name, side in sides.items():
            clock, processor = time.perf_counter(), time.process_time()
            pairs = side()
            seconds = time.perf_counter() - clock, time.process_time() - processor
            taken[name].append((pairs, *seconds))
    rows = []
    print(f"{'from text to batches':40}{'pairs/s':>9}{'per CPU s':>11}{'to ours':>9}")
    for name, turns in taken.items():
        ours = taken[next(iter(sides))]
        row = {
            "side": name,
            "pairs_a_second": statistics.median(p / clock for p, clock, _ in turns),
            "pairs_a_processor_second": statistics.median(p / cpu for p, _, cpu in turns),
            "ratio": statistics.median(
                (a[0] / a[2]) / (b[0] / b[2]) for a, b in zip(turns, ours, strict=True)
            ),
        }
        rows.append(row)
        print(
            f"{name:40}{row['pairs_a_second']:9,.0f}"
            f"{row['pairs_a_processor_second']:11,.0f}{row['ratio']:9.2f}"
        )
    return rows


def make_sides(
    files: Files, tokenizer: SentencePieceTokenizer
) -> dict[str, Callable[[], int]]:
    """Functions that go once through the text and give the number of pairs."""
    proto = tokenizer.get_config()["proto"]
    keras_tokenizer = keras_nlp.tokenizers.SentencePieceTokenizer(proto=proto)
    processor = sentencepiece.SentencePieceProcessor(
        model_proto=keras_nlp.tokenizers.SentencePieceTokenizer(proto=proto).proto
    )
    return {}


if __name__ == "__main__":
    main()
