from types import SimpleNamespace

import numpy as np
import pytest
from layer_contract import with_random_weights

from keras_transformer import Seq2Seq, replace_unknowns
from keras_transformer.text import CharacterTokenizer, WordTokenizer

pytestmark = pytest.mark.once("torch")

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
WORDS = WordTokenizer([*SPECIAL, "der", "Hund", "bellt", "the", "dog", "barks"])
MODEL = SimpleNamespace(source_tokenizer=WORDS, target_tokenizer=WORDS)
SOURCES = ["der Hund heißt  Bello\u00a0II .", "Lumpi bellt", ""]
OUTPUTS = ["the dog is <unk> <unk>", "<unk> barks", ""]
ALIGNMENTS = [[0, 1, 2, 2, 3, 4], np.array([0, 1, 1]), [0]]


def test_unknown_words_are_copied():
    texts = replace_unknowns(MODEL, SOURCES, OUTPUTS, ALIGNMENTS)
    assert texts == ["the dog is heißt Bello\u00a0II", "Lumpi barks", ""]


def test_unknown_words_are_looked_up():
    dictionary = {"heißt": "called", "Hund": "never"}
    texts = replace_unknowns(MODEL, SOURCES, OUTPUTS, ALIGNMENTS, dictionary)
    assert texts == ["the dog is called Bello\u00a0II", "Lumpi barks", ""]


def test_alignments_of_a_model():
    model = Seq2Seq(
        num_layers=1,
        hidden_dim=6,
        intermediate_dim=7,
        num_heads=3,
        source_tokenizer=WORDS,
    )
    with_random_weights(model)
    alignments = [pair.positions for pair in model.align(SOURCES, OUTPUTS)]
    texts = replace_unknowns(model, SOURCES, OUTPUTS, alignments)
    assert [len(positions) for positions in alignments] == [6, 3, 1]
    source = ["der", "Hund", "heißt", "Bello\u00a0II", "."]
    assert texts[0].split(" ")[3:] == [source[i] for i in alignments[0][3:5]]
    assert texts[1:] == [SOURCES[1].split()[alignments[1][0]] + " barks", ""]


def test_other_tokenizers():
    letters = CharacterTokenizer([*SPECIAL, "a"])
    for side in ("source", "target"):
        model = SimpleNamespace(**{**vars(MODEL), f"{side}_tokenizer": letters})
        message = f"`WordTokenizer` as `{side}_tokenizer`; .*a `CharacterTokenizer`"
        with pytest.raises(ValueError, match=message):
            replace_unknowns(model, SOURCES, OUTPUTS, ALIGNMENTS)


def test_errors():
    with pytest.raises(ValueError, match="each text; received 3, 2 and 3 entries"):
        replace_unknowns(MODEL, SOURCES, OUTPUTS[:2], ALIGNMENTS)
    message = r"`alignments\[0\]=\[.*\]`, which has none of the 2 .* for word 1 of"
    for positions in ([0], [0, 2], [0, -1]):
        with pytest.raises(ValueError, match=message):
            replace_unknowns(MODEL, ["b c"], ["a <unk>"], [positions])
