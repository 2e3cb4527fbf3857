import numpy as np
import pytest
from sampling_rows import LINES, as_tuples, make_rows

from keras_transformer.dataset.subword_sampling import SubwordSampling
from keras_transformer.dataset.token_rows import TokenPairs
from keras_transformer.text import SentencePieceTokenizer, WordTokenizer

pytestmark = pytest.mark.once("torch")

TOKENIZERS = [
    SentencePieceTokenizer.train(lines=LINES, vocabulary_size=size, model_type=kind)
    for kind, size in {"bpe": 61, "unigram": 41}.items()
]
SOURCES = TOKENIZERS[0].tokenize(LINES * 5, add_end=True).to_list()
TARGETS = TOKENIZERS[1].tokenize(LINES * 5, add_start=True, add_end=True).to_list()
COUNT = len(SOURCES)


def make_pairs():
    lines = np.stack([np.arange(COUNT) % 2, np.arange(COUNT) // 2], axis=1)
    return TokenPairs(make_rows(SOURCES), make_rows(TARGETS), lines)


def sample(alphas, pairs=None, repetitions=3, max_lengths=(99, 99), seed=5):
    pairs = pairs or make_pairs()
    repetitions = np.full(len(pairs.lines), repetitions)
    sampled = SubwordSampling(TOKENIZERS, alphas, seed).sample(
        pairs, repetitions, max_lengths
    )
    assert sampled.lines is pairs.lines
    return as_tuples(sampled.source), as_tuples(sampled.target)


def test_sampling_of_one_side_or_both():
    plain = sample((None, None))
    assert plain == (list(map(tuple, SOURCES)), list(map(tuple, TARGETS)))
    both = sample((0.3, 0.2))
    assert sample((0.3, None)) == (both[0], plain[1])
    assert sample((None, 0.2)) == (plain[0], both[1])
    assert not SubwordSampling(TOKENIZERS, (None, None), 5)
    assert SubwordSampling(TOKENIZERS, (None, 0.2), 5)


def test_splits_depend_on_seed_repetition_corpus_and_line():
    first, _ = sample((0.3, None))
    assert len(set(first)) > len(LINES)
    assert sample((0.3, None))[0] == first
    assert sample((0.3, None), seed=7)[0] != first
    assert sample((0.3, None), repetitions=4)[0] != first
    some = np.array([11, 2, 7])
    assert sample((0.3, None), make_pairs().take(some))[0] == [first[n] for n in some]
    moved = make_pairs()._replace(lines=make_pairs().lines[::-1])
    assert sample((0.3, None), moved)[0] != first


def test_longer_splits_are_replaced_by_those_of_the_tokenizer():
    sides = sample((0.5, 0))
    longest = [int(np.median([len(row) for row in side])) for side in sides]
    # The maximum length of the target does not count the start token.
    limited = sample((0.5, 0), max_lengths=(longest[0], longest[1] - 1))
    for limit, found, free, plain in zip(
        longest, limited, sides, (SOURCES, TARGETS), strict=True
    ):
        assert found == [
            row if len(row) <= limit else tuple(instead)
            for row, instead in zip(free, plain, strict=True)
        ]
        assert found not in (free, list(map(tuple, plain)))


def test_chunks_do_not_change_the_splits():
    """1024 texts are split at a time."""
    repeated = np.arange(1100) % COUNT
    pairs = make_pairs().take(repeated)
    first, _ = sample((0.3, None))
    assert sample((0.3, None), pairs)[0] == [first[number] for number in repeated]


@pytest.mark.parametrize("alpha", [-0.1, 1.5, float("nan")])
def test_bad_alpha(alpha):
    message = f"0 and of at most 1; received `target_sampling={alpha}"
    with pytest.raises(ValueError, match=message):
        SubwordSampling(TOKENIZERS, (None, alpha), 5)


def test_other_tokenizers():
    words = WordTokenizer.train(lines=LINES)
    message = "`source_sampling` must be `None` unless .* and a WordTokenizer"
    with pytest.raises(ValueError, match=message):
        SubwordSampling((words, words), (0.1, None), 5)
