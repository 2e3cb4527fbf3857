import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.layers.attention.key_values import (
    KeyValues,
    read_cache,
    update_cache,
)

BATCH, LENGTH, NUM_HEADS, KEY_DIM = 2, 5, 3, 7
RNG = np.random.default_rng(0)
HEADS = RNG.normal(size=(2, BATCH, LENGTH, NUM_HEADS, KEY_DIM)).astype("float32")


def keras_hub_layout(keys, values):
    return ops.convert_to_tensor(np.stack([keys, values], axis=1))


def own_layout(keys, values):
    return KeyValues.from_heads(*map(ops.convert_to_tensor, (keys, values)))


each_layout = pytest.mark.parametrize("make", [keras_hub_layout, own_layout])


@each_layout
def test_key_values_round_trip(make):
    new = RNG.normal(size=(2, BATCH, 2, NUM_HEADS, KEY_DIM)).astype("float32")
    cache = update_cache(make(*HEADS), *map(ops.convert_to_tensor, new), index=2)
    expected = HEADS.copy()
    expected[:, :, 2:4] = new
    for read, wanted in zip(read_cache(cache), expected, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(read), wanted)


def test_a_longer_cache_is_empty_at_its_end():
    cache = own_layout(*HEADS)
    for read, wanted in zip(read_cache(cache.extended(8)), HEADS, strict=True):
        read = ops.convert_to_numpy(read)
        assert read.shape == (BATCH, 8, NUM_HEADS, KEY_DIM)
        np.testing.assert_array_equal(read[:, :LENGTH], wanted)
        assert not read[:, LENGTH:].any()


def test_attention_is_the_same_in_both_layouts():
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM)
    query = RNG.normal(size=(BATCH, 2, 4)).astype("float32")
    layer.build(query.shape, query.shape)
    mask = np.ones((BATCH, 2, LENGTH), bool)
    outputs = [
        layer(
            query, query, cache=make(*HEADS), cache_update_index=1, attention_mask=mask
        )
        for make in (keras_hub_layout, own_layout)
    ]
    (one, one_cache), (other, other_cache) = outputs
    pairs = zip(read_cache(one_cache), read_cache(other_cache), strict=True)
    for read, wanted in ((one, other), *pairs):
        np.testing.assert_allclose(
            ops.convert_to_numpy(read), ops.convert_to_numpy(wanted), atol=1e-6
        )
