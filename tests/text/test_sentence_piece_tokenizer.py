"""The SentencePiece tokenizer: options of the training, models of other programs."""

import io
import itertools
import json
import os
import re

import pytest
import sentencepiece
import tensorflow as tf
from training_text import LINES

from keras_transformer.text import SentencePieceTokenizer, Tokenizer

pytestmark = pytest.mark.once

# Training.


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_training_is_deterministic(model_type):
    def train(seed):
        return SentencePieceTokenizer.train(
            lines=LINES * 5,
            vocabulary_size=41,
            model_type=model_type,
            max_sentences=13,
            seed=seed,
        )

    assert train(3).get_config() == train(3).get_config()
    assert train(3).vocabulary_size == 41


def test_training_with_long_lines():
    lines = ["a short line"] * 50 + ["Ж" * 4193] * 50
    tokenizer = SentencePieceTokenizer.train(lines=lines, vocabulary_size=16)
    (ids,) = tokenizer.tokenize(["Ж"]).to_list()
    assert tokenizer.unknown_token_id not in ids


def test_training_with_the_character_of_unknown_text_of_sentencepiece():
    lines = ["the quick fox"] * 5 + ["a \u2585 zebra"]
    tokenizer = SentencePieceTokenizer.train(lines=lines, vocabulary_size=22)
    assert 1 not in tokenizer.tokenize(["zebra"]).to_list()[0]


def test_sample_depends_on_the_seed():
    lines = ["".join(word) for word in itertools.product("stkb", "aeiou", "nmrldfg")]
    options = {"lines": lines, "vocabulary_size": 37, "max_sentences": 97}
    vocabularies = {
        tuple(SentencePieceTokenizer.train(**options, seed=seed).get_vocabulary())
        for seed in range(3)
    }
    assert len(vocabularies) > 1


def test_lowercase():
    tokenizer = SentencePieceTokenizer.train(
        lines=LINES, vocabulary_size=53, lowercase=True
    )
    texts = tokenizer.detokenize(tokenizer.tokenize(["ZWEI Hunde"])).numpy()
    assert texts.tolist() == [b"zwei hunde"]


TEXT = "½ litre™，a\u00a0b"


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, "1⁄2 litreTM,a b"),
        ({"normalization": "nfkc", "lowercase": True}, "1⁄2 litretm,a b"),
        ({"normalization": "identity"}, TEXT),
    ],
)
def test_normalization(options, expected):
    tokenizer = SentencePieceTokenizer.train(
        lines=[TEXT, TEXT.lower()], vocabulary_size=24, **options
    )
    again = SentencePieceTokenizer.from_config(tokenizer.get_config())
    for each in (tokenizer, again):
        (text,) = each.detokenize(each.tokenize([f" {TEXT}  "])).numpy()
        assert text.decode() == expected


def test_character_coverage_excludes_the_rarest_characters():
    lines = ["abcd" * 25] * 10 + ["語"]
    full, partial = (
        SentencePieceTokenizer.train(
            lines=lines, vocabulary_size=12, character_coverage=coverage
        )
        for coverage in (1.0, 0.995)
    )
    assert full.unknown_token_id not in full.tokenize(["語"]).to_list()[0]
    assert partial.unknown_token_id in partial.tokenize(["語"]).to_list()[0]


def test_vocabulary_smaller_than_the_set_of_characters():
    message = (
        r"room for each character .* (\d+) tokens .*`vocabulary_size=9`\. .* lower "
        r"`character_coverage`.*`character_coverage=1.0`"
    )
    with pytest.raises(ValueError, match=message) as error:
        SentencePieceTokenizer.train(lines=["abcdefgh"], vocabulary_size=9)
    size = int(re.search(message, str(error.value))[1])
    tokenizer = SentencePieceTokenizer.train(lines=["abcdefgh"], vocabulary_size=size)
    assert tokenizer.vocabulary_size == size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary_size": 997}, r"=997`.* too high \(997\).* value <= \d+"),
        ({"vocabulary_size": 0}, r"`vocabulary_size=0`\. .* reports: .*vocab_size"),
        ({"max_sentences": 0}, "`max_sentences` must .* `max_sentences=0`"),
        ({"character_coverage": 0.97}, "`character_coverage` must .*=0.97"),
        ({"character_coverage": 1.5}, "`character_coverage` must .*=1.5"),
        ({"model_type": "word"}, "`model_type` must be 'bpe' or 'unigram'"),
        ({"normalization": "nfc"}, '`normalization` must be "nmt_nfkc", .*nfc\'`'),
        (
            {"normalization": "identity", "lowercase": True},
            "`normalization` must .*`lowercase=True`",
        ),
        ({"user_defined_symbols": "<a>"}, "must be a list of strings without spaces; "),
        ({"user_defined_symbols": ["<a b>"]}, "must be a list of strings without sp"),
        ({"user_defined_symbols": [5]}, "must be a list of strings without spaces; "),
        ({"user_defined_symbols": ["<a>", "</s>"]}, r"special tokens, .*\['</s>'\]"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer.train(lines=LINES, **options)


# Trained models.


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_tokenize_is_equal_in_graphs(model_type):
    tokenizer = SentencePieceTokenizer.train(
        lines=LINES * 3, vocabulary_size=37, model_type=model_type, lowercase=True
    )
    texts = [*LINES, "", "  A \t rïde ", "語語 red", "e\u0301 ﬁ Ⅳ", "\ufeff<s>", "a\0b"]
    texts = [*(text.encode() for text in texts), b"a\xff\xc3", b"\xed\xa0\x80"]
    compiled = tf.function(tokenizer.tokenize)
    expected = compiled(tf.constant(texts), add_end=True)
    found = tokenizer.tokenize(texts, add_end=True)
    assert found.to_list() == expected.to_list()
    assert found.dtype == expected.dtype
    assert found.row_splits.dtype == expected.row_splits.dtype


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_subwords(model_type):
    tokenizer = SentencePieceTokenizer.train(
        lines=LINES, vocabulary_size=37, model_type=model_type
    )
    subwords = tokenizer.subwords()
    assert subwords.model_type == model_type
    assert subwords.tokens == tokenizer.get_vocabulary()
    assert subwords.ordinary == [False] * 4 + [True] * 33
    assert len(set(subwords.scores)) > 2
    assert max(subwords.scores) <= 0


# Models of other programs.


def train_with_sentencepiece(**options):
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=proto,
        vocab_size=61,
        model_type="bpe",
        minloglevel=2,
        **options,
    )
    return proto.getvalue()


def test_special_ids_of_the_model():
    proto = train_with_sentencepiece(pad_id=60, unk_id=0, bos_id=1, eos_id=2)
    tokenizer = SentencePieceTokenizer(proto)
    assert tokenizer.pad_token_id == 60
    assert tokenizer.unknown_token_id == tokenizer.token_to_id("語") == 0
    assert (tokenizer.start_token_id, tokenizer.end_token_id) == (1, 2)
    rows = tokenizer.tokenize(LINES, add_start=True, add_end=True)
    texts = tokenizer.detokenize(rows.to_tensor(60)).numpy()
    assert [text.decode() for text in texts] == LINES


def test_text_is_never_converted_to_special_tokens():
    symbols = ["<pad>", "</s>"]
    proto = train_with_sentencepiece(user_defined_symbols=symbols)
    tokenizer = SentencePieceTokenizer(proto)
    special = {tokenizer.token_to_id(symbol) for symbol in symbols}
    for row in tokenizer.tokenize(["a <pad> b", "a </s> b"]).to_list():
        assert not special.intersection(row)


def test_model_without_padding():
    with pytest.raises(ValueError, match=r"without \['<pad>'\].*--pad_id=0"):
        SentencePieceTokenizer(train_with_sentencepiece())


def test_a_bad_proto():
    for proto in (b"no model", "bm8gbW9kZWw=", "ü", b"", b"\x0a\xff" * 50, 5, None):
        with pytest.raises(ValueError, match="`proto` must be a serialised Sentence"):
            SentencePieceTokenizer(proto)


def test_a_damaged_file(tmp_path):
    lines = ["the cat sat on the mat", "the dog sat on the log"]
    path = tmp_path / "tokenizer.json"
    SentencePieceTokenizer.train(lines=lines, vocabulary_size=31).save_files(path)
    proto = (tmp_path / "tokenizer.model").read_bytes()
    for content in (b"", proto[: len(proto) // 2], proto[::-1], bytes(100)):
        (tmp_path / "tokenizer.model").write_bytes(content)
        with pytest.raises(ValueError, match="tokenizer.json"):
            Tokenizer.load(path)
    (tmp_path / "tokenizer.model").unlink()
    os.mkfifo(tmp_path / "tokenizer.model")
    with pytest.raises(ValueError, match="tokenizer.model must be a file"):
        Tokenizer.load(path)
    for config in (5, [], {"proto": 5}, {"proto": "", "more": 1}):
        content = {"class_name": "SentencePieceTokenizer", "config": config}
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match="tokenizer.json"):
            Tokenizer.load(path)


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_byte_fallback_and_user_defined_symbols(model_type):
    tokenizer = SentencePieceTokenizer.train(
        lines=["the cat sat on the mat", "a <name> of a cat"],
        vocabulary_size=276,
        model_type=model_type,
        byte_fallback=True,
        user_defined_symbols=["<name>", "≠"],
    )
    texts = ["a cat 語", "the<name> mat", "≠cat"]
    ragged = tokenizer.tokenize(texts)
    token_ids = ragged.to_list()
    assert not any(tokenizer.unknown_token_id in row for row in token_ids)
    tokens = [tokenizer.id_to_token(id) for id in token_ids[0]]
    assert tokens[-3:] == [f"<0x{byte:02X}>" for byte in "語".encode()]
    for row, symbol in zip(token_ids[1:], ["<name>", "≠"], strict=True):
        assert tokenizer.token_to_id(symbol) in row
    assert [text.decode() for text in tokenizer.detokenize(ragged).numpy()] == texts


@pytest.mark.parametrize(
    ("model_type", "normalization"), [("bpe", "nmt_nfkc"), ("unigram", "identity")]
)
def test_spaces_and_line_breaks_are_kept(model_type, normalization):
    options = {"vocabulary_size": 15, "model_type": model_type}
    options["normalization"] = normalization
    lines = ["the cat sat\n", "  the hat\n", "that\n"] * 9
    running = SentencePieceTokenizer.train(lines=lines, keep_whitespace=True, **options)
    texts = [*lines[:3], "the cat\n\n  sat \n", " the", ""]
    rows = running.tokenize(texts)
    assert [t.decode() for t in running.detokenize(rows).numpy()] == texts
    newline = running.get_vocabulary().index("\n")
    assert [row.count(newline) for row in rows.to_list()] == [1, 1, 1, 3, 0, 0]
    # A text is the concatenation of its tokens, also from the middle of another.
    (whole,) = running.tokenize(["the cat sat"]).to_list()
    parts = running.detokenize(tf.ragged.constant([whole[:2], whole[2:]])).numpy()
    assert b"".join(parts) == b"the cat sat"
