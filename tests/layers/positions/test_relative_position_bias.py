import math

import numpy as np
import pytest
from keras_hub.src.models.t5.t5_multi_head_attention import T5MultiHeadAttention
from layer_contract import check_layer, to_numpy, weight_gradients, with_random_weights

from keras_transformer.layers import RelativePositionBias
from keras_transformer.layers.positions.relative_position_bias import (
    bucket_of_each_distance,
)

RNG = np.random.default_rng(31)
LOGITS = RNG.normal(size=(2, 3, 5, 7)).astype("float32")


def bucket(relative, num_buckets, max_distance):
    """Section 2.1, by logarithms; the addend stands above their rounding error."""
    side = num_buckets // 2
    exact = side // 2
    first = side if relative > 0 else 0
    distance = abs(relative)
    if distance < exact:
        return first + distance
    octaves = math.log(distance / exact) / math.log(max_distance / exact)
    return first + min(side - 1, exact + int(octaves * (side - exact) + 1e-9))


def built(num_heads=3, **options):
    layer = RelativePositionBias(**options)
    layer.build((None, num_heads, None, None))
    return with_random_weights(layer)


def test_contract():
    arguments = {"num_buckets": 6, "max_distance": 11}
    shapes = [(3, None, None)]
    check_layer(RelativePositionBias, arguments, [LOGITS], [(6, 3)], shapes)
    arguments = {"num_buckets": 5, "max_distance": 11, "bidirectional": False}
    check_layer(RelativePositionBias, arguments, [LOGITS], [(5, 3)], shapes)


# 32 buckets, of which 16 for later keys: 0-7 exactly, then from 8 · 16^(j/8) on.
@pytest.mark.once("torch")
def test_buckets_by_hand():
    first_distances = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
    *earlier, now = bucket_of_each_distance(32, 128)[:129]
    later = bucket_of_each_distance(32, 128)[129:]
    by_distance = np.array([now, *earlier[::-1]])
    starts = np.flatnonzero(np.diff(by_distance, prepend=-1))
    assert starts.tolist() == first_distances
    assert (by_distance[starts] == np.arange(16)).all()
    assert (later == by_distance[1:] + 16).all()


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "num_buckets, max_distance",
    [(4, 2), (4, 3), (6, 7), (8, 5), (10, 100), (16, 17), (32, 128), (64, 1000)],
)
def test_buckets_equal_the_reference(num_buckets, max_distance):
    expected = [
        bucket(relative, num_buckets, max_distance)
        for relative in range(-max_distance, max_distance + 1)
    ]
    buckets = bucket_of_each_distance(num_buckets, max_distance)
    assert buckets.tolist() == expected


@pytest.mark.once("torch")
def test_buckets_of_the_past_alone():
    *earlier, now = bucket_of_each_distance(16, 128, bidirectional=False)[:129]
    both_sides = bucket_of_each_distance(32, 128)[:129]
    assert [*earlier, now] == both_sides.tolist()
    later = bucket_of_each_distance(7, 4, bidirectional=False)[5:]
    assert later.tolist() == [0, 0, 0, 0]


@pytest.mark.once("torch")
@pytest.mark.parametrize("is_decoder", [False, True])
def test_equals_t5_of_keras_hub(is_decoder):
    peer = T5MultiHeadAttention(
        is_decoder=is_decoder,
        hidden_dim=6,
        key_value_dim=2,
        num_heads=3,
        dropout=0.0,
        use_relative_attention_bias=True,
    )
    layer = built(bidirectional=not is_decoder)
    peer.relative_attention_bias.assign(layer.get_weights()[0])
    theirs = to_numpy(peer.compute_bias(200, 173))[0]
    ours = to_numpy(layer.bias(np.arange(200), np.arange(173)))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_gradients_go_to_the_buckets_in_use():
    layer = built(num_buckets=8, max_distance=11)
    (table,) = layer.get_weights()
    expected = np.zeros((8, 3))
    for row, head, query, key in np.ndindex(*LOGITS.shape):
        index = bucket(key - query, 8, 11), head
        expected[index] += 2 * (LOGITS[row, head, query, key] + table[index])
    (gradient,) = weight_gradients(layer, LOGITS)
    np.testing.assert_allclose(gradient, expected, atol=1e-4)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_buckets": 7}, "even int from 4 to 4096; .*`num_buckets=7`"),
        ({"num_buckets": 8.0}, "even int from 4 to 4096; .*=8.0`"),
        ({"num_buckets": 10**10}, "even int from 4 to 4096; .*=10000000000`"),
        ({"max_distance": 10**9}, "of at most 1048576; .*`max_distance=1000000000`"),
        ({"max_distance": 8}, "int above `num_buckets / 4` .*`max_distance=8`, .*=32"),
        (
            {"num_buckets": 1, "bidirectional": False},
            "an int from 2 to 4096; .*`num_buckets=1`",
        ),
        (
            {"num_buckets": 7, "max_distance": 3, "bidirectional": False},
            "int above `num_buckets / 2` .*=3`, .*=7`",
        ),
    ],
)
def test_an_argument_out_of_range_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        RelativePositionBias(**arguments)
