import math

import pytest

from keras_transformer_runtime.engines.engine import Hypothesis
from keras_transformer_runtime.serving import sentences
from keras_transformer_runtime.serving.sentences import join, split

pytestmark = pytest.mark.once("torch")

TEXTS = {
    "": [],
    "  \n": [],
    "One": ["One"],
    "It rains. Dr. Jones sleeps.": ["It rains.", "Dr. Jones sleeps."],
    "  Is it?  Yes!\n\nNew part. ": ["Is it?", "Yes!", "New part."],
    "Ünï 😀. Two.": ["Ünï 😀.", "Two."],
}


@pytest.mark.parametrize("text", TEXTS)
def test_split_keeps_the_space_between_sentences(text):
    found, (parts,) = split([text], "en")
    assert found == TEXTS[text]
    again = [found[part] if isinstance(part, int) else part for part in parts]
    assert "".join(again) == text


@pytest.mark.parametrize(
    "text, expected, joined",
    [
        (
            ">>deu<< It rains. The dog sleeps.\n I am late.",
            [">>deu<< It rains.", ">>deu<< The dog sleeps.", ">>deu<< I am late."],
            "0 1\n 2",
        ),
        (">>zle_Cyrl<<It rains.", [">>zle_Cyrl<< It rains."], "0"),
        (">>deu<<", [], ""),
        (">>deu<< \n", [], ""),
        (">> It rains. << She left.", [">> It rains.", "<< She left."], "0 1"),
        ("It is >>deu<<. Yes.", ["It is >>deu<<.", "Yes."], "0 1"),
    ],
)
def test_every_sentence_has_the_language_token(text, expected, joined):
    found, (parts,) = split([text], "en")
    assert found == expected
    assert "".join(map(str, parts)) == joined


def test_texts_are_joined_in_order():
    found, parts = split([*TEXTS], "en")
    outputs = [
        [Hypothesis(sentence.swapcase(), -float(len(sentence)), False, len(sentence))]
        for sentence in found
    ]
    joined = [best for [best] in join(outputs, parts)]
    assert [best.text for best in joined] == [text.swapcase() for text in TEXTS]
    lengths = [sum(map(len, found)) for found in TEXTS.values()]
    assert [-best.score for best in joined] == lengths
    assert [best.length for best in joined] == lengths


def test_several_hypotheses():
    """Those of a single sentence; the best ones of several."""
    first = [Hypothesis("A.", -1.0), Hypothesis("B.", -2.0)]
    second = [Hypothesis("", math.nan, truncated=True), Hypothesis("C.", -4.0)]
    [both], alone, [spaced] = join([first, second], [[0, " ", 1], [0], [" ", 0]])
    assert both.text == "A. " and math.isnan(both.score) and both.truncated
    assert alone == first
    assert spaced == Hypothesis(" A.", -1.0)


class PanicException(BaseException):
    """A panic of Rust; sentencex 1.0.32 panics if NBSP follows a capital."""


@pytest.mark.parametrize("error", [PanicException, KeyboardInterrupt])
def test_a_text_that_cannot_be_split_is_one_sentence(monkeypatch, error):
    def fail(language, text):
        raise error

    monkeypatch.setattr(sentences, "segment", fail)
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            split(["A. B."], "en")
    else:
        assert split([" A. B."], "en") == (["A. B."], [[" ", 0]])
