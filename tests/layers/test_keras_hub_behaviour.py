"""Behaviour that KerasHub tests of its layers."""

import keras
import numpy as np
import pytest
import reference
from keras import ops
from layer_contract import to_numpy, with_random_weights

from keras_transformer.layers import DecoderBlock, EncoderBlock, MultiHeadAttention

RNG = np.random.default_rng(31)
BATCH, LENGTH, SOURCE_LENGTH, NUM_HEADS, KEY_DIM = 2, 5, 7, 3, 4
HIDDEN_DIM = NUM_HEADS * KEY_DIM
INPUTS = RNG.normal(size=(BATCH, LENGTH, HIDDEN_DIM)).astype("float32")
SOURCE = RNG.normal(size=(BATCH, SOURCE_LENGTH, HIDDEN_DIM)).astype("float32")
LAYERS = {
    EncoderBlock: (13, NUM_HEADS),
    DecoderBlock: (13, NUM_HEADS),
    MultiHeadAttention: (NUM_HEADS, KEY_DIM),
}


def build(cls, *inputs, **arguments):
    layer = cls(*LAYERS[cls], **arguments)
    layer.build(*(x.shape for x in inputs))
    return with_random_weights(layer)


@pytest.mark.once("torch")
def test_weights_and_seeds():
    for cls, inputs, num_weights, num_seeds in (
        (EncoderBlock, [INPUTS], 16, 3),
        (DecoderBlock, [INPUTS], 16, 3),
        (MultiHeadAttention, [INPUTS, SOURCE], 8, 1),
    ):
        layer = build(cls, *inputs, dropout=0.1)
        assert len(layer.trainable_variables) == num_weights
        assert len(layer.non_trainable_variables) == num_seeds


def test_a_training_step_changes_all_weights():
    layer = build(DecoderBlock, INPUTS, SOURCE, dropout=0.1)
    symbolic = [keras.Input(x.shape[1:]) for x in (INPUTS, SOURCE)]
    model = keras.Model(symbolic, layer(*symbolic))
    assert len(layer.trainable_variables) == 26
    assert len(layer.non_trainable_variables) == 5
    before = layer.get_weights()
    model.compile("sgd", "mse", jit_compile=False)
    history = model.fit([INPUTS, SOURCE], INPUTS[::-1], verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for weight, old in zip(layer.weights, before, strict=True):
        # All of a query's logits shift by it alike.
        if not weight.path.endswith("key/bias"):
            assert np.abs(to_numpy(weight) - old).max() > 1e-6, weight.path


@pytest.mark.once("torch")
def test_padding_mask_is_the_second_argument():
    layer = build(EncoderBlock, INPUTS)
    mask = np.tri(BATCH, LENGTH, k=2, dtype=bool)
    output = to_numpy(layer(INPUTS, mask))
    expected = to_numpy(layer(INPUTS, padding_mask=mask))
    np.testing.assert_array_equal(output, expected)
    assert np.abs(output - to_numpy(layer(INPUTS))).max() > 0.01


@pytest.mark.once("torch")
@pytest.mark.parametrize("cls", LAYERS)
def test_unknown_initializer_is_an_error(cls):
    with pytest.raises(ValueError, match="initializer .*Invalid"):
        cls(*LAYERS[cls], kernel_initializer="Invalid")


@pytest.mark.parametrize(
    ("cls", "inputs", "normalize_first"),
    [(EncoderBlock, [INPUTS], True), (DecoderBlock, [INPUTS, SOURCE], False)],
)
def test_training_drops_next_to_everything_and_inference_nothing(
    cls, inputs, normalize_first
):
    options = {"normalize_first": normalize_first}
    layer, expected = build(cls, *inputs, dropout=0.99999, **options), INPUTS
    if not normalize_first:
        norms = [to_numpy(w) for w in layer.weights if "norm" in w.path]
        for norm in zip(norms[::2], norms[1::2], strict=True):
            expected = reference.layer_norm(norm, expected)
    dropped = to_numpy(layer(*inputs, training=True))
    np.testing.assert_allclose(dropped, expected, atol=1e-5)
    plain = build(cls, *inputs, **options)(*inputs)
    for inference in (layer(*inputs), layer(*inputs, training=False)):
        np.testing.assert_array_equal(to_numpy(inference), to_numpy(plain))


def test_caches_in_a_while_loop():
    """The loop's index and caches are what a compiled loop carries."""
    layer = build(DecoderBlock, INPUTS, SOURCE)
    empty = np.zeros((BATCH, 2, LENGTH, NUM_HEADS, KEY_DIM), "float32")
    whole, *caches = layer(
        INPUTS,
        SOURCE,
        self_attention_cache=empty,
        self_attention_cache_update_index=0,
        cross_attention_cache=np.zeros_like(empty, shape=(BATCH, 2, 7, 3, 4)),
        cross_attention_cache_update_index=0,
    )

    def step(index, outputs, self_cache, cross_cache):
        output, *caches = layer(
            ops.slice(INPUTS, (0, index, 0), (BATCH, 1, HIDDEN_DIM)),
            SOURCE,
            self_attention_cache=self_cache,
            self_attention_cache_update_index=index,
            cross_attention_cache=cross_cache,
        )
        outputs = ops.slice_update(outputs, (0, index, 0), output)
        return (index + 1, outputs, *caches)

    start = ops.convert_to_tensor(0, "int32"), ops.zeros_like(INPUTS)
    _, outputs, *state = ops.while_loop(
        lambda index, *_: index < LENGTH,
        step,
        (*start, ops.convert_to_tensor(empty), caches[1]),
    )
    expected = layer(INPUTS, SOURCE), whole, *caches
    for one, other in zip((outputs, outputs, *state), expected, strict=True):
        np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=1e-5)
