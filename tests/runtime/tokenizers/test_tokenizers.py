"""The tokenizers in plain Python are equal to the graphs of TensorFlow."""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys

import keras_nlp
import numpy as np
import pytest
import regex
import tensorflow as tf
from odd_texts import odd_rows, odd_texts

from keras_transformer.text import (
    ByteTokenizer,
    CharacterTokenizer,
    KerasHubTokenizer,
    MarianTokenizer,
    SentencePieceTokenizer,
    WordTokenizer,
)
from keras_transformer_runtime.tokenizers import (
    BYTE_PAIR_CLASSES,
    PIECE_CLASSES,
    read_tokenizer,
)
from keras_transformer_runtime.tokenizers.keras_hub_tokenizers import BYTES
from keras_transformer_runtime.tokenizers.lookup_tokenizers import lower_case
from keras_transformer_runtime.tokenizers.unicode_versions import (
    NEW_CASES,
    NEW_LETTERS_AND_NUMBERS,
)

pytestmark = pytest.mark.once("torch")

ROOT = pathlib.Path(__file__).parents[3]
# Characters that normalization does not replace, and a few words.
LINES = [
    "the cat sat on a dog",
    "12 and 219, we'll see",
    "Éclair éß 中文 ไทย a-b <c>",
] * 3
CHARACTERS = [chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000]


def piece_tokenizer(size=90, **options):
    options = {"user_defined_symbols": ["<name>"], **options}
    return SentencePieceTokenizer.train(lines=LINES, vocabulary_size=size, **options)


def marian_tokenizer(**options):
    pieces = piece_tokenizer(**options)
    own = [token for token in pieces.get_vocabulary()[4:] if token != "▁a"]
    languages = [">>deu<<", ">>fra<<"]
    tokens = ["</s>", "<unk>", *languages, *reversed(own), "▁extra", "<pad>"]
    return MarianTokenizer(pieces.proto, tokens)


# Merges whose order is not that of a training, so that longer ones can come first.
MERGES = ["t h", "Ġ a", "th e", "Ġ the", "c a", "a t", "ca t", "Ġ cat", "Ġ Ġ", "1 2"]
MERGES += ["Ã ©", "č Ċ", "Ċ Ċ", "à ¥", "à¥ ¬", "Â ħ", "ð Ł", "' t", "Ġ 1", "Ġ 12"]


def byte_pairs(class_name, extra=(), lacking="", **options):
    kind = getattr(keras_nlp.tokenizers, class_name)
    special = kind(vocabulary=None, merges=None).special_tokens
    tokens = [each for each in BYTES if each not in lacking]
    tokens += [merge.replace(" ", "") for merge in MERGES]
    tokens += [*filter(None, special), *extra]
    ids = {token: id for id, token in enumerate(dict.fromkeys(tokens))}
    return KerasHubTokenizer(kind(ids, MERGES, **options))


def hub_pieces(class_name="SentencePieceTokenizer"):
    """Pieces of KerasHub, its special tokens as user-defined symbols included."""
    kind = getattr(keras_nlp.tokenizers, class_name)
    special = {"[MASK]", *filter(None, kind(proto=None).special_tokens)}
    symbols = sorted(special - {"<pad>", "<unk>", "<s>", "</s>"})
    size = 100 + len(symbols)
    return KerasHubTokenizer(
        kind(piece_tokenizer(size, user_defined_symbols=symbols).proto)
    )


ODD = ["a dog", ".b*", "६", "é", "the", "X", "1", "2", "9", "-", "Z"]
UNIGRAM = {"model_type": "unigram", "size": 39}
MAKE = {
    "characters": lambda: CharacterTokenizer.train(lines=LINES),
    "letters": lambda: CharacterTokenizer.train(lines=LINES, decompose=True),
    "lower-case characters": lambda: CharacterTokenizer.train(
        lines=[*LINES, "İΣς ß"], lowercase=True
    ),
    "words": lambda: WordTokenizer.train(lines=[*LINES, ">>deu<< ab X"]),
    "lower-case words": lambda: WordTokenizer.train(lines=LINES, lowercase=True),
    "bytes": ByteTokenizer,
    "lower-case bytes": lambda: ByteTokenizer(lowercase=True),
    "BPE": piece_tokenizer,
    "BPE without changes": lambda: piece_tokenizer(normalization="identity"),
    "BPE in lower case": lambda: piece_tokenizer(normalization="nfkc", lowercase=True),
    "BPE with white space": lambda: piece_tokenizer(keep_whitespace=True),
    "BPE with bytes": lambda: piece_tokenizer(size=340, byte_fallback=True),
    "unigrams": lambda: piece_tokenizer(**UNIGRAM),
    "unigrams with bytes": lambda: piece_tokenizer(
        size=296, model_type="unigram", byte_fallback=True, keep_whitespace=True
    ),
    "Marian, BPE": marian_tokenizer,
    "Marian, unigrams": lambda: marian_tokenizer(**UNIGRAM),
    "GPT-2": lambda: byte_pairs("GPT2Tokenizer"),
    "byte pairs with a space": lambda: byte_pairs(
        "BytePairTokenizer", add_prefix_space=True
    ),
    "byte pairs with whole tokens": lambda: byte_pairs(
        "BytePairTokenizer", extra=ODD, unsplittable_tokens=ODD
    ),
    "byte pairs without some bytes": lambda: byte_pairs(
        "BytePairTokenizer", lacking="bXxZ-ÿ"
    ),
    "BPE of KerasHub": hub_pieces,
}


@functools.cache
def made(name):
    return MAKE[name]()


def plain(tokenizer):
    content = {"class_name": type(tokenizer).__name__, "config": tokenizer.get_config()}
    return read_tokenizer(json.loads(json.dumps(content)), pathlib.Path())


@functools.cache
def encoder(tokenizer):
    """Operations of tensorflow-text, also where eager code is another one."""
    signature = [tf.TensorSpec([None], tf.string)]
    return tf.function(lambda texts: tokenizer.tokenize(texts), signature)


def in_graph(tokenizer, texts):
    return encoder(tokenizer)(tf.constant(texts)).to_list()


def check_equal(tokenizer, count, seed):
    """Compares ids, texts and the checks of a tokenizer with those of TensorFlow."""
    found, texts = plain(tokenizer), odd_texts(count, seed)
    expected = in_graph(tokenizer, texts)
    for text, row in zip(texts, expected, strict=True):
        assert found.encode(text) == row, ascii(text)
    assert tokenizer.tokenize(texts).to_list() == expected
    rows = [*odd_rows(count, tokenizer.vocabulary_size, seed), *expected]
    ragged = tf.ragged.constant(rows, tf.int32, ragged_rank=1)
    signature = [tf.RaggedTensorSpec([None, None], tf.int32)]
    decode = tf.function(lambda batch: tokenizer.detokenize(batch), signature)
    for row, text in zip(rows, decode(ragged).numpy(), strict=True):
        assert found.decode(row) == text.decode(), row
    without_words = {tokenizer.end_token_id, *tokenizer.language_token_ids}
    blank = tokenizer.find_blank(tf.constant(texts)).numpy()
    expected_words = [
        not each and not {*row} <= without_words
        for each, row in zip(blank, expected, strict=True)
    ]
    assert [*map(found.has_words, texts, expected)] == expected_words


# KerasHub needs seconds for its first byte pairs.
@pytest.mark.parametrize("name", [n for n in MAKE if not n.startswith("byte pairs")])
def test_ids_and_texts_are_those_of_the_graph(name):
    check_equal(made(name), 41 if name == "GPT-2" else 200, seed=11)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_many_ids_and_texts_are_those_of_the_graph(name):
    check_equal(made(name), 3000, seed=13)


@pytest.mark.slow
@pytest.mark.parametrize("class_name", BYTE_PAIR_CLASSES + PIECE_CLASSES)
def test_classes_of_keras_hub_split_as_their_base_class_does(class_name):
    make = byte_pairs if class_name in BYTE_PAIR_CLASSES else hub_pieces
    check_equal(make(class_name), 100, seed=17)


@pytest.mark.parametrize("name", ["characters", "BPE", "Marian, BPE", "GPT-2"])
def test_vocabulary_and_special_ids(name):
    tokenizer = made(name)
    found = plain(tokenizer)
    assert found.tokens == tuple(tokenizer.get_vocabulary())
    assert found.vocabulary_size == tokenizer.vocabulary_size
    for each in ("pad_token_id", "unknown_token_id", "start_token_id", "end_token_id"):
        assert getattr(found, each) == getattr(tokenizer, each)
    assert found.language_token_ids == tokenizer.language_token_ids
    assert found.special_tokens == tokenizer.special_tokens


def test_language_tokens():
    found = plain(made("Marian, BPE"))
    row = found.encode(">>xyz<< the cat")
    assert found.unknown_language_token(">>xyz<< the cat", row) == ">>xyz<<"
    with pytest.raises(ValueError, match=r"`source` must begin with .* '>>xyz<<' in l"):
        found.check_language_token(">>xyz<< the cat", row, "source", "line 3")
    assert not found.has_words(">>deu<< \u200b", found.encode(">>deu<< \u200b"))


def test_scores_of_unigrams_that_are_equal():
    """The package sentencepiece chooses another one of the best sequences."""
    tokenizer = made("unigrams")
    letters = np.random.default_rng(3).choice([*"sste "], (997, 17))
    texts = [*map("".join, letters)]
    expected = in_graph(tokenizer, texts)
    assert [*map(plain(tokenizer).encode, texts)] == expected
    assert tokenizer.tokenize(texts).to_list() == expected


def in_lower_case(text):
    """Every character has its bytes, so no id hides a difference."""
    row = in_graph(ByteTokenizer(lowercase=True), [text])[0]
    return bytes(id - 4 for id in row).decode()


def check_lower_case(characters):
    for pattern in ("{}", "{}Σ", "Α{}Σ", "ΑΣ{}", "ΑΣ{}Α", "{}\u0307"):
        texts = [*map(pattern.format, characters)]
        expected = in_lower_case(" ".join(texts))
        assert " ".join(map(lower_case, texts)) == expected, pattern


def test_lower_case():
    changed = [each for each in CHARACTERS if each != each.lower()]
    edges = [chr(ord(each) + i) for each in NEW_CASES for i in (-1, 0, 1)]
    check_lower_case([*changed, *edges, *odd_texts(97, seed=23), "\u1734", "Σ\u1734"])


@pytest.mark.slow
def test_lower_case_of_all_characters():
    check_lower_case(CHARACTERS)


def test_white_space_between_words():
    tokenizer = WordTokenizer.train(lines=["a"])
    texts = [f"a{character}a" for character in CHARACTERS[:0x3001]]
    lengths = [*map(len, in_graph(tokenizer, texts))]
    assert [len(plain(tokenizer).encode(text)) for text in texts] == lengths
    assert lengths.count(2) == 6


def test_letters_and_numbers_of_byte_pairs():
    """Letters that TensorFlow lacks are punctuation, which splits a word."""
    edges = {ord(each) + i for each in NEW_LETTERS_AND_NUMBERS for i in (-1, 0, 1)}
    tokenizer = made("GPT-2")
    texts = [f"th{chr(edge)}e 1{chr(edge)}2 {chr(edge)} {chr(edge)}a" for edge in edges]
    assert len(texts) > 200
    assert [*map(plain(tokenizer).encode, texts)] == in_graph(tokenizer, texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["L", "N"])
def test_letters_and_numbers_of_regular_expressions(name):
    expected = tf.strings.regex_full_match(CHARACTERS, rf"\p{{{name}}}").numpy()
    pattern = rf"[\p{{{name}}}--[{NEW_LETTERS_AND_NUMBERS}]]"
    matches = regex.compile(pattern, regex.VERSION1).fullmatch
    assert [matches(each) is not None for each in CHARACTERS] == expected.tolist()


def test_model_in_a_file(tmp_path):
    tokenizer = piece_tokenizer()
    (tmp_path / "source.model").write_bytes(tokenizer.proto)
    content = {
        "class_name": "SentencePieceTokenizer",
        "config": {"proto": "source.model"},
    }
    found = read_tokenizer(content, tmp_path)
    assert found.encode("the cat") == in_graph(tokenizer, ["the cat"])[0]
    with pytest.raises(FileNotFoundError):
        read_tokenizer(content, tmp_path / "another")


def hub(class_name, **settings):
    return {"tokenizer": {"class_name": class_name, "settings": settings}}


@pytest.mark.parametrize(
    ("class_name", "config", "message"),
    [
        ("Tokenizer", {}, "`class_name` must be one of SentencePieceTokenizer, .*'Tok"),
        (None, {}, "`class_name` must be one of .*; received None. Use the SavedModel"),
        ("ByteTokenizer", [], r"`config` must be a dictionary; received `config=\[\]`"),
        ("ByteTokenizer", {"lowercase": 1}, "`lowercase` must be a bool; .*=1`"),
        ("ByteTokenizer", {"size": ["a"]}, r"must have the arguments of .*\['size'\]"),
        ("WordTokenizer", {}, r"must have the arguments of a WordTokenizer; .*\[\]"),
        (
            "WordTokenizer",
            {"vocabulary": ["a", 1]},
            "`vocabulary` must be a list of str",
        ),
        ("WordTokenizer", {"vocabulary": ["a"]}, "must contain the special tokens"),
        (
            "CharacterTokenizer",
            {"vocabulary": ["<pad>", "<unk>", "<s>", "</s>", "a", "a"]},
            "must contain each token once",
        ),
        (
            "SentencePieceTokenizer",
            {"proto": "../a.model"},
            "the name of a file of the",
        ),
        (
            "HuggingFaceTokenizer",
            {"tokenizer": "../a.json"},
            "`tokenizer` must be the name of a file of the folder; .*../a.json",
        ),
        (
            "SentencePieceTokenizer",
            {"proto": "é"},
            "`proto` must be base64 text or the",
        ),
        (
            "SentencePieceTokenizer",
            {"proto": "AAAA"},
            "a serialised SentencePiece model",
        ),
        ("SentencePieceTokenizer", {"proto": 3}, "`proto` must be a str; .*=3`"),
        ("KerasHubTokenizer", {}, "`tokenizer` must be a dictionary; received .*=None"),
        (
            "KerasHubTokenizer",
            hub("BertTokenizer"),
            "BytePairTokenizer.*'BertTokenizer'",
        ),
        ("KerasHubTokenizer", hub("CLIPTokenizer"), "`tokenizer` must be one of "),
        (
            "KerasHubTokenizer",
            hub("GPT2Tokenizer"),
            "must have the arguments of a Byte",
        ),
        (
            "KerasHubTokenizer",
            {"end_token_id": True, **hub("GPT2Tokenizer")},
            "`end_token_id` must be an int; received `end_token_id=True`",
        ),
    ],
)
def test_damaged_configuration(class_name, config, message):
    content = {"class_name": class_name, "config": config}
    with pytest.raises(ValueError, match=message):
        read_tokenizer(content, pathlib.Path())


def test_special_ids_of_another_vocabulary():
    config = made("GPT-2").get_config() | {"end_token_id": 999}
    content = {"class_name": "KerasHubTokenizer", "config": config}
    with pytest.raises(
        ValueError, match="id of `</s>` must be from 0 to .*received 999"
    ):
        read_tokenizer(content, pathlib.Path())


@pytest.mark.slow
@pytest.mark.parametrize("locale", ["C", "tr_TR.UTF-8", "lt_LT.UTF-8"])
def test_no_import_of_tensorflow_in_any_locale(locale):
    code = """
import contextlib, json, locale, pathlib, sys
from keras_transformer_runtime.tokenizers import read_tokenizer
unneeded = [each for each in ("regex", "sentencepiece") if each in sys.modules]
with contextlib.suppress(locale.Error):  # not every system has it
    locale.setlocale(locale.LC_ALL, "")
contents, texts = json.load(sys.stdin)
rows = []
for content in contents:
    tokenizer = read_tokenizer(content, pathlib.Path())
    rows.append([tokenizer.encode(text) for text in texts])
    for row in rows[-1]:
        tokenizer.decode(row)
print(json.dumps([rows, unneeded, [*sys.modules]]))
"""
    tokenizers = [*map(made, MAKE)]
    texts = [*odd_texts(50, seed=19), "I\u0301 TITLE ΟΔΟΣ", "I\u0323\u0307 J\u0307 ÌÍĨ"]
    contents = [
        {"class_name": type(each).__name__, "config": each.get_config()}
        for each in tokenizers
    ]
    process = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([contents, texts]),
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": locale, "PYTHONPATH": str(ROOT)},
    )
    assert process.returncode == 0, process.stderr[-3000:]
    rows, unneeded, modules = json.loads(process.stdout)
    assert rows == [in_graph(each, texts) for each in tokenizers]
    assert not unneeded
    names = {re.split(r"\.", name)[0] for name in modules}
    assert not names & {"keras", "keras_transformer", "numpy", "tensorflow"}
