"""Tokenizes pairs into rows of token ids."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.dataset.pairs import Pair
from keras_transformer.dataset.token_rows import TokenRows
from keras_transformer.text import Tokenizer

_CHUNK = 16384  # Pairs tokenized at a time.

Tokenizers = tuple[Tokenizer, Tokenizer]


def tokenize_pairs(
    pairs: Sequence[Pair], tokenizers: Tokenizers
) -> tuple[TokenRows, TokenRows]:
    """Returns source ids with end, and target ids with start and end."""
    chunks = [pairs[i : i + _CHUNK] for i in range(0, len(pairs), _CHUNK)]
    source, target = (
        [
            token_rows(
                tokenizer.tokenize,
                [pair[side] for pair in chunk],
                add_start=bool(side),
                add_end=True,
            )
            for chunk in chunks
        ]
        for side, tokenizer in enumerate(tokenizers)
    )
    return TokenRows.join(source), TokenRows.join(target)


def token_rows(
    tokenize: Callable[..., tf.RaggedTensor], *args: Any, **kwargs: Any
) -> TokenRows:
    """Returns the result of `tokenize(*args, **kwargs)` as NumPy rows."""
    with tf.device("CPU"):
        rows = tokenize(*args, **kwargs)
        return TokenRows(rows.values.numpy(), rows.row_lengths().numpy())
