import collections
import itertools

import numpy as np
import pytest
from sampling_rows import LINES, as_tuples, make_rows, spell, texts_of, tokenized

from keras_transformer.dataset.subword_sampling import UnigramSampling
from keras_transformer.dataset.subword_sampling.hashing import hash_integers
from keras_transformer.text import SentencePieceTokenizer, Subwords

pytestmark = pytest.mark.once("torch")

TOKENS = {"a": -3.0, "b": -2.0, "▁": -4.0, "▁a": -2.5, "ab": -3.5, "aba": -5.0}
MODEL = Subwords(
    "unigram", ["<unk>", *TOKENS], [0.0, *TOKENS.values()], [False] + [True] * 6
)


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(
        lines=LINES, vocabulary_size=41, model_type="unigram"
    )


def all_splits(word):
    """Returns the score of each split of a word into tokens."""
    splits = {}
    for cuts in itertools.product(["", " "], repeat=len(word) - 1):
        split = "".join(map(str.__add__, word, (*cuts, "")))
        if set(split.split()) <= set(TOKENS):
            splits[split] = sum(TOKENS[token] for token in split.split())
    return splits


@pytest.mark.parametrize("alpha", [0, 0.5])
def test_probabilities_against_enumeration(alpha):
    count = 20_000
    rows = make_rows([[4, 2, 1, 2]] * count)  # ▁a b a b
    split = UnigramSampling(MODEL).split(
        rows, hash_integers(3, np.arange(count)), alpha
    )
    found = collections.Counter(spell(MODEL, split))
    weights = {word: np.exp(alpha * s) for word, s in all_splits("▁abab").items()}
    assert set(found) == set(weights)
    assert len(weights) == 7
    for word, weight in weights.items():
        expected = weight / sum(weights.values())
        assert found[word] / count == pytest.approx(expected, abs=0.015)


def test_tokens_with_spaces():
    model = MODEL._replace(tokens=["<unk>", "a", "b", "▁", "▁a", "ab", "b▁a"])
    rows = make_rows([[1, 6, 2]])
    split = UnigramSampling(model).split(rows, hash_integers(np.arange(1)), 50)
    assert spell(model, split) == ["ab ▁a b"]


@pytest.mark.parametrize("alpha", [0.2])
def test_text_does_not_change(tokenizer, alpha):
    texts = [*LINES, "a 語 red 語 bridge", ""] * 5
    rows = tokenized(tokenizer, texts)
    keys = hash_integers(3, np.arange(len(texts)))
    split = UnigramSampling(tokenizer.subwords()).split(rows, keys, alpha)
    assert texts_of(tokenizer, split) == texts_of(tokenizer, rows)
    assert len(set(as_tuples(split))) > len(LINES) + 2
    assert split.token_ids.dtype == np.int32


def test_a_split_depends_only_on_its_key(tokenizer):
    rows = tokenized(tokenizer, LINES * 7)
    keys = hash_integers(np.arange(21) // 2)
    sampler = UnigramSampling(tokenizer.subwords())
    split = as_tuples(sampler.split(rows, keys, 0.2))
    some = np.array([17, 3, 2, 20])
    assert as_tuples(sampler.split(rows.take(some), keys[some], 0.2)) == [
        split[number] for number in some
    ]


def test_special_tokens_are_not_split():
    model = Subwords(
        "unigram", ["<unk>", "abab", "a", "b", "ab"], [0, 0, -1, -1, -50],
        [False, False, True, True, True],
    )  # fmt: skip
    rows = make_rows([[1, 4, 0, 0, 1], [0]])
    split = UnigramSampling(model).split(rows, hash_integers(np.arange(2)), 1)
    assert spell(model, split) == ["abab a b <unk> <unk> abab", "<unk>"]
