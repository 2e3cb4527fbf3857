import collections

import numpy as np
import pytest
from sampling_rows import LINES, as_tuples, make_rows, spell, texts_of, tokenized

from keras_transformer.dataset import parallel_dataset
from keras_transformer.dataset.subword_sampling import BPEDropout
from keras_transformer.dataset.subword_sampling.hashing import hash_integers
from keras_transformer.text import SentencePieceTokenizer, Subwords

pytestmark = pytest.mark.once("torch")


def subwords(*tokens, special=("<unk>",)):
    """Returns a model that merges tokens of two or more letters in this order."""
    scores = [-float(n) for n in range(len(special) + len(tokens))]
    ordinary = [False] * len(special) + [True] * len(tokens)
    return Subwords("bpe", [*special, *tokens], scores, ordinary)


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(lines=LINES, vocabulary_size=97)


def test_probabilities_derived_by_hand():
    """A word with the merges 1. a+b, 2. b+c, 3. ab+c and a+bc."""
    model = subwords("a", "b", "c", "ab", "bc", "abc")
    count, p = 10_000, 0.3
    rows = make_rows([[6]] * count)
    split = BPEDropout(model).split(rows, hash_integers(3, np.arange(count)), p)
    found = collections.Counter(spell(model, split))
    expected = {
        "a b c": p * p,
        "ab c": (1 - p) * p,
        "a bc": p * (1 - p) * p,
        "abc": (1 - p) * (1 - p) + p * (1 - p) * (1 - p),
    }
    assert set(found) == set(expected)
    for word, probability in expected.items():
        assert found[word] / count == pytest.approx(probability, abs=0.02)


def test_the_leftmost_of_equal_merges_is_first():
    """As in SentencePiece: the split of aaa is aa a, never a aa."""
    model = subwords("a", "aa")
    rows = make_rows([[2, 1], [2, 2, 1]])
    split = BPEDropout(model).split(rows, hash_integers(np.arange(2)), 0)
    assert spell(model, split) == ["aa a", "aa aa a"]


def test_tokens_with_spaces():
    """A model that was trained without splitting at white space."""
    model = subwords("▁", "a", "▁a", "▁a▁a")
    split = BPEDropout(model).split(
        make_rows([[4], [3]]), hash_integers(np.arange(2)), 0
    )
    assert spell(model, split) == ["▁a▁a", "▁a"]


def test_without_dropout_splits_equal_those_of_the_tokenizer(tokenizer):
    words = [token.replace("▁", " ") for token in tokenizer.get_vocabulary()]
    rows = tokenized(tokenizer, [*words, *LINES, "", "über 語 Brückenbogen 語語"])
    sampler = BPEDropout(tokenizer.subwords())
    keys = hash_integers(np.arange(len(rows.lengths)))
    assert as_tuples(sampler.split(rows, keys, 0)) == as_tuples(rows)


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_text_does_not_change(tokenizer, dropout):
    texts = [*LINES, "a 語 red 語 bridge"] * 5
    rows = tokenized(tokenizer, texts)
    keys = hash_integers(3, np.arange(len(texts)))
    split = BPEDropout(tokenizer.subwords()).split(rows, keys, dropout)
    assert texts_of(tokenizer, split) == texts_of(tokenizer, rows)
    assert len(set(as_tuples(split))) > len(LINES) + 1
    assert split.token_ids.dtype == np.int32


def test_a_split_depends_only_on_its_key(tokenizer):
    rows = tokenized(tokenizer, LINES * 7)
    keys = hash_integers(np.arange(21) // 2)
    sampler = BPEDropout(tokenizer.subwords())
    split = as_tuples(sampler.split(rows, keys, 0.3))
    some = np.array([17, 3, 2, 20])
    assert as_tuples(sampler.split(rows.take(some), keys[some], 0.3)) == [
        split[number] for number in some
    ]


def test_special_tokens_are_not_split():
    model = subwords("a", "aa", "ab", special=("<unk>", "aaaa"))
    rows = make_rows([[1, 3, 4, 1], [0]])  # The letter b is not a token.
    for dropout in (0, 1):
        split = BPEDropout(model).split(rows, hash_integers(np.arange(2)), dropout)
        middle = ["aa", "a a"][dropout]
        assert spell(model, split) == [f"aaaa {middle} ab aaaa", "<unk>"]


def test_a_model_without_merges():
    tokenizer = SentencePieceTokenizer.train(
        lines=["abab ab ba bab"] * 5, vocabulary_size=7
    )
    data = parallel_dataset(
        pairs=[("ab", "ba")],
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        source_sampling=0.1,
    )
    ((inputs, _),) = data.dataset
    rows = inputs["encoder_token_ids"].numpy()
    expected = tokenizer.tokenize(["ab"], add_end=True).to_list()
    assert rows[rows.any(axis=1)].tolist() == expected
