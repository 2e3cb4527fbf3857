"""Errors for arguments and inputs that layers and models do not take."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import layers

STACKS = [layers.EncoderStack, layers.DecoderStack]
BLOCKS = [layers.EncoderBlock, layers.DecoderBlock]
# What each class requires.
REQUIRED = {
    layers.AlibiBias: {},
    layers.DecoderBlock: {"intermediate_dim": 13, "num_heads": 2},
    layers.DecoderStack: {"num_layers": 2, "intermediate_dim": 13, "num_heads": 2},
    layers.EncoderBlock: {"intermediate_dim": 13, "num_heads": 2},
    layers.EncoderStack: {"num_layers": 2, "intermediate_dim": 13, "num_heads": 2},
    layers.FeedForward: {"intermediate_dim": 13},
    layers.LearnedPositionalEncoding: {"max_length": 7},
    layers.MultiHeadAttention: {"num_heads": 2, "key_dim": 3},
    layers.PositionalEncoding: {},
    layers.RelativePositionBias: {},
    layers.Residual: {},
    layers.RotaryEmbedding: {},
    kt.CausalLM: {},
    kt.Ensemble: {"models": []},
    kt.Seq2Seq: {},
}


@pytest.mark.once("torch")
@pytest.mark.parametrize("cls", REQUIRED)
def test_every_class_names_itself(cls):
    message = f"`{cls.__name__}` has no argument `oboe`; received `oboe=3`. Its argum"
    with pytest.raises(ValueError, match=message):
        cls(**REQUIRED[cls], oboe=3)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("cls", "given", "meant"),
    [
        (layers.EncoderBlock, "ff_dim", "intermediate_dim"),
        (layers.EncoderBlock, "n_heads", "num_heads"),
        (layers.DecoderBlock, "rate", "dropout"),
        (layers.EncoderStack, "dff", "intermediate_dim"),
        (layers.DecoderStack, "n_layers", "num_layers"),
        (layers.FeedForward, "d_ff", "intermediate_dim"),
        (layers.MultiHeadAttention, "head_dim", "key_dim"),
        (layers.MultiHeadAttention, "use_biass", "use_bias"),
        (layers.Residual, "eps", "layer_norm_epsilon"),
        (layers.RotaryEmbedding, "max_wavelenght", "max_wavelength"),
        (kt.Seq2Seq, "d_model", "hidden_dim"),
        (kt.CausalLM, "vocab_size", "vocabulary_size"),
    ],
)
def test_the_nearest_argument(cls, given, meant):
    with pytest.raises(ValueError, match=rf"Did you mean `{meant}`\?$"):
        cls(**{given: 64})


@pytest.mark.once("torch")
def test_the_class_of_the_user():
    class Mine(layers.EncoderBlock):
        def __init__(self, **kwargs):
            super().__init__(num_heads=2, **kwargs)

    with pytest.raises(ValueError, match=r"^`Mine` has no .* The width is that of the"):
        Mine(intermediate_dim=13, embed_dim=64)
    with pytest.raises(TypeError, match=r"^`Mine`: missing a .*'intermediate_dim'\.$"):
        Mine()
    block = Mine(intermediate_dim=13, trainable=False, dtype="float32", name="mine")
    assert block.name == "mine" and not block.trainable


IDS = np.array([[5, 7, 0], [3, 2, 6]], "int32")
EMBEDDED = np.ones((2, 3, 4), "float32")


@pytest.mark.parametrize("cls", [*BLOCKS, *STACKS, layers.MultiHeadAttention])
@pytest.mark.parametrize("is_built", [False, True])
def test_token_ids_must_be_embedded(cls, is_built):
    layer = cls(**REQUIRED[cls])
    takes_one = cls in (layers.EncoderBlock, layers.EncoderStack)
    others = [] if takes_one else [EMBEDDED]
    if is_built:
        layer(EMBEDDED, *others)
    message = f"inputs of `{cls.__name__}` must be floats .* embed the ids first"
    ids = [IDS, keras.ops.convert_to_tensor(IDS), EMBEDDED.astype("int64"), EMBEDDED[0]]
    for each in ids:
        with pytest.raises(ValueError, match=message):
            layer(each, *others)
        if others:
            with pytest.raises(ValueError, match=message):
                layer(EMBEDDED, each)
    symbolic = keras.Input((None,), dtype="int32")
    with pytest.raises(ValueError, match=message):
        layer(symbolic, *others)
