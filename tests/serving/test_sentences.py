import pytest

from keras_transformer_runtime.serving import sentences
from keras_transformer_runtime.serving.sentences import join, split

pytestmark = pytest.mark.once

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
    outputs = {
        "text": [sentence.swapcase() for sentence in found],
        "score": [-float(len(sentence)) for sentence in found],
        "truncated": [False for _ in found],
    }
    joined = join(outputs, parts)
    assert joined["text"] == [text.swapcase() for text in TEXTS]
    assert joined["score"] == [-sum(map(len, found)) for found in TEXTS.values()]


def test_a_missing_score_of_a_sentence():
    outputs = {"text": ["A.", ""], "score": [-1.0, None], "truncated": [False, True]}
    joined = join(outputs, [[0, " ", 1], [0]])
    assert joined.pop("truncated") == [True, False]
    assert joined == {"text": ["A. ", "A."], "score": [None, -1.0]}


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
