"""Measures the speed, padding and memory of the conversion from text to batches.

Speed: pairs per second of `parallel_dataset`, of a typical `tf.data` pipeline with the
tokenizer of keras-nlp, and of `sentencepiece`, which tokenizes the same lines without
creating batches. All of them read the same files with the same SentencePiece model, in
turn. The table shows pairs per second of wall-clock time and pairs per second of
processor time of all threads, which depends less on other processes of the machine.

Padding: share of padding among all ids of an epoch, of both sides, for all batches and
for the batches without rows of padding.

Memory: peak memory of a process that streams 400 batches of corpora with an increasing
number of distinct lines, minus its memory before. The difference must not depend on the
number of lines, except for 16 bytes per line if duplicates are dropped.

    python benchmarks/data.py --source train.en --target train.de
"""

import argparse
import base64
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
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple, TypeAlias

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras_nlp
import numpy as np
import sentencepiece
import tensorflow as tf

from keras_transformer import SentencePieceTokenizer, Tokenizer, parallel_dataset

BATCHES = 400
BUCKETS = (8, 12, 16, 20, 24, 32, 48)  # Of the pipeline with keras-nlp.
Files: TypeAlias = tuple[pathlib.Path, pathlib.Path]


def main() -> None:
    """Prints the tables and, with `--json`, writes the results to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--source",
        type=pathlib.Path,
        metavar="FILE",
        help="Source text, one sentence per line. Default: random words.",
    )
    parser.add_argument(
        "--target", type=pathlib.Path, metavar="FILE", help="Target text."
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="Repetitions of each measurement."
    )
    parser.add_argument(
        "--lines",
        type=int,
        nargs="*",
        default=[100_000, 1_000_000, 10_000_000],
        help="Numbers of lines in the measurement of memory.",
    )
    parser.add_argument("--json", metavar="FILE", help="File for the results.")
    options = parser.parse_args()
    if (options.source is None) != (options.target is None):
        parser.error("--source and --target must be given together.")

    with tempfile.TemporaryDirectory() as folder:
        files = options.source, options.target
        if options.source is None:
            files = write_corpus(pathlib.Path(folder), 30_000)
        tokenizer = SentencePieceTokenizer.train(files, vocabulary_size=8000)
        tokenizer.save(pathlib.Path(folder) / "tokenizer.json")
        results = {
            "speed": measure_speed(files, tokenizer, options.repeats),
            "padding": measure_padding(files, tokenizer),
            "memory": measure_memory(pathlib.Path(folder), options.lines),
        }
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results))


# Text.


def write_corpus(folder: pathlib.Path, lines: int) -> Files:
    """Writes two files of random words with frequencies by Zipf's law.

    The lengths of the lines are typical of image captions. The last word of a line is
    its number, so all lines are distinct.
    """
    random = np.random.default_rng(0)
    syllables = [
        "".join(s) for s in itertools.product("bdfgklmnprstvz", "aeiou", " nr")
    ]
    words = [
        "".join(random.choice(syllables, random.integers(1, 4))).replace(" ", "")
        for _ in range(20_000)
    ]
    files = folder / f"{lines}.source", folder / f"{lines}.target"
    for path in files:
        block = [
            " ".join(words[n % len(words)] for n in random.zipf(1.2, length))
            for length in random.lognormal(2.5, 0.35, min(lines, 20_000)).astype(int)
            + 1
        ]
        with path.open("w", encoding="utf-8") as file:
            for number in range(lines):
                file.write(f"{block[number % len(block)]} {number:x}\n")
    return files


# Speed.


class Timing(NamedTuple):
    """Number of pairs, and seconds of wall-clock and processor time."""

    pairs: int
    wall: float
    processor: float


def measure_speed(
    files: Files, tokenizer: SentencePieceTokenizer, repeats: int
) -> list[dict[str, Any]]:
    """Returns the pairs per second of each pipeline, as medians of all repetitions."""
    sides = make_sides(files, tokenizer)
    timings: dict[str, list[Timing]] = {name: [] for name in sides}
    for side in sides.values():
        side()
    for _ in range(repeats):
        for name, side in sides.items():
            wall, processor = time.perf_counter(), time.process_time()
            pairs = side()
            timings[name].append(
                Timing(
                    pairs, time.perf_counter() - wall, time.process_time() - processor
                )
            )
    rows = []
    print(f"{'from text to batches':40}{'pairs/s':>9}{'per CPU s':>11}{'ratio':>9}")
    first = timings[next(iter(sides))]
    for name, turns in timings.items():
        row = {
            "side": name,
            "pairs_a_second": statistics.median(
                each.pairs / each.wall for each in turns
            ),
            "pairs_a_processor_second": statistics.median(
                each.pairs / each.processor for each in turns
            ),
            "ratio": statistics.median(
                (a.pairs / a.processor) / (b.pairs / b.processor)
                for a, b in zip(turns, first, strict=True)
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
    """Returns functions that convert the text once and return the number of pairs."""
    source, target = map(str, files)
    tokenizers = {"source_tokenizer": tokenizer, "target_tokenizer": tokenizer}
    in_memory = parallel_dataset(source, target, **tokenizers)
    stream = {
        **tokenizers,
        "window": 10_000,
        "batches_per_epoch": in_memory.batches_per_epoch,
        "max_source_length": 128,
        "max_target_length": 128,
    }
    streamed = parallel_dataset(source, target, **stream)
    sampled = parallel_dataset(
        source, target, source_sampling=0.1, target_sampling=0.1, **stream
    )
    proto = tokenizer.get_config()["proto"]
    keras_tokenizer = keras_nlp.tokenizers.SentencePieceTokenizer(proto=proto)
    by_sentence = keras_pipeline(source, target, keras_tokenizer, chunk=None)
    by_chunk = keras_pipeline(source, target, keras_tokenizer, chunk=1024)
    processor = sentencepiece.SentencePieceProcessor(
        model_proto=base64.b64decode(proto)
    )
    return {
        "ours, streamed": lambda: count_pairs(streamed.dataset),
        "ours, streamed, BPE-dropout 0.1": lambda: count_pairs(sampled.dataset),
        "ours, in memory, first epoch": lambda: count_pairs(
            parallel_dataset(source, target, **tokenizers).dataset
        ),
        "ours, in memory, later epochs": lambda: count_pairs(in_memory.dataset),
        "keras-nlp, sentence by sentence": lambda: count_pairs(by_sentence),
        "keras-nlp, 1,024 sentences at a time": lambda: count_pairs(by_chunk),
        "sentencepiece, tokens only": lambda: tokenize(files, processor),
    }


def count_pairs(batches: tf.data.Dataset) -> int:
    """Returns the number of pairs of an epoch, without rows of padding."""
    return sum(
        int((inputs["decoder_token_ids"][:, 0] != 0).sum())
        for inputs, _ in batches.as_numpy_iterator()
    )


def keras_pipeline(
    source: str, target: str, tokenizer: Any, chunk: int | None
) -> tf.data.Dataset:
    """Returns batches of 4,096 tokens per side with the tokenizer of keras-nlp."""

    def shift(source_ids: tf.Tensor, target_ids: tf.Tensor) -> tuple[Any, tf.Tensor]:
        inputs = {"encoder_token_ids": source_ids, "decoder_token_ids": target_ids[:-1]}
        return inputs, target_ids[1:]

    def tokenize(sources: tf.Tensor, targets: tf.Tensor) -> tuple[Any, Any]:
        start, end = [2], [3]
        return (
            tf.concat([tokenizer(sources), end], axis=0),
            tf.concat([start, tokenizer(targets), end], axis=0),
        )

    def tokenize_chunk(sources: tf.Tensor, targets: tf.Tensor) -> tuple[Any, Any]:
        column = tf.ones_like(sources, tf.int32)[:, None]
        return (
            tf.concat([tokenizer(sources), 3 * column], axis=1),
            tf.concat([2 * column, tokenizer(targets), 3 * column], axis=1),
        )

    lines = tf.data.Dataset.zip(*map(tf.data.TextLineDataset, (source, target)))
    if chunk is None:
        ids = lines.map(tokenize, num_parallel_calls=tf.data.AUTOTUNE)
    else:
        ids = lines.batch(chunk)
        ids = ids.map(tokenize_chunk, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
    return (
        ids.map(shift)
        .shuffle(10_000)
        .bucket_by_sequence_length(
            lambda inputs, targets: tf.maximum(
                tf.size(inputs["encoder_token_ids"]), tf.size(targets)
            ),
            BUCKETS,
            [4096 // limit for limit in (*BUCKETS, 128)],
            pad_to_bucket_boundary=False,
        )
        .prefetch(tf.data.AUTOTUNE)
    )


def tokenize(files: Files, processor: sentencepiece.SentencePieceProcessor) -> int:
    """Tokenizes both files in chunks and returns the number of lines."""
    for path in files:
        with path.open(encoding="utf-8") as file:
            count = 0
            while lines := list(itertools.islice(file, 16384)):
                count += len(processor.encode(lines))
    return count


# Padding.


def measure_padding(
    files: Files, tokenizer: SentencePieceTokenizer
) -> list[dict[str, Any]]:
    """Returns the shares of padding of an epoch with at most 12 shapes."""
    sampled = {"source_sampling": 0.1, "target_sampling": 0.1}
    streamed = {
        **{"window": 10_000, "batches_per_epoch": 125},
        **{"max_source_length": 100, "max_target_length": 100},
    }
    sides: dict[str, dict[str, Any]] = {
        "in memory": {},
        "in memory, 2,048 tokens a batch": {"tokens_per_batch": 2048},
        "in memory, BPE-dropout 0.1": sampled,
        "streamed, 10,000 pairs at a time": streamed,
    }
    rows = []
    print(f"\n{'padding':40}{'shapes':>8}{'all':>8}{'without rows':>14}")
    for name, options in sides.items():
        data = parallel_dataset(
            *files, source_tokenizer=tokenizer, target_tokenizer=tokenizer, **options
        )
        batches = [
            np.concatenate([inputs["encoder_token_ids"], targets], axis=1) == 0
            for inputs, targets in data.dataset.as_numpy_iterator()
        ]
        full = [batch for batch in batches if not batch.all(axis=1).any()]
        row = {
            "side": name,
            "shapes": len(data.shapes),
            "padding": share(batches),
            "padding_of_full_batches": share(full),
        }
        rows.append(row)
        print(
            f"{name:40}{row['shapes']:8}{row['padding']:8.1%}"
            f"{row['padding_of_full_batches']:14.1%}"
        )
    return rows


def share(batches: list[np.ndarray]) -> float:
    """Returns the share of `True` in all batches."""
    return sum(map(np.sum, batches)) / max(1, sum(map(np.size, batches)))


# Memory.


def measure_memory(folder: pathlib.Path, sizes: list[int]) -> list[dict[str, Any]]:
    """Returns the peak memory of streams, each in a separate process."""
    rows = []
    print(
        f"\n{'lines':>10}{'MB of text':>12}{'extra MB':>10}{'dropping duplicates':>21}",
        end="",
    )
    print(f"{'bytes/line':>14}{'s to start':>12}{'dropping':>10}")
    context = multiprocessing.get_context("spawn")
    for lines in sizes:
        files = write_corpus(folder, lines)
        measured = []
        for drop_duplicates in (False, True):
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                future = pool.submit(stream_memory, folder, files, drop_duplicates)
                measured.append(future.result())
        (plain, started), (dropping, started_dropping) = measured
        row = {
            "lines": lines,
            "text_mb": sum(path.stat().st_size for path in files) / 1e6,
            "extra_mb": plain,
            "extra_mb_dropping": dropping,
            "bytes_a_line": 1024**2 * (dropping - plain) / lines,
            "seconds_to_begin": started,
            "seconds_to_begin_dropping": started_dropping,
        }
        rows.append(row)
        print(
            f"{lines:10,}{row['text_mb']:12,.0f}{plain:10,.0f}{dropping:21,.0f}"
            f"{row['bytes_a_line']:14.1f}{started:12.1f}{started_dropping:10.1f}",
            flush=True,
        )
        for path in files:
            path.unlink()
    return rows


def stream_memory(
    folder: pathlib.Path, files: Files, drop_duplicates: bool
) -> tuple[float, float]:
    """Returns the peak memory of a stream in MB, and the seconds before its start."""
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    tokenizer.tokenize(["warm up"])
    ctypes.CDLL(None).malloc_trim(0)
    before = resident("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    start = time.perf_counter()
    data = parallel_dataset(
        *files,
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        max_source_length=128,
        max_target_length=128,
        window=50_000,
        batches_per_epoch=BATCHES,
        drop_duplicates=drop_duplicates,
    )
    seconds = time.perf_counter() - start
    count_pairs(data.dataset)
    return resident("VmHWM") - before, seconds


def resident(field: str) -> float:
    """Returns the current (`VmRSS`) or peak (`VmHWM`) resident memory in MB."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.findall(rf"{field}:\s*(\d+) kB", status)[0]) / 1024


if __name__ == "__main__":
    main()
