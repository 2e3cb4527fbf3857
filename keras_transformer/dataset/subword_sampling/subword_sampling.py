"""Splits both sides of pairs at random."""

from numbers import Real

import numpy as np

from keras_transformer.dataset.subword_sampling.bpe_dropout import BPEDropout
from keras_transformer.dataset.subword_sampling.hashing import mix
from keras_transformer.dataset.subword_sampling.unigram_sampling import UnigramSampling
from keras_transformer.dataset.token_rows import TokenPairs, TokenRows
from keras_transformer.text import SentencePieceTokenizer, Tokenizer

_CHUNK = 1024  # Rows at a time: few enough for the processor's cache.


class SubwordSampling:
    """Splits each text as the seed, the repetition, the corpus and the line say.

    Args:
        tokenizers: of source and target.
        alphas: how much each varies, as `BPEDropout` or `UnigramSampling` has it;
            `None`: not at all.
        seed: the seed.
    """

    def __init__(
        self,
        tokenizers: tuple[Tokenizer, Tokenizer],
        alphas: tuple[float | None, float | None],
        seed: int,
    ):
        self._seed = seed
        self._sides = [
            None if alpha is None else (_sampler(name, tokenizer, alpha), alpha)
            for name, tokenizer, alpha in zip(
                ("source", "target"), tokenizers, alphas, strict=True
            )
        ]

    def __bool__(self) -> bool:
        return any(self._sides)

    def sample(
        self, pairs: TokenPairs, repetitions: np.ndarray, limits: tuple[float, float]
    ) -> TokenPairs:
        """The pairs with their texts split at random.

        Args:
            pairs: the pairs as the tokenizers split them.
            repetitions: how often the corpus of each was gone through before.
            limits: most tokens of source and target; a longer split gives way to that
                of the tokenizer.
        """
        rows = [pairs.source, pairs.target]
        for number, side in enumerate(self._sides):
            if side is not None:
                keys = mix(self._seed, number, repetitions, *pairs.lines.T)
                longest = limits[number] + number  # The target has a start token.
                rows[number] = _split(*side, rows[number], keys, longest)
        return TokenPairs(rows[0], rows[1], pairs.lines)


def _sampler(
    name: str, tokenizer: Tokenizer, alpha: float
) -> BPEDropout | UnigramSampling:
    if not isinstance(alpha, Real) or not 0 <= float(alpha) <= 1:
        raise ValueError(
            f"`{name}_sampling` must be from 0 to 1; received "
            f"`{name}_sampling={alpha!r}`. 0.1 suits most BPE models."
        )
    model_type = None
    if isinstance(tokenizer, SentencePieceTokenizer):
        subwords = tokenizer.subwords()
        model_type = subwords.model_type
    if model_type == "bpe":
        return BPEDropout(subwords)
    if model_type == "unigram":
        return UnigramSampling(subwords)
    raise ValueError(
        f"`{name}_sampling` must be `None` unless `{name}_tokenizer` is a "
        "`SentencePieceTokenizer` of type BPE or unigram; received "
        f"`{name}_sampling={alpha}` and a {type(tokenizer).__name__}."
    )


def _split(
    sampler: BPEDropout | UnigramSampling,
    alpha: float,
    rows: TokenRows,
    keys: np.ndarray,
    longest: float,
) -> TokenRows:
    """The rows split at random, those not that would be longer than `longest`."""
    count = len(rows.lengths)
    if not count:
        return rows
    chunks = [np.arange(count)[i : i + _CHUNK] for i in range(0, count, _CHUNK)]
    split = TokenRows.join(
        [sampler.split(rows.take(chunk), keys[chunk], alpha) for chunk in chunks]
    )
    numbers = np.arange(count) + count * (split.lengths > longest)
    return TokenRows.join([split, rows]).take(numbers)
