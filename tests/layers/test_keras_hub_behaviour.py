"""Behaviour that KerasHub tests of its layers."""

import keras
import numpy as np
import pytest
import reference
from keras import ops
from layer_contract import to_numpy, with_random_weights

from keras_transformer.layers import (
    DecoderBlock,
    EncoderBlock,
    MultiHeadAttention,
)

RNG = np.random.default_rng(31)
BATCH, LENGTH, NUM_HEADS, KEY_DIM, INTERMEDIATE_DIM = 2, 5, 3, 7, 11
HIDDEN_DIM, SOURCE_LENGTH = NUM_HEADS * KEY_DIM, 13
INPUTS = RNG.normal(size=(BATCH, LENGTH, HIDDEN_DIM)).astype("float32")
SOURCE = RNG.normal(size=(BATCH, SOURCE_LENGTH, HIDDEN_DIM)).astype("float32")
EMPTY_CACHE = np.zeros((BATCH, 2, LENGTH, NUM_HEADS, KEY_DIM), "float32")

BLOCK = {"intermediate_dim": INTERMEDIATE_DIM, "num_heads": NUM_HEADS}
ATTENTION = {"num_heads": NUM_HEADS, "key_dim": KEY_DIM}
LAYERS = {
    "encoder": (EncoderBlock, BLOCK, [INPUTS]),
    "decoder": (DecoderBlock, BLOCK, [INPUTS]),
    "decoder with a source": (DecoderBlock, BLOCK, [INPUTS, SOURCE]),
    "attention": (MultiHeadAttention, ATTENTION, [INPUTS, SOURCE]),
}
# Leaves next to nothing of what it is applied to.
NEARLY_ALL = 0.99999


def build(name, **arguments):
    cls, required, inputs = LAYERS[name]
    layer = cls(**required, **arguments)
    layer.build(*(x.shape for x in inputs))
    return with_random_weights(layer), inputs


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("name", "num_weights", "num_seeds"),
    [("encoder", 16, 3), ("decoder", 16, 3), ("attention", 8, 1)],
)
def test_weights_and_seeds(name, num_weights, num_seeds):
    layer, _ = build(name, dropout=0.1)
    assert len(layer.trainable_variables) == num_weights
    assert len(layer.non_trainable_variables) == num_seeds


def test_a_training_step_changes_all_weights():
    layer, inputs = build("decoder with a source", dropout=0.1)
    symbolic = [keras.Input(x.shape[1:]) for x in inputs]
    model = keras.Model(symbolic, layer(*symbolic))
    assert len(layer.trainable_variables) == 26
    assert len(layer.non_trainable_variables) == 5
    before = layer.get_weights()
    model.compile("sgd", "mse", jit_compile=False)
    history = model.fit(inputs, INPUTS[::-1], verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    for weight, old in zip(layer.weights, before, strict=True):
        # All of a query's logits shift by it alike.
        if not weight.path.endswith("key/bias"):
            assert np.abs(to_numpy(weight) - old).max() > 1e-6, weight.path


def test_padding_mask_is_the_second_argument():
    layer, _ = build("encoder")
    mask = np.tri(BATCH, LENGTH, k=2, dtype=bool)
    output = to_numpy(layer(INPUTS, mask))
    expected = to_numpy(layer(INPUTS, padding_mask=mask))
    np.testing.assert_array_equal(output, expected)
    assert np.abs(output - to_numpy(layer(INPUTS))).max() > 0.01


@pytest.mark.once("torch")
@pytest.mark.parametrize("name", ["encoder", "decoder", "attention"])
def test_unknown_initializer_is_an_error(name):
    cls, required, _ = LAYERS[name]
    with pytest.raises(ValueError, match="initializer .*Invalid"):
        cls(**required, kernel_initializer="Invalid")


class TestTrainingFlag:
    """Training drops next to everything, and inference nothing."""

    @pytest.mark.parametrize(
        ("name", "normalize_first"),
        [("encoder", True), ("decoder with a source", False)],
    )
    def test_of_a_block(self, name, normalize_first):
        options = {"normalize_first": normalize_first}
        layer, inputs = build(name, dropout=NEARLY_ALL, **options)
        expected = INPUTS
        if not normalize_first:
            norms = [to_numpy(w) for w in layer.weights if "norm" in w.path]
            for norm in zip(norms[::2], norms[1::2], strict=True):
                expected = reference.layer_norm(norm, expected)
        dropped = to_numpy(layer(*inputs, training=True))
        np.testing.assert_allclose(dropped, expected, atol=1e-5)
        plain = build(name, **options)[0](*inputs)
        for inference in (layer(*inputs), layer(*inputs, training=False)):
            np.testing.assert_array_equal(to_numpy(inference), to_numpy(plain))

    def test_of_attention(self):
        layer, inputs = build("attention", dropout=NEARLY_ALL)
        dropped = to_numpy(layer(*inputs, training=True))
        *_, output_bias = layer.get_weights()
        np.testing.assert_allclose(dropped, np.broadcast_to(output_bias, INPUTS.shape))
        plain = build("attention")[0](*inputs)
        np.testing.assert_array_equal(to_numpy(layer(*inputs)), to_numpy(plain))


class TestCacheInAWhileLoop:
    """The loop's index and caches are what a compiled loop carries."""

    @staticmethod
    def run(step, *caches):
        """Calls `step(index, inputs, *caches)` for one position after another."""

        def body(index, outputs, *caches):
            inputs = ops.slice(INPUTS, (0, index, 0), (BATCH, 1, HIDDEN_DIM))
            output, *caches = step(index, inputs, *caches)
            outputs = ops.slice_update(outputs, (0, index, 0), output)
            return (index + 1, outputs, *caches)

        caches = tuple(ops.convert_to_tensor(cache) for cache in caches)
        _, *state = ops.while_loop(
            lambda index, *_: index < LENGTH,
            body,
            (ops.convert_to_tensor(0, "int32"), ops.zeros_like(INPUTS), *caches),
        )
        return state

    @staticmethod
    def assert_close(actual, expected):
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=1e-5)

    def test_of_a_decoder_with_a_source(self):
        layer, _ = build("decoder with a source")
        whole, *caches = layer(
            INPUTS,
            SOURCE,
            self_attention_cache=EMPTY_CACHE,
            self_attention_cache_update_index=0,
            cross_attention_cache=np.zeros(
                (BATCH, 2, SOURCE_LENGTH, NUM_HEADS, KEY_DIM), "float32"
            ),
            cross_attention_cache_update_index=0,
        )
        self.assert_close([whole], [layer(INPUTS, SOURCE)])

        def step(index, inputs, self_cache, cross_cache):
            return layer(
                inputs,
                SOURCE,
                self_attention_cache=self_cache,
                self_attention_cache_update_index=index,
                cross_attention_cache=cross_cache,
            )

        state = self.run(step, EMPTY_CACHE, caches[1])
        self.assert_close(state, [whole, *caches])

    def test_of_attention_with_a_mask_of_floats(self):
        layer = MultiHeadAttention(**ATTENTION)
        layer.build(INPUTS.shape, INPUTS.shape)
        with_random_weights(layer)
        mask = ops.convert_to_tensor(np.tri(LENGTH, dtype="float32"))
        whole, scores, cache = layer(
            INPUTS,
            INPUTS,
            attention_mask=mask,
            cache=EMPTY_CACHE,
            cache_update_index=0,
            return_attention_scores=True,
        )
        expected, expected_scores = reference.multi_head_attention(
            layer.get_weights(), INPUTS, INPUTS, np.tri(LENGTH, dtype=bool)
        )
        np.testing.assert_allclose(to_numpy(whole), expected, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(to_numpy(scores), expected_scores, atol=1e-5)

        def step(index, inputs, cache):
            return layer(
                inputs,
                inputs,
                attention_mask=ops.slice(mask, (index, 0), (1, LENGTH)),
                cache=cache,
                cache_update_index=index,
            )

        self.assert_close(self.run(step, EMPTY_CACHE), [whole, cache])
