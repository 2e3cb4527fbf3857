import pytest

from keras_transformer import CausalLM, Ensemble, Seq2Seq
from keras_transformer.export.model_support import (
    check_encoder_decoder,
    check_transformer,
    embedding_vocabulary,
    tokenizers_of,
)
from keras_transformer.text import CharacterTokenizer

pytestmark = pytest.mark.once("torch")

LETTERS = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"ab"])
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}


def test_a_seq2seq_is_an_encoder_decoder():
    model = Seq2Seq(**SIZES, source_tokenizer=LETTERS)
    assert check_encoder_decoder(model, "marian") is model
    assert check_transformer(model, "onnx") is model


def test_a_causal_lm_is_decoder_only():
    model = CausalLM(**SIZES, tokenizer=LETTERS)
    assert check_transformer(model, "onnx") is model
    message = "`model` must be an encoder-decoder Transformer, .*`CausalLM`. Use `for"
    with pytest.raises(ValueError, match=message):
        check_encoder_decoder(model, "marian")


@pytest.mark.parametrize(
    "format, name", [("onnx", "ONNX"), ("ctranslate2", "CTranslate2")]
)
def test_another_model_is_refused(format, name):
    ensemble = Ensemble([Seq2Seq(**SIZES, source_tokenizer=LETTERS)])
    message = f"for {name}; received a model of class `Ensemble`. Use `format='saved_m"
    for check in (check_encoder_decoder, check_transformer):
        with pytest.raises(ValueError, match=message):
            check(ensemble, format)


def test_a_model_without_tokenizers():
    message = "`model` must have tokenizers to be exported; .* Pass tokenizers"
    with pytest.raises(ValueError, match=message):
        tokenizers_of(Seq2Seq(**SIZES, vocabulary_size=11))


def test_each_row_of_an_embedding_has_a_token():
    tokens = [*LETTERS.get_vocabulary(), "<unused 6>", "<unused 7>"]
    assert embedding_vocabulary(LETTERS, 8) == tokens
    assert embedding_vocabulary(LETTERS, 6) == tokens[:6]
