"""`DecoderStack` without an encoder: the body of a decoder-only language model."""

import keras
import numpy as np
import pytest
import reference
from designs import DESIGNS
from keras import ops
from layer_contract import (
    on_torch,
    to_numpy,
    with_mask,
    with_random_weights,
)

from keras_transformer.layers import DecoderStack, KeyValues, RotaryEmbedding

RNG = np.random.default_rng(59)
BATCH, LENGTH, NUM_LAYERS, NUM_HEADS, KEY_DIM = 2, 5, 2, 3, 4
HIDDEN_DIM, INTERMEDIATE_DIM = NUM_HEADS * KEY_DIM, 13
X = RNG.normal(size=(BATCH, LENGTH, HIDDEN_DIM)).astype("float32")
PADDING = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
HOLES = RNG.random((BATCH, LENGTH, LENGTH)) < 0.6
HOLES[:, :, 0] = True
MASKS = {
    "causal": {},
    "not causal": {"use_causal_mask": False},
    "padding": {"decoder_padding_mask": PADDING},
    "attention": {"decoder_attention_mask": HOLES},
    "both, not causal": {
        "decoder_padding_mask": PADDING,
        "decoder_attention_mask": HOLES,
        "use_causal_mask": False,
    },
}


def stack(**arguments):
    """Pre-norm by default: with random weights, post-norm hides the inputs."""
    sizes = NUM_LAYERS, INTERMEDIATE_DIM, NUM_HEADS
    layer = DecoderStack(*sizes, **{"normalize_first": True, **arguments})
    layer.build(X.shape)
    return with_random_weights(layer)


def reference_stack(layer, inputs, mask, normalize_first=True):
    """The stack in float64 NumPy: the output and the scores of each block."""
    weights, x, scores = layer.get_weights(), inputs, []
    of_norm = 2 if normalize_first else 0
    per_block = (len(weights) - of_norm) // NUM_LAYERS
    for start in range(0, NUM_LAYERS * per_block, per_block):
        block = weights[start : start + per_block]
        x, block_scores, _ = reference.decoder_block(
            block, x, None, mask, normalize_first=normalize_first
        )
        scores.append(block_scores)
    if normalize_first:
        x = reference.layer_norm(weights[-2:], x)
    return x, scores


def reference_mask(
    decoder_padding_mask=None, decoder_attention_mask=True, use_causal_mask=True
):
    mask = np.tri(LENGTH, dtype=bool) if use_causal_mask else True
    if decoder_padding_mask is not None:
        mask = mask & decoder_padding_mask[:, None]
    return np.broadcast_to(mask & decoder_attention_mask, HOLES.shape)


def assert_close(actual, expected, atol=2e-5):
    np.testing.assert_allclose(to_numpy(actual), to_numpy(expected), atol=atol)


@pytest.mark.parametrize("normalize_first", [True, on_torch(False)])
def test_equals_the_reference(normalize_first):
    layer = stack(normalize_first=normalize_first)
    for masks in MASKS.values():
        mask = reference_mask(**masks)
        expected, expected_scores = reference_stack(layer, X, mask, normalize_first)
        output, scores = layer(X, return_attention_scores=True, **masks)
        assert_close(layer(X, **masks), expected)
        assert_close(output, expected)
        for block_scores, of_block in zip(scores, expected_scores, strict=True):
            assert block_scores.keys() == {"self_attention"}
            assert_close(block_scores["self_attention"], of_block)


def test_padding_changes_nothing():
    layer = stack(positions=RotaryEmbedding())
    expected = to_numpy(layer(X, decoder_padding_mask=PADDING))
    wider = np.pad(X, ((0, 0), (0, 2), (0, 0)), constant_values=9.0)
    mask = np.pad(PADDING, ((0, 0), (0, 2)))
    output = to_numpy(layer(wider, decoder_padding_mask=mask))
    assert_close(output[:, :LENGTH], expected)
    assert_close(to_numpy(layer(with_mask(X, PADDING)))[0, :3], expected[0, :3])
    assert_close(to_numpy(layer(X[:1, :3]))[0], expected[0, :3])


# `test_stacks.py` takes the steps of every design, with an encoder.


@pytest.mark.parametrize(
    ("design", "is_one_tensor"), [("modern", False), on_torch("learned", True)]
)
def test_cached_calls_are_whole_calls(design, is_one_tensor):
    layer = stack(**DESIGNS[design]())
    expected, expected_scores = layer(X, return_attention_scores=True)
    expected = to_numpy(expected)
    caches = [cache for (cache,) in layer.empty_caches(None, 7, batch_size=BATCH)]
    if is_one_tensor:
        num_heads = caches[0].keys.shape[1]
        shape = (BATCH, 2, 7, num_heads, KEY_DIM)
        caches = [np.zeros(shape, "float32") for _ in caches]
    for rows in slice(0, 2), slice(2, 3), slice(3, 5):
        output, caches, scores = layer(
            X[:, rows],
            self_attention_cache=caches,
            self_attention_cache_update_index=rows.start,
            return_attention_scores=True,
        )
        assert_close(output, expected[:, rows])
        for one, whole in zip(scores, expected_scores, strict=True):
            seen = to_numpy(whole["self_attention"])[:, :, rows]
            padded = np.pad(seen, ((0, 0), (0, 0), (0, 0), (0, 2)))
            assert_close(one["self_attention"], padded)
    assert len(caches) == NUM_LAYERS
    assert all(isinstance(cache, KeyValues) != is_one_tensor for cache in caches)


def test_the_last_step_returns_its_scores():
    layer = stack()
    caches = layer.empty_caches(None, 3, batch_size=BATCH)
    mask = np.array([[[True, False, False]]])
    *_, scores = layer.step(X[:, :1], caches, 0, mask, return_attention_scores=True)
    np.testing.assert_allclose(
        to_numpy(scores["self_attention"]),
        np.broadcast_to([1.0, 0.0, 0.0], (BATCH, NUM_HEADS, 1, 3)),
    )


def test_shapes_without_a_call():
    layer = DecoderStack(NUM_LAYERS, INTERMEDIATE_DIM, NUM_HEADS)
    assert layer.compute_output_shape(X.shape) == X.shape
    output, cache = layer(
        keras.Input((1, HIDDEN_DIM)),
        self_attention_cache=[keras.Input((2, 13, 3, 4)) for _ in range(NUM_LAYERS)],
        self_attention_cache_update_index=0,
    )
    assert output.shape == (None, 1, HIDDEN_DIM)
    assert [x.shape for x in cache] == [(None, 2, 13, 3, 4)] * NUM_LAYERS


@pytest.mark.once("torch")
class TestErrors:
    def test_a_source_for_a_stack_built_without(self):
        with pytest.raises(ValueError, match="`encoder_sequence` must be `None` for"):
            stack()(X, X)

    def test_no_source_for_a_stack_built_with_one(self):
        layer = DecoderStack(NUM_LAYERS, INTERMEDIATE_DIM, NUM_HEADS)
        layer.build(X.shape, X.shape)
        with pytest.raises(ValueError, match="`encoder_sequence` must be given to"):
            layer(X)
        with pytest.raises(ValueError, match="received no .* with cross-attention"):
            layer.empty_caches(None, 3, batch_size=BATCH)

    def test_empty_caches(self):
        layer = stack()
        with pytest.raises(ValueError, match="received an .* without cross-attention"):
            layer.empty_caches(ops.convert_to_tensor(X), 3)
        with pytest.raises(ValueError, match="`batch_size` must be given"):
            layer.empty_caches(None, 3)

    def test_number_of_caches(self):
        layer = stack()
        cache = layer.empty_caches(None, 3, batch_size=BATCH)[0][0]
        message = "`self_attention_cache` must be a list .* 2 blocks; received "
        for caches, received in ([cache], "1 caches"), (cache, "one <class"):
            with pytest.raises(ValueError, match=message + received):
                layer(
                    X,
                    self_attention_cache=caches,
                    self_attention_cache_update_index=0,
                )
