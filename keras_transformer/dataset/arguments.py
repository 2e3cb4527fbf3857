"""Checks of the arguments of `parallel_dataset`."""

from numbers import Integral, Real
from typing import Any


def check_tokenizers(**tokenizers: Any) -> None:
    """Raises a `ValueError` if one cannot be a tokenizer."""
    for name, tokenizer in tokenizers.items():
        if not hasattr(tokenizer, "tokenize"):
            raise ValueError(
                f"`{name}` must be a `Tokenizer`; received `{name}={tokenizer!r}`. "
                "Train one, for example with `SentencePieceTokenizer.train`."
            )


def check_ranges(max_length_ratio: float | None, shard: tuple[int, int]) -> None:
    """Raises a `ValueError` if the ratio or the worker's number cannot be."""
    is_ratio = isinstance(max_length_ratio, Real) and float(max_length_ratio) >= 1
    if max_length_ratio is not None and not is_ratio:
        raise ValueError(
            "`max_length_ratio` must be 1 or more; received "
            f"`max_length_ratio={max_length_ratio!r}`."
        )
    is_pair = isinstance(shard, tuple | list) and len(shard) == 2
    are_ints = is_pair and all(isinstance(number, Integral) for number in shard)
    if not (are_ints and 0 <= shard[0] < shard[1]):
        raise ValueError(
            "`shard` must be the worker's number, from 0, and how many there are; "
            f"received `shard={shard}`. The first of two has (0, 2)."
        )


def check_stream(
    window: int | None,
    batches_per_epoch: int | None,
    max_source_length: int | None,
    max_target_length: int | None,
) -> None:
    """Raises a `ValueError` unless a stream, and it alone, has what it needs."""
    if window is None and batches_per_epoch is not None:
        raise ValueError(
            "`batches_per_epoch` must be `None` without `window`; received "
            f"`batches_per_epoch={batches_per_epoch}`. All pairs make an epoch, or "
            "give `window` to stream them."
        )
    needed = {
        "batches_per_epoch": batches_per_epoch,
        "max_source_length": max_source_length,
        "max_target_length": max_target_length,
    }
    missing = [name for name, value in needed.items() if value is None]
    if window is not None and missing:
        raise ValueError(
            f"With `window` {', '.join(f'`{name}`' for name in missing)} must be "
            f"given, as the end of the data is not known; received `window={window}` "
            "alone."
        )


def check_window(window: int | None, files: int) -> None:
    """Raises a `ValueError` if a window could have no pair.

    Each file gives its share of it, rounded down.
    """
    if window is not None and window < files:
        raise ValueError(
            "`window` must be at least the number of source files; received "
            f"`window={window}` for {files}. Stream far more pairs at a time."
        )
