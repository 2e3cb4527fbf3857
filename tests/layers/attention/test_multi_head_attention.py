import json

import keras
import numpy as np
import pytest
import reference
from keras import ops
from layer_contract import (
    check_layer,
    get_mask,
    on_torch,
    to_numpy,
    with_mask,
    with_random_weights,
)

from keras_transformer.backend.compiling import compile_function
from keras_transformer.layers import (
    GlobalLocal,
    LocalWindow,
    MultiHeadAttention,
    PositionalEncoding,
    RelativePositionBias,
    RotaryEmbedding,
)

RNG = np.random.default_rng(13)
BATCH, QUERY_LENGTH, KEY_LENGTH, NUM_HEADS, KEY_DIM, VALUE_DIM = 2, 5, 7, 3, 11, 4
QUERY_DIM, SOURCE_DIM = 6, 10
QUERY = RNG.normal(size=(BATCH, QUERY_LENGTH, QUERY_DIM)).astype("float32")
SOURCE = RNG.normal(size=(BATCH, KEY_LENGTH, SOURCE_DIM)).astype("float32")

QUERY_MASK = np.ones((BATCH, QUERY_LENGTH), bool)
QUERY_MASK[0, 3:] = False
KEY_MASK = np.ones((BATCH, KEY_LENGTH), bool)
KEY_MASK[1, 4:] = False
HOLES = RNG.random((BATCH, QUERY_LENGTH, KEY_LENGTH)) < 0.6
HOLES[:, :, 0] = True
NOTHING_SEEN = HOLES.copy()
NOTHING_SEEN[0, 2] = NOTHING_SEEN[1, :2] = False
PER_HEAD = RNG.random((BATCH, NUM_HEADS, QUERY_LENGTH, KEY_LENGTH)) < 0.5


def attention(cls=MultiHeadAttention, **arguments):
    arguments = {"num_heads": NUM_HEADS, "key_dim": KEY_DIM, **arguments}
    layer = cls(**arguments)
    layer.build(QUERY.shape, SOURCE.shape)
    return with_random_weights(layer)


def assert_close(actual, expected):
    np.testing.assert_allclose(
        to_numpy(actual), to_numpy(expected), atol=1e-5, rtol=1e-5
    )


def test_contract():
    arguments = {
        "num_heads": 3,
        "key_dim": 2,
        "value_dim": 5,
        "dropout": 0.1,
        "sliding_window": 4,
        "seed": 17,
    }
    weight_shapes = [(6, 3, 2), (3, 2), (10, 3, 2), (3, 2), (10, 3, 5), (3, 5)]
    weight_shapes += [(3, 5, 6), (6,)]
    check_layer(MultiHeadAttention, arguments, [QUERY, SOURCE], weight_shapes)


def test_equals_the_reference():
    layer = attention(value_dim=VALUE_DIM)
    for mask in None, KEY_MASK[:, None], NOTHING_SEEN, PER_HEAD:
        expected = reference.multi_head_attention(
            layer.get_weights(), QUERY, SOURCE, mask
        )
        plain = layer(QUERY, SOURCE, attention_mask=mask)
        output, scores = layer(
            QUERY, SOURCE, attention_mask=mask, return_attention_scores=True
        )
        assert_close(plain, expected[0])
        assert_close(output, expected[0])
        assert_close(scores, expected[1])


class TestAgainstKeras:
    @pytest.mark.parametrize(
        ("arguments", "call"),
        [
            ({"value_dim": VALUE_DIM, "use_bias": False}, {"attention_mask": HOLES}),
            on_torch({"output_shape": (2, 13)}, {"value_mask": KEY_MASK}),
            on_torch(
                {"output_shape": 17}, {"key_mask": KEY_MASK, "use_causal_mask": True}
            ),
            (
                {"use_gate": True, "value_dim": VALUE_DIM, "dropout": 0.5},
                {"query_mask": QUERY_MASK},
            ),
            on_torch({"sliding_window": 2}, {"use_causal_mask": True}),
            on_torch({"sliding_window": 3}, {"attention_mask": HOLES}),
        ],
    )
    def test_with_weights_carried_both_ways(self, arguments, call):
        ours = attention(MultiHeadAttention, **arguments)
        theirs = attention(keras.layers.MultiHeadAttention, **arguments)
        names = [[w.path.split("/", 1)[1] for w in x.weights] for x in (ours, theirs)]
        assert names[0] == names[1]
        theirs.set_weights([1.5 * w for w in ours.get_weights()])
        ours.set_weights(theirs.get_weights())
        output, scores = ours(QUERY, SOURCE, return_attention_scores=True, **call)
        expected, expected_scores = theirs(
            QUERY, SOURCE, return_attention_scores=True, **call
        )
        # Keras takes the average of all values where a query sees nothing.
        seen = to_numpy(scores).any(axis=(1, 3))
        assert seen.sum() >= QUERY_MASK.sum()
        for one in output, ours(QUERY, SOURCE, **call):
            assert_close(to_numpy(one)[seen], to_numpy(expected)[seen])
        by_query = (
            to_numpy(x).transpose(0, 2, 1, 3)[seen] for x in (scores, expected_scores)
        )
        assert_close(*by_query)

    @pytest.mark.once("torch")
    def test_with_a_key_of_its_own(self):
        key = RNG.normal(size=(BATCH, KEY_LENGTH, 13)).astype("float32")
        ours = MultiHeadAttention(NUM_HEADS, KEY_DIM)
        theirs = keras.layers.MultiHeadAttention(NUM_HEADS, KEY_DIM)
        for layer in (ours, theirs):
            layer.build(QUERY.shape, SOURCE.shape, key.shape)
            with_random_weights(layer)
        assert_close(ours(QUERY, SOURCE, key), theirs(QUERY, SOURCE, key))

    @pytest.mark.parametrize(
        ("key_value_heads", "use_gate", "call"),
        [
            (2, True, {"attention_mask": HOLES}),
            on_torch(2, False, {"value_mask": KEY_MASK}),
            on_torch(1, True, {"use_causal_mask": True}),
        ],
    )
    def test_with_fewer_heads_of_keys_and_values(self, key_value_heads, use_gate, call):
        ours = attention(
            num_heads=6, num_key_value_heads=key_value_heads, use_gate=use_gate
        )
        theirs = keras.layers.GroupQueryAttention(
            KEY_DIM, 6, key_value_heads, use_gate=use_gate
        )
        theirs.build(QUERY.shape, SOURCE.shape)
        theirs.set_weights(ours.get_weights())
        expected = theirs(QUERY, SOURCE, return_attention_scores=True, **call)
        actual = ours(QUERY, SOURCE, return_attention_scores=True, **call)
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other)
        assert_close(ours(QUERY, SOURCE, **call), expected[0])


class TestMasks:
    def test_all_of_them_are_joined(self):
        layer = attention()
        key_mask = np.roll(KEY_MASK, 1, axis=0)
        joined = HOLES & QUERY_MASK[:, :, None] & (KEY_MASK & key_mask)[:, None]
        joined &= reference.causal_mask(QUERY_LENGTH, KEY_LENGTH)
        output = layer(
            QUERY,
            SOURCE,
            query_mask=QUERY_MASK,
            value_mask=KEY_MASK,
            key_mask=key_mask,
            attention_mask=HOLES,
            use_causal_mask=True,
        )
        expected, _ = reference.multi_head_attention(
            layer.get_weights(), QUERY, SOURCE, joined
        )
        assert_close(output, expected)

    def test_implicit_masks_are_honoured_and_the_query_s_passed_on(self):
        layer = attention()
        output = layer(with_mask(QUERY, QUERY_MASK), with_mask(SOURCE, KEY_MASK))
        expected = layer(QUERY, SOURCE, query_mask=QUERY_MASK, value_mask=KEY_MASK)
        np.testing.assert_array_equal(to_numpy(output), to_numpy(expected))
        np.testing.assert_array_equal(get_mask(output), QUERY_MASK)

    def test_an_explicit_mask_replaces_an_implicit_one(self):
        layer = attention()
        masked = with_mask(QUERY, QUERY_MASK), with_mask(SOURCE, KEY_MASK)
        explicit = {"query_mask": ~QUERY_MASK, "value_mask": KEY_MASK[::-1]}
        output = to_numpy(layer(*masked, **explicit))
        expected = to_numpy(layer(QUERY, SOURCE, **explicit))
        np.testing.assert_array_equal(output, expected)
        *_, output_bias = layer.get_weights()
        np.testing.assert_allclose(output[0, 0], output_bias, atol=1e-6)
        assert np.abs(output[0, 4] - output_bias).max() > 0.01

    def test_masked_queries_have_zero_scores_and_attend_to_nothing(self):
        layer = attention(dropout=0.5)
        options = {"query_mask": QUERY_MASK, "training": True}
        plain = to_numpy(layer(QUERY, SOURCE, **options))
        output, scores = layer(QUERY, SOURCE, return_attention_scores=True, **options)
        *_, output_bias = layer.get_weights()
        for outputs in (plain, to_numpy(output)):
            assert (outputs[~QUERY_MASK] == output_bias).all()
            assert (outputs[QUERY_MASK] != output_bias).any(-1).all()
        by_query = to_numpy(scores).transpose(0, 2, 1, 3)
        assert (by_query[~QUERY_MASK] == 0).all()
        np.testing.assert_allclose(by_query[QUERY_MASK].sum(-1), 1, atol=1e-5)


class TestCache:
    @pytest.mark.parametrize(
        ("chunks", "as_tensor", "options"),
        [
            ([3, 1, 1], True, {"sliding_window": 3}),
            on_torch([1] * 5, False, {"num_key_value_heads": 1}),
            on_torch([5], True, {}),
        ],
    )
    def test_cached_equals_uncached(self, chunks, as_tensor, options):
        layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, **options)
        layer.build(QUERY.shape, QUERY.shape)
        with_random_weights(layer)
        expected = layer(QUERY, QUERY, use_causal_mask=True)
        shape = (BATCH, 2, 7, layer.num_key_value_heads, KEY_DIM)
        cache = np.full(shape, 1e3, "float32")
        outputs, index = [], 0
        for length in chunks:
            x = QUERY[:, index : index + length]
            output, cache = layer(
                x,
                x,
                use_causal_mask=True,
                cache=cache,
                cache_update_index=ops.convert_to_tensor(index, "int32")
                if as_tensor
                else index,
            )
            outputs.append(to_numpy(output))
            index += length
        assert_close(np.concatenate(outputs, axis=1), expected)
        cache = to_numpy(cache)
        assert_close(cache[:, :, :5], layer.compute_cache(QUERY))
        assert (cache[:, :, 5:] == 1e3).all()

    def test_a_filled_cache_is_read_as_it_is(self):
        layer = attention()
        cache = layer.compute_cache(SOURCE)
        assert tuple(cache.shape) == (BATCH, 2, KEY_LENGTH, NUM_HEADS, KEY_DIM)
        mask = KEY_MASK[:, None]
        expected = layer(
            QUERY, SOURCE, attention_mask=mask, return_attention_scores=True
        )
        output, scores, same = layer(
            QUERY,
            QUERY,
            attention_mask=mask,
            cache=cache,
            return_attention_scores=True,
        )
        np.testing.assert_allclose(to_numpy(output), to_numpy(expected[0]), atol=1e-6)
        np.testing.assert_allclose(to_numpy(scores), to_numpy(expected[1]), atol=1e-6)
        np.testing.assert_array_equal(to_numpy(same), to_numpy(cache))

    def test_holds_the_compute_dtype(self):
        layer = attention(dtype="mixed_bfloat16")
        cache = layer.compute_cache(SOURCE)
        assert keras.backend.standardize_dtype(cache.dtype) == "bfloat16"
        output, same = layer(QUERY, QUERY, cache=cache)
        np.testing.assert_array_equal(to_numpy(output), to_numpy(layer(QUERY, SOURCE)))
        np.testing.assert_array_equal(to_numpy(same), to_numpy(cache))


def test_dropout_is_for_training_alone_and_leaves_the_scores_whole():
    plain = attention()(QUERY, SOURCE)
    first, same, other = (attention(dropout=0.5, seed=seed) for seed in (3, 3, 5))
    np.testing.assert_array_equal(to_numpy(first(QUERY, SOURCE)), to_numpy(plain))
    options = {"return_attention_scores": True}
    output, scores = first(QUERY, SOURCE, **options)
    dropped, whole = first(QUERY, SOURCE, training=True, **options)
    dropped = to_numpy(dropped)
    assert np.abs(to_numpy(output) - dropped).max() > 0.01
    np.testing.assert_array_equal(to_numpy(scores), to_numpy(whole))
    again, others = (
        to_numpy(layer(QUERY, SOURCE, training=True)) for layer in (same, other)
    )
    assert_close(again, dropped)
    assert not np.array_equal(again, others)


def test_scores_under_jit_are_an_output_and_not_stored_in_the_layer():
    layer = attention(dropout=0.5, pattern=LocalWindow(2), num_key_value_heads=1)

    def call(query, source):
        return layer(query, source, return_attention_scores=True)

    expected, before = call(QUERY, SOURCE), dict(vars(layer))
    tensors = map(ops.convert_to_tensor, (QUERY, SOURCE))
    for one, other in zip(compile_function(call, layer)(*tensors), expected, strict=1):
        assert_close(one, other)
    assert vars(layer).keys() == before.keys()
    assert all(vars(layer)[name] is value for name, value in before.items())


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "arguments",
    [
        {"attention_axes": (1,), "output_shape": (3, 5), "dropout": 0.2},
        {"num_key_value_heads": 3, "pattern": GlobalLocal(2, 1), "use_gate": True},
        {"sliding_window": 4, "kernel_constraint": "non_neg"},
        {"positions": RelativePositionBias(8, 13), "kernel_regularizer": "l2"},
    ],
)
def test_config_holds_every_argument(arguments):
    layer = MultiHeadAttention(6, 4, dtype="mixed_bfloat16", **arguments)
    stored = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    restored = keras.saving.deserialize_keras_object(stored)
    assert json.dumps(restored.get_config()) == json.dumps(layer.get_config())
    assert restored.num_key_value_heads == layer.num_key_value_heads
    assert restored.pattern == layer.pattern
    assert type(restored.positions) is type(layer.positions)
    if "sliding_window" in arguments:
        assert layer.pattern == LocalWindow(3)
        assert layer.get_config()["pattern"] is None


def test_layers_with_the_same_scheme_have_separate_weights(tmp_path):
    scheme = RelativePositionBias(num_buckets=8, max_distance=13)
    inputs = x = keras.Input((QUERY_LENGTH, QUERY_DIM))
    for num_heads in (2, 3):
        x = MultiHeadAttention(
            num_heads, KEY_DIM, positions=scheme, pattern=LocalWindow(2), use_gate=True
        )(x, x)
    model = with_random_weights(keras.Model(inputs, x))
    assert scheme.weights == [] and len(model.weights) == 2 * 11
    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(restored(QUERY)), to_numpy(model(QUERY)))


def test_symbolic_shapes_of_output_scores_and_cache():
    for query_length, key_length in (5, 7), (None, None):
        output, scores = MultiHeadAttention(NUM_HEADS, KEY_DIM)(
            keras.Input((query_length, QUERY_DIM)),
            keras.Input((key_length, SOURCE_DIM)),
            return_attention_scores=True,
        )
        assert output.shape == (None, query_length, QUERY_DIM)
        assert scores.shape == (None, NUM_HEADS, query_length, key_length)
    cache = keras.Input((2, 13, NUM_HEADS, KEY_DIM))
    x = keras.Input((1, QUERY_DIM))
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM)
    output, cache = layer(x, x, cache=cache, cache_update_index=0)
    assert output.shape == (None, 1, QUERY_DIM)
    assert cache.shape == (None, 2, 13, NUM_HEADS, KEY_DIM)


def test_length_one_attends_to_itself():
    layer = attention()
    output, scores = layer(QUERY[:, :1], SOURCE[:, :1], return_attention_scores=True)
    assert_close(scores, np.ones((BATCH, NUM_HEADS, 1, 1)))
    assert tuple(output.shape) == (BATCH, 1, QUERY_DIM)


def test_regularizers_and_constraints_reach_every_projection():
    layer = attention(
        kernel_regularizer=keras.regularizers.L2(0.1),
        bias_regularizer=keras.regularizers.L2(0.2),
        kernel_constraint="non_neg",
        bias_constraint="max_norm",
    )
    kernels, biases = layer.get_weights()[::2], layer.get_weights()[1::2]
    squares = sum(0.1 * np.square(k).sum() for k in kernels)
    squares += sum(0.2 * np.square(b).sum() for b in biases)
    np.testing.assert_allclose(to_numpy(sum(layer.losses)), squares, rtol=1e-5)
    assert [type(w.constraint).__name__ for w in layer.weights] == [
        "NonNeg",
        "MaxNorm",
    ] * 4
    config = MultiHeadAttention.from_config(layer.get_config()).get_config()
    assert config == layer.get_config()


@pytest.mark.once("torch")
class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"num_heads": 0}, "`num_heads` must be an int .*`num_heads=0`"),
            ({"key_dim": 2.5}, "`key_dim` must be an int .*`key_dim=2.5`"),
            ({"value_dim": 0}, "`value_dim` must be an int .*`value_dim=0`"),
            ({"sliding_window": 0}, "`sliding_window` must be .*`sliding_window=0`"),
            (
                {"num_key_value_heads": 0},
                "`num_key_value_heads` must be an int .*heads=0`",
            ),
            (
                {"num_key_value_heads": 4},
                "must be a multiple of `num_key_value_heads`; .*`num_heads=2`, "
                "`num_key_value_heads=4`",
            ),
            ({"dropout": 1.0}, r"`dropout` must be in \[0, 1\); .*`dropout=1.0`"),
            (
                {"dropout": 0.1, "flash_attention": True},
                "Dropout is not supported when flash .*`dropout=0.1`",
            ),
            (
                {"sliding_window": 3, "pattern": LocalWindow(2)},
                "`sliding_window` must be `None` with a `pattern`; "
                r"received `sliding_window=3`, `pattern=LocalWindow\(radius=2\)`",
            ),
            (
                {"positions": PositionalEncoding(name="waves")},
                "`positions` must be a scheme that acts in attention, .*waves",
            ),
            (
                {"output_shape": 2.5},
                "Invalid `output_shape`: .*; received `output_shape=2.5`",
            ),
            ({"pattern": "local"}, "`pattern` must be .*`pattern='local'`"),
            ({"positions": "local"}, "`positions` must be .*`positions='local'`"),
        ],
    )
    def test_arguments(self, arguments, message):
        with pytest.raises((ValueError, TypeError), match=message):
            MultiHeadAttention(**{"num_heads": 2, "key_dim": 3, **arguments})

    @pytest.mark.parametrize(
        ("arguments", "call", "message"),
        [
            (
                {},
                {"cache_update_index": 2},
                "`cache_update_index` must be `None` .*`cache_update_index=2`",
            ),
            (
                {"value_dim": VALUE_DIM},
                {"cache": np.ones((BATCH, 2, 7, 3, 11))},
                "`value_dim` must be equal to `key_dim` .*`value_dim=4`",
            ),
            (
                {"flash_attention": True},
                {"return_attention_scores": True},
                "Returning attention scores is not supported when flash",
            ),
            (
                {"positions": RotaryEmbedding()},
                {},
                "`key_dim` must be even.*`key_dim=11`",
            ),
        ],
    )
    def test_of_a_call(self, arguments, call, message):
        layer = attention(**arguments)
        with pytest.raises(ValueError, match=message):
            layer(QUERY, SOURCE, **call)

    def test_keys_and_values_of_different_lengths(self):
        message = (
            r"must be equal; .*`value.shape=\(2, 7, 10\)`, `key.shape=\(2, 5, 6\)`"
        )
        layer = MultiHeadAttention(NUM_HEADS, KEY_DIM)
        with pytest.raises(ValueError, match=message):
            layer(QUERY, SOURCE, QUERY)
        with pytest.raises(ValueError, match=message):
            layer.compute_output_shape(QUERY.shape, SOURCE.shape, QUERY.shape)

    @pytest.mark.parametrize("name", ["cache", "query_positions", "key_positions"])
    def test_what_needs_three_axes(self, name):
        inputs = np.ones((2, 3, 5, 7), "float32")
        message = rf"`{name}` must be `None` for .*`query.shape=\(2, 3, 5, 7\)`"
        layer = MultiHeadAttention(NUM_HEADS, KEY_DIM)
        with pytest.raises(ValueError, match=message):
            layer(inputs, inputs, **{name: np.arange(5)})

    @pytest.mark.parametrize("axes", [0, 3, (1, -1)])
    def test_attention_axes(self, axes):
        inputs = np.ones((2, 3, 5, 7), "float32")
        layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, attention_axes=axes)
        message = "`attention_axes` must be axes between .*for inputs with 4 axes"
        with pytest.raises(ValueError, match=message):
            layer(inputs, inputs)
