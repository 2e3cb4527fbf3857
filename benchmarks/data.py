"""Measures the speed, padding and memory of the conversion from text to batches.

Speed: pairs per second of processor time of all threads, of `parallel_dataset`, of a
typical `tf.data` pipeline with the tokenizer of keras-nlp, and of `sentencepiece`,
which tokenizes the same lines without creating batches. All of them read the same files
with the same SentencePiece model, in turn.

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
import functools
import itertools
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras_nlp
import numpy as np
import sentencepiece
import tensorflow as tf
from measuring import (
    environment,
    in_a_process,
    median_ratio,
    peak_mb,
    print_header,
    print_row,
    reset_peak,
)

from keras_transformer import SentencePieceTokenizer, Tokenizer, parallel_dataset

BATCHES = 400
BUCKETS = (8, 12, 16, 20, 24, 32, 48)  # Of the pipeline with keras-nlp.
Files = tuple[pathlib.Path, pathlib.Path]


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--source", type=pathlib.Path, metavar="FILE", help="default: random words"
    )
    parser.add_argument("--target", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--repeats", type=int, default=5, help="of the speed")
    parser.add_argument(
        "--lines",
        type=int,
        nargs="*",
        default=[100_000, 1_000_000, 10_000_000],
        help="sizes of the text in the measurement of memory",
    )
    options = parser.parse_args()
    if (options.source is None) != (options.target is None):
        parser.error("`--source` and `--target` must be given together")
    print(environment())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        files = options.source, options.target
        if options.source is None:
            files = write_corpus(folder, 30_000)
        tokenizer = SentencePieceTokenizer.train(files, vocabulary_size=8000)
        tokenizer.save(folder / "tokenizer.json")
        measure_speed(files, tokenizer, options.repeats)
        measure_padding(files, tokenizer)
        measure_memory(folder, options.lines)


def write_corpus(folder: pathlib.Path, lines: int) -> Files:
    """Writes two files of random words with frequencies by Zipf's law.

    The lengths of the lines are typical of image captions. The last word of a line is
    its number, so all lines are distinct.
    """
    random = np.random.default_rng(0)
    syllables = ["".join(s) for s in itertools.product("bdfgklmnprstvz", "aeiou", "nr")]
    words = [
        "".join(random.choice(syllables, random.integers(1, 4))) for _ in range(20_000)
    ]
    files = folder / f"{lines}.source", folder / f"{lines}.target"
    for path in files:
        lengths = random.lognormal(2.5, 0.35, min(lines, 20_000)).astype(int) + 1
        block = [
            " ".join(words[n % len(words)] for n in random.zipf(1.2, length))
            for length in lengths
        ]
        with path.open("w", encoding="utf-8") as file:
            for number in range(lines):
                file.write(f"{block[number % len(block)]} {number:x}\n")
    return files


# Speed.


def measure_speed(
    files: Files, tokenizer: SentencePieceTokenizer, repeats: int
) -> None:
    """Prints the pairs per second of each pipeline, as medians of all repetitions."""
    sides = make_sides(files, tokenizer)
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(1 + repeats):
        for name, side in sides.items():
            start = time.process_time()
            pairs = side()
            if turn:
                speeds[name].append(pairs / (time.process_time() - start))
    print_header("from text to batches", "pairs per CPU second", "ratio")
    first = next(iter(speeds.values()))
    for name, found in speeds.items():
        ratio = median_ratio(found, first)
        print_row(name, f"{statistics.median(found):,.0f}", f"{ratio:.2f}")


def make_sides(
    files: Files, tokenizer: SentencePieceTokenizer
) -> dict[str, Callable[[], int]]:
    """Returns functions that convert the text once and return the number of pairs."""
    source, target = map(str, files)
    tokenizers = {"source_tokenizer": tokenizer, "target_tokenizer": tokenizer}
    in_memory = parallel_dataset(source, target, **tokenizers)
    stream = functools.partial(
        parallel_dataset,
        source,
        target,
        **tokenizers,
        window=10_000,
        batches_per_epoch=in_memory.batches_per_epoch,
        max_source_length=128,
        max_target_length=128,
    )
    streamed, sampled = stream(), stream(source_sampling=0.1, target_sampling=0.1)
    proto = tokenizer.get_config()["proto"]
    peer = keras_nlp.tokenizers.SentencePieceTokenizer(proto=proto)
    keras_nlp_batches = keras_nlp_pipeline(source, target, peer)
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
        "keras-nlp, batches of 1,024 sentences": lambda: count_pairs(keras_nlp_batches),
        "sentencepiece, tokens only": lambda: tokenize(files, processor),
    }


def count_pairs(batches: tf.data.Dataset) -> int:
    """Returns the number of pairs of an epoch, without rows of padding."""
    return sum(
        int((inputs["decoder_token_ids"][:, 0] != 0).sum())
        for inputs, _ in batches.as_numpy_iterator()
    )


def keras_nlp_pipeline(source: str, target: str, tokenizer: Any) -> tf.data.Dataset:
    """Returns batches of 4,096 tokens per side with the tokenizer of keras-nlp."""

    def tokenize(sources: tf.Tensor, targets: tf.Tensor) -> tuple[Any, Any]:
        column = tf.ones_like(sources, tf.int32)[:, None]
        return (
            tf.concat([tokenizer(sources), 3 * column], axis=1),
            tf.concat([2 * column, tokenizer(targets), 3 * column], axis=1),
        )

    def shift(source_ids: tf.Tensor, target_ids: tf.Tensor) -> tuple[Any, tf.Tensor]:
        inputs = {"encoder_token_ids": source_ids, "decoder_token_ids": target_ids[:-1]}
        return inputs, target_ids[1:]

    lines = tf.data.Dataset.zip(*map(tf.data.TextLineDataset, (source, target)))
    ids = lines.batch(1024).map(tokenize, num_parallel_calls=tf.data.AUTOTUNE)
    return (
        ids.unbatch()
        .map(shift)
        .shuffle(10_000)
        .bucket_by_sequence_length(
            lambda inputs, targets: tf.maximum(
                tf.size(inputs["encoder_token_ids"]), tf.size(targets)
            ),
            BUCKETS,
            [4096 // limit for limit in (*BUCKETS, 128)],
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


def measure_padding(files: Files, tokenizer: SentencePieceTokenizer) -> None:
    """Prints the batches of an epoch and their shares of padding."""
    streamed = {
        **{"window": 10_000, "batches_per_epoch": 125},
        **{"max_source_length": 100, "max_target_length": 100},
    }
    sides: dict[str, dict[str, Any]] = {
        f"in memory, {tokens:,} tokens per batch, {name}": {
            "tokens_per_batch": tokens,
            "max_shapes": shapes,
        }
        for tokens in (4096, 2048)
        for name, shapes in (("default", None), ("4 shapes", 4), ("12 shapes", 12))
    }
    sides["streamed, windows of 10,000 pairs"] = streamed
    print()
    print_header("padding", "shapes", "batches", "all batches", "full batches")
    for name, options in sides.items():
        data = parallel_dataset(
            *files, source_tokenizer=tokenizer, target_tokenizer=tokenizer, **options
        )
        batches = [
            np.concatenate([inputs["encoder_token_ids"], targets], axis=1) == 0
            for inputs, targets in data.dataset.as_numpy_iterator()
        ]
        full = [batch for batch in batches if not batch.all(axis=1).any()]
        shapes = len(data.shapes)
        print_row(name, shapes, len(batches), share(batches), share(full))


def share(batches: list[np.ndarray]) -> str:
    """Returns the percentage of `True` in all batches."""
    return f"{sum(map(np.sum, batches)) / max(1, sum(map(np.size, batches))):.1%}"


# Memory.


def measure_memory(folder: pathlib.Path, sizes: list[int]) -> None:
    """Prints the peak memory of streams, each in a separate process."""
    print()
    print_header("lines", "MB of text", "additional MB", "with `drop_duplicates`")
    for lines in sizes:
        files = write_corpus(folder, lines)
        plain, dropping = (
            in_a_process(stream_memory, folder, files, drops, backend="tensorflow")
            for drops in (False, True)
        )
        text_mb = sum(path.stat().st_size for path in files) / 1e6
        print_row(*(f"{value:,.0f}" for value in (lines, text_mb, plain, dropping)))
        for path in files:
            path.unlink()


def stream_memory(folder: pathlib.Path, files: Files, drop_duplicates: bool) -> float:
    """Returns the peak memory of a stream in MB."""
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    tokenizer.tokenize(["warm up"])
    ctypes.CDLL(None).malloc_trim(0)
    before = reset_peak()
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
    count_pairs(data.dataset)
    return peak_mb() - before


if __name__ == "__main__":
    main()
