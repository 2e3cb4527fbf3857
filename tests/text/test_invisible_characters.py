"""The normalization of invisible characters, against sentencepiece and Unicode."""

import io
import unicodedata

import pytest
import sentencepiece
import tensorflow as tf
import training_text
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.backend import sentencepiece as backend
from keras_transformer.text import SentencePieceTokenizer
from keras_transformer.text.sentence_piece_tokenizer import (
    normalization_rules,
    normalize_lines,
)
from keras_transformer_runtime.tokenizers import invisible_characters

pytestmark = pytest.mark.once

LINES = ["water bottle", "two bottles of water", "the roof of a house"] * 3
# Khmer (a word separator), Sinhala and Persian (joiners), emoji of a family, a heart,
# a key and the flag of Scotland.
KHMER = "ខ្ញុំ\u200bស្រលាញ់"
SINHALA = "ශ්\u200dරී"
PERSIAN = "می\u200cخواهم"
EMOJI = [
    "👩\u200d👩\u200d👧",
    "❤\ufe0f",
    "1\ufe0f\u20e3",
    "🏴" + "".join(chr(0xE0000 + ord(c)) for c in "gbsct") + "\U000e007f",
]
MONGOLIAN = "ᠬᠠᠳᠠ\u180eᠠ"


@pytest.fixture(scope="module")
def tokenizer():
    lines = [*LINES, SINHALA, PERSIAN, MONGOLIAN, KHMER, *EMOJI]
    return SentencePieceTokenizer.train(lines=lines * 2, vocabulary_size=110)


def restored(tokenizer, text):
    ids = tokenizer.tokenize([text])
    graph = tf.function(tokenizer.tokenize)(tf.constant([text]))
    assert graph.to_list() == ids.to_list()
    return tokenizer.detokenize(ids).numpy()[0].decode()


def plain_normalizer(**source):
    """A normalizer of sentencepiece that does nothing but replace characters."""
    theirs = sentencepiece.SentencePieceNormalizer(**source)
    model = sentencepiece_model_pb2.ModelProto.FromString(
        theirs.serialized_model_proto()
    )
    spec = model.normalizer_spec
    spec.add_dummy_prefix = spec.escape_whitespaces = False
    spec.remove_extra_whitespaces = False
    content = model.SerializeToString()
    return sentencepiece.SentencePieceNormalizer(model_proto=content)


def test_all_other_characters_are_those_of_sentencepiece():
    rule = "nmt_nfkc_cf"
    table = invisible_characters.replacements()
    others = (*range(1, 0xD800), *range(0xE000, 0x110000))
    lines = [chr(code) for code in others if chr(code) not in table]
    theirs = plain_normalizer(rule_name=rule).normalize("\n".join(lines))
    ours = normalize_lines(["\n".join(lines)], normalization_rules(rule))
    assert ours == [theirs]
    # Sequences of several characters are composed.
    texts = ["e\u0301", "\u1100\u1161\u11a8", "ｶ\uff9e", "Å\u030a", "\u0b92\u0bd7"]
    expected = plain_normalizer(rule_name=rule).normalize(texts)
    assert normalize_lines(texts, normalization_rules(rule)) == expected


def test_the_table_is_applied():
    table = invisible_characters.replacements()
    texts = [f"a{character}b" for character in table]
    found = normalize_lines(texts, normalization_rules("nmt_nfkc"))
    assert found == [f"a{new}b" for new in table.values()]


def test_the_rules_are_those_that_sentencepiece_compiles(tmp_path):
    """From a file of rules, with the characters of the table alone."""
    file = tmp_path / "rules.tsv"
    table = invisible_characters.replacements()
    rows = (
        f"{ord(old):X}\t{' '.join(f'{ord(c):X}' for c in new)}\n"
        for old, new in table.items()
        if old != new
    )
    file.write_text("".join(rows))
    theirs = plain_normalizer(rule_tsv=str(file))
    texts = [f"x{character}y {character}{character}" for character in table]
    texts += [SINHALA, PERSIAN, MONGOLIAN, *EMOJI, "ro\u00adof", KHMER]
    found = normalize_lines(texts, normalization_rules("nmt_nfkc"))
    assert found == theirs.normalize(texts)


def test_the_table_covers_the_categories_of_unicode():
    """Of the default-ignorable characters, apart from fillers and scripts' own."""
    table = invisible_characters.replacements()
    decided = {code for code in range(1, 0x110000) if chr(code) in table}
    formats = {
        code
        for code in range(1, 0x110000)
        if unicodedata.category(chr(code)) in ("Cc", "Zl", "Zp")
    }
    assert formats - decided == set()
    left = {
        unicodedata.name(chr(code)).split()[0]
        for code in range(0x110000)
        if unicodedata.category(chr(code)) == "Cf" and code not in decided
    }
    # Visible signs, and the layout of three notations.
    assert left == {"ARABIC", "SYRIAC", "KAITHI", "EGYPTIAN", "SHORTHAND", "MUSICAL"}
    bidirectional = {
        code
        for code in range(1, 0x110000)
        if unicodedata.bidirectional(chr(code))
        in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    } | {0x200E, 0x200F, 0x61C}
    assert {table[chr(code)] for code in bidirectional} == {""}


def test_invisible_characters_do_not_break_a_word(tokenizer):
    bottle = tokenizer.tokenize(["bottle"]).to_list()
    for character in "\u00ad\u2060\u061c\u202a\u2066\ufeff\x92":
        text = f"bot{character}tle"
        assert tokenizer.tokenize([text]).to_list() == bottle
        assert restored(tokenizer, text) == "bottle"


def test_separators_are_spaces(tokenizer):
    for character in "\u200b\u2028\x0b\x85\t\u00a0\ufffa":
        assert restored(tokenizer, f"water{character}bottle") == "water bottle"
    assert restored(tokenizer, KHMER) == KHMER.replace("\u200b", " ")


def test_what_scripts_and_emoji_need_is_kept(tokenizer):
    for text in (SINHALA, PERSIAN, MONGOLIAN, *EMOJI):
        assert restored(tokenizer, text) == unicodedata.normalize("NFKC", text)


def test_a_character_that_the_training_text_lacks_is_removed():
    english = SentencePieceTokenizer.train(
        lines=LINES, vocabulary_size=40, lowercase=True
    )
    for character in "\u200c\u200d\ufe0f\U000e0101\u180e":
        assert restored(english, f"bot{character}tle") == "bottle"
        ids = english.tokenize([f"bot{character}tle", "bottle"]).to_list()
        assert ids[0] == ids[1]


def test_training_is_that_of_sentencepiece():
    """On lines without invisible characters, with SentencePiece's own rule."""
    lines = [*training_text.LINES, "½ ﬁne ＡB", " a  b\u00a0 c ", "Ünï é"] * 3
    for model_type in ("bpe", "unigram"):
        ours = SentencePieceTokenizer.train(
            lines=lines, vocabulary_size=49, model_type=model_type
        )
        files = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=files,
            vocab_size=49,
            model_type=model_type,
            character_coverage=1.0,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            minloglevel=2,
        )
        theirs = SentencePieceTokenizer(files.getvalue())
        assert ours.subwords() == theirs.subwords()
        assert ours.tokenize(lines).to_list() == theirs.tokenize(lines).to_list()


def test_a_saved_tokenizer_keeps_its_rules(tokenizer):
    """A model with SentencePiece's own rule splits a word at a soft hyphen."""
    theirs = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
    model = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.proto)
    rules = sentencepiece_model_pb2.ModelProto.FromString(
        theirs.serialized_model_proto()
    ).normalizer_spec
    model.normalizer_spec.precompiled_charsmap = rules.precompiled_charsmap
    old = SentencePieceTokenizer(model.SerializeToString())
    again = SentencePieceTokenizer.from_config(old.get_config())
    text = "bot\u00adtle"
    assert again.tokenize([text]).to_list() != again.tokenize(["bottle"]).to_list()
    assert restored(again, PERSIAN) == PERSIAN.replace("\u200c", " ")


@pytest.mark.parametrize(
    "edit",
    [
        lambda charsmap, edits: charsmap,  # which changes nothing
        lambda charsmap, edits: charsmap[:100],  # which is damaged
        lambda charsmap, edits: [][1],  # an error
    ],
    ids=["unchanged", "damaged", "error"],
)
def test_another_format_of_the_rules(monkeypatch, edit):
    monkeypatch.setattr(backend, "_edit_charsmap", edit)
    theirs = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
    expected = sentencepiece_model_pb2.ModelProto.FromString(
        theirs.serialized_model_proto()
    ).normalizer_spec.precompiled_charsmap
    with pytest.warns(UserWarning, match="another format of its rule 'nmt_nfkc'"):
        rules = backend.edited_normalization("nmt_nfkc", {"\u00ad": ""})
    assert rules == expected
