"""Tokenizers of characters and words."""

import pytest

from keras_transformer.text import CharacterTokenizer, WordTokenizer

pytestmark = pytest.mark.once


def test_vocabulary_by_frequency_then_alphabetical():
    tokenizer = WordTokenizer.train(lines=["b c a c", "d </s> Ä"])
    assert tokenizer.get_vocabulary()[4:] == ["c", "a", "b", "d", "Ä"]
    tokenizer = CharacterTokenizer.train(lines=["abcc ", "Ä"], lowercase=True)
    assert tokenizer.get_vocabulary()[4:] == ["c", " ", "a", "b", "ä"]
    assert tokenizer.tokenize(["ÄC"]).to_list() == [[8, 4]]


def test_limited_vocabulary_and_unknown_tokens():
    tokenizer = WordTokenizer.train(lines=["b c a c"], vocabulary_size=6)
    assert tokenizer.get_vocabulary()[4:] == ["c", "a"]
    token_ids = tokenizer.tokenize(["c b  a"])
    assert token_ids.to_list() == [[4, 1, 5]]
    assert tokenizer.detokenize(token_ids).numpy().tolist() == [b"c <unk> a"]


def test_characters_are_code_points():
    tokenizer = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", "é", "語"])
    assert tokenizer.tokenize(["語é!", b"\xff"]).to_list() == [[5, 4, 1], [1]]


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (["a", "b"], "`vocabulary` must contain the special tokens"),
        (["a", "<pad>", "<unk>", "<s>", "</s>"], "`vocabulary` must begin with"),
        (["<pad>", "<unk>", "<s>", "</s>", "a", "b", "a"], r"repeats \['a'\]"),
    ],
)
@pytest.mark.parametrize("cls", [CharacterTokenizer, WordTokenizer])
def test_bad_vocabulary(cls, vocabulary, message):
    with pytest.raises(ValueError, match=message):
        cls(vocabulary)
