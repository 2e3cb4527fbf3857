"""Phrases that must occur in the outputs of `generate`."""

import re

import numpy as np
import pytest
from layer_contract import with_random_weights

from keras_transformer import (
    BeamSearch,
    CausalLM,
    GreedySearch,
    PhraseDictionary,
    SentencePieceTokenizer,
    Seq2Seq,
)
from keras_transformer.file_translation.translation import check_dictionary
from keras_transformer.text import CharacterTokenizer

SOURCE = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdef"])
TARGET = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"UVWXYZ"])
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
SEARCH = BeamSearch(3, num_hypotheses=2)
once = pytest.mark.once("torch")
TEXTS = ["abc", "", "f", "deadbeef", "fab"]
CONSTRAINTS = [["ZY"], ["U"], None, ["XYZ", "ZU"], []]


@pytest.fixture(scope="module")
def model():
    model = Seq2Seq(
        **SIZES,
        normalize_first=True,
        max_source_length=9,
        max_target_length=8,
        source_tokenizer=SOURCE,
        target_tokenizer=TARGET,
    )
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model


def test_every_output_has_its_phrases(model):
    texts, scores = model.generate(
        TEXTS, SEARCH, return_scores=True, constraints=CONSTRAINTS
    )
    for outputs, entry in zip(texts, CONSTRAINTS, strict=True):
        assert outputs[0] != outputs[1] or outputs == ["", ""]
        for output in outputs:
            assert all(phrase in output for phrase in entry or ()) or not output
    assert texts[1] == ["", ""]  # an empty text
    free, free_scores = model.generate(TEXTS, SEARCH, return_scores=True)
    assert texts[2] == free[2] and texts[4] == free[4]
    assert texts[0] != free[0] and texts[3] != free[3]
    np.testing.assert_allclose(scores[[2, 4]], free_scores[[2, 4]], atol=1e-5)
    assert (np.diff(scores, axis=1) <= 0).all()


@once
def test_a_single_text_and_its_score(model):
    texts, scores = model.generate(
        TEXTS[3], SEARCH, return_scores=True, constraints=CONSTRAINTS[3]
    )
    log_prob = model.score([TEXTS[3]], texts[:1]).scores[0]
    divisor = ((5 + len(texts[0]) + 1) / 6) ** 0.6
    np.testing.assert_allclose(scores[0], log_prob / divisor, atol=1e-4)


@once
def test_a_prefix_and_a_phrase(model):
    # Two tokens of the prefix, four of the phrases and the end token.
    (text,) = model.generate(
        ["abc"], max_length=7, prefix=["ZZ"], constraints=[["ZY", "XX"]]
    )
    assert text.startswith("ZZ") and "ZY" in text and "XX" in text


@pytest.mark.slow
@once
def test_phrases_of_subwords_stand_within_the_sentence():
    lines = ["the cat sat on the mat", "a dog ran to the cat", "the rat ran on a mat"]
    tokenizer = SentencePieceTokenizer.train(lines=lines, vocabulary_size=40)
    model = Seq2Seq(**SIZES, source_tokenizer=tokenizer, target_tokenizer=tokenizer)
    with_random_weights(model)
    constraints = [["the cat", "dog"], ["rat"]]
    texts = model.generate(lines[:2], max_length=15, constraints=constraints)
    for text, entry in zip(texts, constraints, strict=True):
        assert all(re.search(rf"(^| ){phrase}", text) for phrase in entry)
    # A phrase ends within a word, as inflected forms do.
    options = {"max_length": 15, "prefix": ["the cats"]}
    free = model.generate(lines[:1], **options)
    assert " cat " not in f"{free[0]} "
    assert model.generate(lines[:1], **options, constraints=[["cat"]]) == free
    message = "only characters and words of the target vocabulary; received '日'"
    with pytest.raises(ValueError, match=message):
        model.generate(lines[:1], constraints=[["日"]])


@once
def test_a_language_model_that_is_cut_off():
    model = with_random_weights(
        CausalLM(**SIZES, max_length=16, tokenizer=TARGET, add_start_token=True)
    )
    texts = model.generate(
        ["UV", "Z"], SEARCH, max_length=3, constraints=[["ZZY"], ["X", "X"]]
    )
    assert texts[0][0] and texts[1][0]
    assert all("ZZY" in text for text in texts[0] if text)
    assert all(text.count("X") >= 2 for text in texts[1] if text)


@once
@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ([["U"]], "one list of phrases for each input; received 1 lists and 2 inputs"),
        (["U", "V"], r"received 'U' in row 0. Write `\['U'\]`"),
        ([[5], []], r"a row array\(5\)"),
        ([["U"], ["V", ""]], "at least one token each; received '' in row 1"),
        ([[[4]], [[]]], r"at least one token each; received \[\] in row 1"),
        ([[], [[4, 3]]], r"no end token, .* received \[4, 3\] in row 1"),
        ([[], ["Ue"]], "characters and words of the target .* received 'Ue' in row 1"),
        ([[[99]], []], r"token ids from 0 to 9 .* received \[99\]"),
        ([[], ["UVWX", "YZUV"]], "8 tokens in row 1, whose output has room for 7"),
    ],
)
def test_invalid_constraints(model, constraints, message):
    with pytest.raises(ValueError, match=f"`constraints` must .*{message}"):
        model.generate(["a", "b"], constraints=constraints)


@once
def test_the_room_of_the_output(model):
    assert model.generate(["a"], max_length=5, constraints=[["UVWX"]]) == ["UVWX"]
    with pytest.raises(ValueError, match="`search` must be a `BeamSearch`"):
        model.generate(["a"], GreedySearch(), constraints=[["U"]])
    with pytest.raises(ValueError, match="`max_length`"):
        model.generate(["a"], max_length=4, constraints=[["UVWX"]])
    with pytest.raises(ValueError, match="has room for 2"):
        model.generate(["a"], prefix=["UVWXY"], constraints=[["UVW"]])


ENTRIES = {"New York": "Nueva York", "York": "York", "of": "de", "東京": "Tokio"}


@once
def test_a_dictionary_finds_the_longest_whole_words():
    dictionary = PhraseDictionary(ENTRIES)
    assert len(dictionary) == 4
    found = dictionary.constraints(
        ["New York, of York of New York", "Yorkshire new York", "New", "在東京都", ""]
    )
    assert found == [["Nueva York", "de", "York"], ["York"], [], ["Tokio"], []]


@once
@pytest.mark.parametrize(
    ("source", "text", "occurs"),
    [
        ("दिल", "मैं दिल्ली में", False),
        ("कम", "कमा".replace("क", "ক").replace("म", "ম"), False),
        ("Cafe\u0301", "The Café.", True),
        ("resume", "re\u0301sume\u0301", False),
        ("roof", "the ro\u00adof", True),
        ("می", "می\u200cخواهم", False),
        ("👩", "👩\u200d💻", False),
        ("ไทย", "ภาษาไทยง่าย", True),
        ("バス", "バスケット", False),
        ("don", "I don't, don’t", False),
        ("eau", "l'eau", True),
        ("Brien", "O'Brien", False),
        ("C", "C++, C#", False),
        ("C", "C, 'C' (C).", True),
        ("C++", "C++.", True),
        ("James", "James' dog", True),
    ],
)
def test_words_of_a_dictionary_end_as_in_unicode(source, text, occurs):
    assert PhraseDictionary({source: "x"}).constraints([text]) == [["x"] * occurs]


@once
def test_a_dictionary_has_phrases_that_the_vocabulary_can_spell():
    letters = CharacterTokenizer.train(lines=["abc"])
    check_dictionary(PhraseDictionary({"x": "cab"}), letters)
    dictionary = PhraseDictionary({"x": "cab", "y": "d", "z": "ab c"})
    with pytest.raises(ValueError, match=r"received 2 others: 'd', 'ab c'\."):
        check_dictionary(dictionary, letters)


@once
def test_a_dictionary_of_a_file(tmp_path):
    path = tmp_path / "terms.tsv"
    lines = [f"{source}\t {target}\n" for source, target in ENTRIES.items()]
    path.write_text("\n".join(lines))
    found, same = PhraseDictionary.from_file(path), PhraseDictionary(ENTRIES)
    assert found.digest() == same.digest()
    assert found.digest() != PhraseDictionary({"York": "York"}).digest()
    path.write_text("York\tYork\nof\n")
    with pytest.raises(ValueError, match="a tab and a target phrase; line 2 of .*'of'"):
        PhraseDictionary.from_file(path)
    path.write_text("York\tYork\nof\tde\nYork\tYorck\n")
    with pytest.raises(ValueError, match="has 'York' and, in line 3, 'Yorck' for"):
        PhraseDictionary.from_file(path)


@once
@pytest.mark.parametrize(
    "entries", [{}, {" ": "a"}, {"a": ""}, {"é": "a", "e\u0301": "b"}]
)
def test_invalid_entries(entries):
    with pytest.raises(ValueError, match="`entries` must have"):
        PhraseDictionary(entries)
