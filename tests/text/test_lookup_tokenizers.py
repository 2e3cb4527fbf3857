"""Tokenizers of characters and words."""

import json
import os
import pathlib
import subprocess
import sys
import unicodedata

import pytest
import tensorflow as tf

from keras_transformer.text import (
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    WordTokenizer,
)

pytestmark = pytest.mark.once
ROOT = pathlib.Path(__file__).parents[2]


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


def test_characters_are_decomposed_and_composed_again():
    tokenizer = CharacterTokenizer.train(
        lines=["한국 É"], lowercase=True, decompose=True
    )
    letters = list(unicodedata.normalize("NFD", "한국 é"))
    assert tokenizer.get_vocabulary()[4:] == sorted(letters, key=str.encode)
    texts = ["한국É", "국", "", b"\xff"]
    token_ids = tokenizer.tokenize(texts)
    expected = [
        list(unicodedata.normalize("NFD", text)) for text in ("한국é", "국", "")
    ]
    vocabulary = tokenizer.get_vocabulary()
    found = [[vocabulary[id] for id in row] for row in token_ids.to_list()]
    assert found == [*expected, ["<unk>"]]
    outputs = [text.decode() for text in tokenizer.detokenize(token_ids).numpy()]
    assert outputs == ["한국é", "국", "", "<unk>"]
    copy = CharacterTokenizer.from_config(tokenizer.get_config())
    assert copy.tokenize(texts).to_list() == token_ids.to_list()


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (["a", "b"], "`vocabulary` must contain the special tokens"),
        (["a", "<pad>", "<unk>", "<s>", "</s>"], "`vocabulary` must begin with"),
        (["<pad>", "<unk>", "<s>", "</s>", "a", "b", "a"], r"repeats \['a'\]"),
    ],
)
def test_bad_vocabulary(vocabulary, message):
    with pytest.raises(ValueError, match=message):
        WordTokenizer(vocabulary)


@pytest.mark.parametrize("text", ["", "é語😀 x\t", "</s>"])
def test_bytes_are_those_of_utf_8(text, tmp_path):
    tokenizer = ByteTokenizer()
    expected = [byte + 4 for byte in text.encode()]
    token_ids = tokenizer.tokenize([text, "b"])
    assert token_ids.dtype == tf.int32
    assert token_ids.to_list() == [expected, [102]]
    assert tf.function(tokenizer.tokenize)(tf.constant([text]))[0].numpy().tolist() == (
        expected
    )
    assert tokenizer.detokenize(token_ids).numpy()[0].decode() == text
    tokenizer.save(tmp_path / "bytes.json")
    loaded = Tokenizer.load(tmp_path / "bytes.json")
    assert loaded.get_vocabulary() == tokenizer.get_vocabulary()
    assert loaded.vocabulary_size == 260


def test_bytes_that_are_not_utf_8():
    tokenizer = ByteTokenizer(lowercase=True)
    incomplete = tokenizer.tokenize(["É"])[:, :1]
    assert tokenizer.detokenize(incomplete).numpy()[0].decode() == "\ufffd"
    assert tokenizer.tokenize(["É"]).to_list() == tokenizer.tokenize(["é"]).to_list()
    assert tokenizer.token_texts()[0xE9 + 4] == b"\xe9"


def test_white_space_and_invisible_characters_are_no_words():
    tokenizer = ByteTokenizer()
    texts = ["", " \n\t", "\u00a0\u3000", "\u200b\u200d\ufe0f", "\x00\u00ad", "\u3164"]
    others = ["a", " \u0301", "-", "\u200bé ", "\ue000"]
    rows = tokenizer.tokenize(texts + others, add_end=True).to_list()
    expected = [False] * len(texts) + [True] * len(others)
    assert [*map(tokenizer.has_words, texts + others, rows)] == expected
    blank = tf.function(tokenizer.find_blank)(tf.constant(texts + others))
    assert (~blank).numpy().tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("locale", ["tr_TR.UTF-8", "lt_LT.UTF-8"])
def test_lower_case_does_not_depend_on_the_locale(locale):
    code = """
import json, sys, keras_transformer as kt, tensorflow as tf
texts = json.load(sys.stdin)
tokenizer = kt.ByteTokenizer(lowercase=True)
ids = tf.function(tokenizer.tokenize)(tf.constant(texts))
lower = [text.decode() for text in tokenizer.detokenize(ids).numpy()]
print(json.dumps([lower, tf.strings.lower(texts, "utf-8")[0].numpy().decode()]))
"""
    texts = ["I\u0301 TITLE ΟΔΟΣ", "İ", "I\u0323\u0307", "J\u0307 Į\u0300 ÌÍĨ"]
    process = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": locale, "PYTHONPATH": str(ROOT)},
    )
    assert process.returncode == 0, process.stderr[-3000:]
    lower, of_locale = json.loads(process.stdout)
    assert lower == [text.lower() for text in texts]
    assert of_locale != lower[0]  # The process has the locale.
