"""Shortlists as the arrays that a compiled search takes."""

from typing import NamedTuple

import numpy as np

from keras_transformer.decoding import Search
from keras_transformer.decoding.allowed_tokens import (
    AllowedTokens,
    computes_few_logits,
    special_tokens,
)
from keras_transformer.inference.protocols import SequenceModel
from keras_transformer.inference.shortlist import Shortlist, vocabulary_digests

# Numbers of logits that a search is compiled for: powers of two, and all tokens.
SMALLEST_SIZE = 512


def check_shortlist(shortlist: Shortlist, model: SequenceModel) -> None:
    """Checks that a shortlist is one of the vocabularies of a model.

    Args:
        shortlist: the argument `shortlist`.
        model: the model.

    Raises:
        ValueError: if it is not, or if the sources of the model are arrays or prompts.
    """
    if not isinstance(shortlist, Shortlist):
        raise ValueError(
            "`shortlist` must be a `Shortlist` or `None`; received "
            f"`shortlist={shortlist!r:.200}`. Read a file with `Shortlist.load`."
        )
    if model.source_spec is not None or not model.has_cross_attention:
        raise ValueError(
            "`shortlist` must be `None` for a model whose sources are arrays or "
            f"prompts; received `shortlist={shortlist!r}`."
        )
    targets = (shortlist.translations, shortlist.frequent_token_ids)
    source_size = len(shortlist.translations)
    target_size = 1 + max(int(array.max(initial=-1)) for array in targets)
    sizes = model.source_vocabulary_size, model.target_vocabulary_size
    tokenizers = model.source_tokenizer, model.target_tokenizer
    fits = source_size <= sizes[0] and target_size <= sizes[1]
    if fits and shortlist.vocabularies and None not in tokenizers:
        fits = shortlist.vocabularies == vocabulary_digests(*tokenizers)
    if not fits:
        raise ValueError(
            "`shortlist` must be made with the tokenizers of the model; received one "
            f"of {source_size} source tokens and target tokens up to {target_size - 1} "
            f"for a model with vocabularies of {sizes[0]} and {sizes[1]} tokens. Make "
            "one with `Shortlist.from_parallel_text`."
        )


class AllowedBatch(NamedTuple):
    """The allowed tokens of a batch as arrays; see `AllowedTokens`."""

    token_ids: np.ndarray
    mask: np.ndarray

    def padded(self, batch_size: int) -> AllowedTokens:
        """Returns the arrays with more rows, in which all tokens are allowed.

        Args:
            batch_size: int, number of rows.
        """
        missing = batch_size - len(self.mask)
        rows = np.ones((missing, self.mask.shape[1]), bool)
        return AllowedTokens(self.token_ids, np.concatenate([self.mask, rows]))


def allowed_batch(
    model: SequenceModel, search: Search, mask: np.ndarray
) -> AllowedBatch:
    """Returns the allowed tokens of a batch, with few columns if the model allows it.

    Args:
        model: the model.
        search: the search.
        mask: boolean array `(batch, target_vocabulary_size)`.

    Returns:
        An `AllowedBatch`, the columns of which have one of the sizes of `sizes`.
    """
    if not computes_few_logits(search, model):
        return AllowedBatch(np.zeros(0, "int32"), mask)
    special = special_tokens(model)
    rank = np.where(mask.any(axis=0), len(special), len(special) + 1)
    rank[special] = np.arange(len(special))
    count = int((rank <= len(special)).sum())
    size = next(size for size in sizes(mask.shape[1]) if size >= count)
    token_ids = np.argsort(rank, kind="stable")[:size].astype("int32")
    return AllowedBatch(token_ids, mask[:, token_ids])


def sizes(vocabulary_size: int) -> list[int]:
    """Returns the numbers of logits that a search is compiled for.

    Args:
        vocabulary_size: int.

    Returns:
        Ints, ascending; the last is the size of the vocabulary.

    Example:

    >>> sizes(3000)
    [512, 1024, 2048, 3000]
    """
    found = [SMALLEST_SIZE]
    while found[-1] < vocabulary_size:
        found.append(2 * found[-1])
    return [size for size in found if size < vocabulary_size] + [vocabulary_size]
