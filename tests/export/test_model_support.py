import pytest

from keras_transformer import CausalLM, Ensemble, Seq2Seq
from keras_transformer.export.model_support import (
    check_transformer,
    embedding_vocabulary,
    tokenizers_of,
)
from keras_transformer.text import CharacterTokenizer

pytestmark = pytest.mark.once("torch")

LETTERS = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"ab"])
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}


def test_a_transformer_is_accepted():
    translator = Seq2Seq(**SIZES, source_tokenizer=LETTERS)
    for model in (translator, CausalLM(**SIZES, tokenizer=LETTERS)):
        assert check_transformer(model, "onnx") is model


@pytest.mark.parametrize(
    "format, name", [("onnx", "ONNX"), ("ctranslate2", "CTranslate2")]
)
def test_another_model_is_refused(format, name):
    ensemble = Ensemble([Seq2Seq(**SIZES, source_tokenizer=LETTERS)])
    message = f"for {name}; received a model of class `Ensemble`. Use `format='saved_m"
    with pytest.raises(ValueError, match=message):
        check_transformer(ensemble, format)


def test_a_model_without_tokenizers():
    message = "`model` must have tokenizers to be exported; .* Pass tokenizers"
    with pytest.raises(ValueError, match=message):
        tokenizers_of(Seq2Seq(**SIZES, vocabulary_size=11))


def test_each_row_of_an_embedding_has_a_token():
    tokens = [*LETTERS.get_vocabulary(), "<unused 6>", "<unused 7>"]
    assert embedding_vocabulary(LETTERS, 8) == tokens
    assert embedding_vocabulary(LETTERS, 6) == tokens[:6]
