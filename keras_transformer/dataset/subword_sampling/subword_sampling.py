"""Subword sampling for both sides of tokenized pairs."""

from typing import NamedTuple

import numpy as np

from keras_transformer.dataset.filters import MaxLengths
from keras_transformer.dataset.subword_sampling.bpe_dropout import BPEDropout
from keras_transformer.dataset.subword_sampling.hashing import hash_integers
from keras_transformer.dataset.subword_sampling.unigram_sampling import UnigramSampling
from keras_transformer.dataset.token_rows import Tokenizers, TokenPairs, TokenRows
from keras_transformer.text import SentencePieceTokenizer, Tokenizer
from keras_transformer_runtime.arguments import check_numbers

_CHUNK = 1024  # Rows per call of a sampler, few enough for the cache of the processor.


class _SideSampler(NamedTuple):
    """The sampler of one side and its parameter."""

    sampler: BPEDropout | UnigramSampling
    alpha: float


class SubwordSampling:
    """Splits texts at random, as a function of seed, repetition, corpus and line.

    `alphas` are the parameters of source and target: the dropout of `BPEDropout` or the
    exponent of `UnigramSampling`. `None` = no sampling.
    """

    def __init__(
        self,
        tokenizers: Tokenizers,
        alphas: tuple[float | None, float | None],
        seed: int,
    ) -> None:
        source, target = alphas
        check_numbers(
            least=0,
            most=1,
            optional=True,
            remedy="0.1 suits most BPE models.",
            source_sampling=source,
            target_sampling=target,
        )
        self._seed = seed
        self._sides = [
            None if alpha is None else _side_sampler(name, tokenizer, alpha)
            for name, tokenizer, alpha in zip(
                ("source", "target"), tokenizers, alphas, strict=True
            )
        ]

    def __bool__(self) -> bool:
        return any(self._sides)

    def sample(
        self, pairs: TokenPairs, repetitions: np.ndarray, max_lengths: MaxLengths
    ) -> TokenPairs:
        """Splits pairs at random in each of their repetitions, integer `(pairs,)`.

        A text whose sampled split is longer than `max_lengths` keeps that of the
        tokenizer.
        """
        rows = [pairs.source, pairs.target]
        for number, side in enumerate(self._sides):
            if side is not None:
                keys = hash_integers(self._seed, number, repetitions, *pairs.lines.T)
                max_ids = max_lengths[number] + number  # With the target's start token.
                rows[number] = _split(side, rows[number], keys, max_ids)
        return TokenPairs(rows[0], rows[1], pairs.lines)


def _side_sampler(name: str, tokenizer: Tokenizer, alpha: float) -> _SideSampler:
    """Returns the sampler for a tokenizer, or raises `ValueError` if there is none."""
    model_type = None
    if isinstance(tokenizer, SentencePieceTokenizer):
        subwords = tokenizer.subwords()
        model_type = subwords.model_type
    if model_type == "bpe":
        return _SideSampler(BPEDropout(subwords), alpha)
    if model_type == "unigram":
        return _SideSampler(UnigramSampling(subwords), alpha)
    raise ValueError(
        f"`{name}_sampling` must be `None` unless `{name}_tokenizer` is a "
        "`SentencePieceTokenizer` of type BPE or unigram; received "
        f"`{name}_sampling={alpha}` and a {type(tokenizer).__name__}."
    )


def _split(
    side: _SideSampler, rows: TokenRows, keys: np.ndarray, max_ids: float
) -> TokenRows:
    """Splits rows at random, except rows that would have more than `max_ids` ids."""
    count = len(rows.lengths)
    if not count:
        return rows
    chunks = [np.arange(count)[i : i + _CHUNK] for i in range(0, count, _CHUNK)]
    split = TokenRows.concatenate(
        [side.sampler.split(rows.take(c), keys[c], side.alpha) for c in chunks]
    )
    indices = np.arange(count) + count * (split.lengths > max_ids)
    return TokenRows.concatenate([split, rows]).take(indices)
