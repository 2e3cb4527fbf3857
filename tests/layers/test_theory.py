"""Causality, positions beyond those of the training, LoRA, quantization and XLA."""

import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import gradients, to_numpy, with_random_weights

from keras_transformer import Seq2Seq
from keras_transformer.layers import (
    DecoderBlock,
    DecoderStack,
    EncoderBlock,
    MultiHeadAttention,
)

RNG = np.random.default_rng(37)
BATCH, LENGTH, SOURCE_LENGTH, NUM_HEADS, KEY_DIM, INTERMEDIATE_DIM = 2, 5, 7, 3, 2, 11
HIDDEN_DIM = NUM_HEADS * KEY_DIM
INPUTS = RNG.normal(size=(BATCH, LENGTH, HIDDEN_DIM)).astype("float32")
SOURCE = RNG.normal(size=(BATCH, SOURCE_LENGTH, HIDDEN_DIM)).astype("float32")
BLOCK = {"intermediate_dim": INTERMEDIATE_DIM, "num_heads": NUM_HEADS}
STACK = {"num_layers": 2, **BLOCK}


def build(cls, *inputs, **arguments):
    layer = cls(**arguments)
    layer.build(*(x.shape for x in inputs))
    return with_random_weights(layer)


def largest_difference(one, other):
    return np.abs(to_numpy(one) - to_numpy(other)).max()


def test_a_decoder_s_output_depends_on_the_tokens_so_far():
    layer = build(DecoderStack, INPUTS, SOURCE, normalize_first=True, **STACK)
    # Row t of the batch tells what output t depends on.
    own_output = np.eye(LENGTH, dtype="float32")[:, :, None]
    by_inputs, by_source = gradients(
        lambda *x: ops.sum(ops.multiply(ops.sin(layer(*x)), own_output)),
        np.stack([INPUTS[0]] * LENGTH),
        np.stack([SOURCE[0]] * LENGTH),
    )
    depends = np.abs(by_inputs).max(axis=-1)
    so_far = np.tri(LENGTH, dtype=bool)
    assert (depends[so_far] > 1e-6).all() and (depends[~so_far] == 0).all()
    assert (np.abs(by_source).max(axis=-1) > 1e-6).all()


@pytest.mark.once("torch")
def test_positions_beyond_the_training_length():
    model = Seq2Seq(hidden_dim=HIDDEN_DIM, vocabulary_size=13, **STACK)
    source, target = (
        RNG.integers(4, 13, (BATCH, 400)),
        RNG.integers(4, 13, (BATCH, 300)),
    )

    def logits(source, target):
        return to_numpy(
            model({"encoder_token_ids": source, "decoder_token_ids": target})
        )

    short = logits(source[:, :LENGTH], target[:, :LENGTH])
    long = logits(source[:, :LENGTH], target)
    np.testing.assert_allclose(long[:, :LENGTH], short, atol=1e-5)
    assert np.isfinite(logits(source, target)).all()


class TestProjections:
    """Both layers are quantized in place and give the same outputs."""

    @pytest.fixture
    def pair(self):
        ours, theirs = (
            build(cls, INPUTS, SOURCE, num_heads=NUM_HEADS, key_dim=KEY_DIM)
            for cls in (MultiHeadAttention, keras.layers.MultiHeadAttention)
        )
        return ours, theirs, (INPUTS, SOURCE)

    @staticmethod
    def projections(layer):
        return (
            layer.query_dense,
            layer.key_dense,
            layer.value_dense,
            layer.output_dense,
        )

    def test_lora(self, pair):
        """The matrices are those of all heads, in place of one for each head."""
        ours, theirs, inputs = pair
        before = ours(*inputs)
        for projection in self.projections(ours):
            projection.enable_lora(rank=2, lora_alpha=3)
        assert largest_difference(ours(*inputs), before) < 1e-6
        names = [weight.name for weight in ours.trainable_weights]
        assert sorted(names) == sorted(["bias", "lora_kernel_a", "lora_kernel_b"] * 4)
        with_random_weights(ours)
        assert largest_difference(ours(*inputs), before) > 0.01
        for ours_dense, theirs_dense in zip(
            self.projections(ours), self.projections(theirs), strict=True
        ):
            kernel = ours_dense.frozen_kernel
            a, b = (
                to_numpy(each).astype("float64")
                for each in (ours_dense.lora_kernel_a, ours_dense.lora_kernel_b)
            )
            assert a.shape[-1] == b.shape[0] == 2
            assert (*a.shape[:-1], *b.shape[1:]) == tuple(kernel.shape)
            product = a.reshape(-1, 2) @ b.reshape(2, -1)
            merged = to_numpy(kernel) + 1.5 * product.reshape(kernel.shape)
            np.testing.assert_allclose(
                to_numpy(ours_dense.kernel), merged, atol=1e-6, rtol=1e-6
            )
            theirs_dense.set_weights([merged, ours_dense.bias])
        np.testing.assert_allclose(
            to_numpy(ours(*inputs)), to_numpy(theirs(*inputs)), atol=1e-5, rtol=1e-5
        )

    @pytest.mark.once("torch")
    def test_lora_and_int8_exclude_each_other(self, pair):
        ours, _, _ = pair
        ours.query_dense.enable_lora(2)
        with pytest.raises(ValueError, match="`quantize` requires a layer without Lo"):
            ours.query_dense.quantize("int8")
        ours.key_dense.quantize("int8")
        with pytest.raises(
            ValueError, match="`enable_lora` requires a layer of floats"
        ):
            ours.key_dense.enable_lora(2)

    @pytest.mark.once("torch")
    def test_int8(self, pair):
        *layers, inputs = pair
        before = layers[0](*inputs)
        for layer in layers:
            for projection in self.projections(layer):
                projection.quantize("int8")
                assert projection.quantization_mode == "int8"
        ours, theirs = layers
        np.testing.assert_allclose(
            to_numpy(ours(*inputs)), to_numpy(theirs(*inputs)), atol=1e-5, rtol=1e-5
        )
        assert 1e-5 < largest_difference(ours(*inputs), before) < 0.1


def blocks_model():
    inputs, source = (keras.Input((None, HIDDEN_DIM)) for _ in range(2))
    encoded = EncoderBlock(**BLOCK)(source)
    model = keras.Model([inputs, source], DecoderBlock(**BLOCK)(inputs, encoded))
    return with_random_weights(model)


@pytest.mark.once("torch")
def test_a_model_is_quantized_as_a_whole():
    model = blocks_model()
    before = to_numpy(model([INPUTS, SOURCE]))
    dense = keras.layers.Dense, keras.layers.EinsumDense
    model.quantize("int8", filters=lambda layer: isinstance(layer, dense))
    after = to_numpy(model([INPUTS, SOURCE]))
    kernels = [w for w in model.weights if w.path.endswith("kernel")]
    assert {keras.backend.standardize_dtype(w.dtype) for w in kernels} == {"int8"}
    assert 1e-5 < largest_difference(after, before) < 0.1 * np.abs(before).max()


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="has no XLA")
def test_jit_changes_nothing():
    model = blocks_model()
    expected = to_numpy(model([INPUTS, SOURCE]))
    model.compile(jit_compile=True)
    output = model.predict([INPUTS, SOURCE], verbose=0)
    np.testing.assert_allclose(output, expected, atol=1e-5)
