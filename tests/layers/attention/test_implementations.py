"""Patterns and positions in `MultiHeadAttention`: dense, blockwise, step by step."""

import keras
import numpy as np
import pytest
import reference
from keras import ops
from layer_contract import to_numpy, weight_gradients, with_random_weights

from keras_transformer.backend.compiling import compile_function
from keras_transformer.layers import (
    AlibiBias,
    GlobalLocal,
    LocalWindow,
    MultiHeadAttention,
    RelativePositionBias,
    RotaryEmbedding,
    Strided,
)

RNG = np.random.default_rng(47)
BATCH, LENGTH, LONG, NUM_HEADS, KEY_DIM, VALUE_DIM, HIDDEN_DIM = 2, 7, 127, 4, 6, 3, 11
INPUTS = RNG.normal(size=(BATCH, LONG, HIDDEN_DIM)).astype("float32")
SHORT = INPUTS[:, :LENGTH]
PADDING = np.arange(LONG) < [[LONG], [83]]
# Of outputs of up to 15.
TOLERANCE = {"mixed_float16": 4e-2, "mixed_bfloat16": 0.3}

# Each pattern with its definition: does position i attend to position j?
PATTERNS = {
    LocalWindow(3): lambda i, j: abs(i - j) <= 3,
    Strided(3, 7): lambda i, j: i - j in (-6, -3, 0, 3, 6),
    GlobalLocal(2, 3): lambda i, j: abs(i - j) <= 2 or i < 3 or j < 3,
}
SCHEMES = {
    "none": lambda: None,
    "rotary": lambda: RotaryEmbedding(max_wavelength=100),
    "alibi": AlibiBias,
    "relative": lambda: RelativePositionBias(num_buckets=8, max_distance=11),
}

each_pattern = pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
each_pair = pytest.mark.parametrize(
    ("scheme", "pattern"),
    [
        ("none", GlobalLocal(2, 3)),
        ("rotary", None),
        ("rotary", LocalWindow(3)),
        ("alibi", Strided(3, 7)),
        ("alibi", GlobalLocal(2, 3)),
        ("relative", None),
        ("relative", LocalWindow(3)),
    ],
)
each_scheme = pytest.mark.parametrize("scheme", SCHEMES)
causal_or_not = pytest.mark.parametrize(
    "causal", [False, True], ids=["both ways", "causal"]
)


def attention(cls=MultiHeadAttention, **arguments):
    layer = cls(num_heads=NUM_HEADS, key_dim=KEY_DIM, **arguments)
    layer.build(INPUTS.shape, INPUTS.shape)
    return with_random_weights(layer)


def definition(pattern, queries, keys, causal=False):
    mask = np.ones((1, len(queries), len(keys)), bool)
    for row, i in enumerate(queries):
        for column, j in enumerate(keys):
            seen = pattern is None or PATTERNS[pattern](i, j)
            mask[0, row, column] = seen and (j <= i or not causal)
    return mask


def rotated(heads):
    """Rotary positions by complex numbers (Su et al., 2021, equation 14)."""
    half = KEY_DIM // 2
    points = heads[..., :half] + 1j * heads[..., half:]
    rates = 100.0 ** (-2 * np.arange(half) / KEY_DIM)
    angles = np.arange(heads.shape[1])[:, None, None] * rates
    points = points * np.exp(1j * angles)
    return np.concatenate([points.real, points.imag], axis=-1)


def relative_bucket(distance):
    """Raffel et al. (2020), 8 buckets: 2 exact and 2 wider ones to either side."""
    side, distance = 4 * (distance > 0), abs(distance)
    if distance < 2:
        return side + distance
    return side + min(3, 2 + int(2 * np.log(distance / 2) / np.log(11 / 2)))


def reference_bias(layer, scheme, length):
    bias = np.zeros((NUM_HEADS, length, length))
    table = layer.positions.get_weights()[0] if scheme == "relative" else None
    for query, key in np.ndindex(length, length):
        if scheme == "alibi":
            bias[:, query, key] = -abs(key - query) / 4.0 ** np.arange(1, NUM_HEADS + 1)
        if scheme == "relative":
            bias[:, query, key] = table[relative_bucket(key - query)]
    return bias


def reference_attention(layer, scheme, inputs, mask):
    """The layer in float64, on positions 0, 1, 2, …: its output and its scores."""
    denses = layer.query_dense, layer.key_dense, layer.value_dense
    query, key, value = (
        np.einsum("btd,dhk->bthk", inputs.astype("float64"), kernel) + bias
        for kernel, bias in (dense.get_weights() for dense in denses)
    )
    length = inputs.shape[1]
    if scheme == "rotary":
        query, key = rotated(query), rotated(key)
    attended, scores = reference.scaled_dot_product_attention(
        query, key, value, mask, reference_bias(layer, scheme, length)
    )
    kernel, bias = layer.output_dense.get_weights()
    return np.einsum("bthk,hkd->btd", attended, kernel) + bias, scores


def self_attention(layer, inputs, **options):
    """Calls the layer, compiled on JAX, where single operations compile slowly."""

    def call(x):
        return layer(x, x, **options)

    if keras.backend.backend() == "jax":
        call = compile_function(call, layer)
    return call(ops.convert_to_tensor(inputs))


@pytest.fixture
def blocked_calls(monkeypatch):
    """The patterns that have computed blockwise attention."""
    calls = []

    def count(pattern_class):
        attend = pattern_class.attend

        def counted(self, *arguments, **options):
            calls.append(self)
            return attend(self, *arguments, **options)

        monkeypatch.setattr(pattern_class, "attend", counted)

    for pattern in PATTERNS:
        count(type(pattern))
    return calls


class TestDensely:
    """Sequences that are too short for blockwise attention."""

    @each_pair
    @pytest.mark.parametrize("key_value_heads", [NUM_HEADS, 2])
    def test_equals_the_reference(self, pattern, scheme, key_value_heads):
        layer = attention(
            pattern=pattern,
            positions=SCHEMES[scheme](),
            num_key_value_heads=key_value_heads,
            value_dim=VALUE_DIM,
        )
        causal, padding = key_value_heads == 2, PADDING[:, :LENGTH] & [[True], [False]]
        mask = definition(pattern, range(LENGTH), range(LENGTH), causal)
        expected, expected_scores = reference_attention(
            layer, scheme, SHORT, mask & padding[:, None]
        )
        options = {"value_mask": padding, "use_causal_mask": causal}
        plain = self_attention(layer, SHORT, **options)
        options["return_attention_scores"] = True
        output, scores = self_attention(layer, SHORT, **options)
        for one, other in (
            (plain, expected),
            (output, expected),
            (scores, expected_scores),
        ):
            np.testing.assert_allclose(to_numpy(one), other, atol=2e-5)

    @pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
    @each_scheme
    def test_in_half_precision(self, scheme, dtype):
        layer = attention(positions=SCHEMES[scheme](), dtype=dtype)
        mask = definition(None, range(LENGTH), range(LENGTH), causal=True)
        expected, _ = reference_attention(layer, scheme, SHORT, mask)
        output = self_attention(layer, SHORT, use_causal_mask=True)
        np.testing.assert_allclose(to_numpy(output), expected, atol=TOLERANCE[dtype])

    def test_fewer_queries_than_keys(self):
        """As in Keras, the first query has the position of the first key."""
        layer = attention(sliding_window=3)
        theirs = attention(keras.layers.MultiHeadAttention, sliding_window=3)
        np.testing.assert_allclose(
            to_numpy(layer(SHORT[:, :5], SHORT, use_causal_mask=True)),
            to_numpy(theirs(SHORT[:, :5], SHORT, use_causal_mask=True)),
            atol=1e-5,
        )


class TestPositions:
    """Explicit positions, as for caches and beams."""

    @each_pair
    def test_tokens_may_come_in_any_order(self, pattern, scheme):
        layer = attention(pattern=pattern, positions=SCHEMES[scheme]())
        expected = to_numpy(layer(SHORT, SHORT, use_causal_mask=True))
        orders = np.array([[3, 0, 6, 2, 5, 1, 4], [5, 2, 0, 6, 1, 4, 3]])
        for rows in (orders, orders[:1]):
            order = np.broadcast_to(rows, orders.shape)
            mixed = np.take_along_axis(SHORT, order[..., None], axis=1)
            positions = rows if len(rows) == BATCH else rows[0]
            output = layer(
                mixed,
                mixed,
                use_causal_mask=True,
                query_positions=positions,
                key_positions=positions,
            )
            wanted = np.take_along_axis(expected, order[..., None], axis=1)
            np.testing.assert_allclose(to_numpy(output), wanted, atol=1e-5)

    @each_scheme
    def test_only_distances_count(self, scheme):
        layer = attention(positions=SCHEMES[scheme](), pattern=LocalWindow(3))
        positions = np.arange(LENGTH) + [[13], [5]]
        output = layer(SHORT, SHORT, query_positions=positions, key_positions=positions)
        expected = to_numpy(layer(SHORT, SHORT))
        np.testing.assert_allclose(to_numpy(output), expected, atol=1e-4)

    @each_scheme
    def test_matter(self, scheme):
        layer = attention(positions=SCHEMES[scheme]())
        positions = 2 * np.arange(LENGTH)
        output = layer(SHORT, SHORT, query_positions=positions, key_positions=positions)
        difference = np.abs(to_numpy(output) - to_numpy(layer(SHORT, SHORT))).max()
        assert difference < 1e-5 if scheme == "none" else difference > 1e-2

    @each_pair
    def test_step_by_step_is_the_whole_call(self, pattern, scheme):
        layer = attention(
            pattern=pattern, positions=SCHEMES[scheme](), num_key_value_heads=2
        )
        cache = np.full((BATCH, 2, 11, 2, KEY_DIM), 7.0, "float32")
        outputs, index = [], 0
        for length in (2, 3, 1, 1):
            x = SHORT[:, index : index + length]
            output, cache = layer(
                x, x, use_causal_mask=True, cache=cache, cache_update_index=index
            )
            outputs.append(to_numpy(output))
            index += length
        expected = to_numpy(layer(SHORT, SHORT, use_causal_mask=True))
        np.testing.assert_allclose(np.concatenate(outputs, 1), expected, atol=1e-5)
        filled = to_numpy(layer.compute_cache(SHORT))
        np.testing.assert_allclose(to_numpy(cache)[:, :, :LENGTH], filled, atol=1e-5)

    @each_pair
    def test_beams_are_queries_of_one_attention(self, pattern, scheme):
        """Entry `step * num_beams + beam` of the cache is at position `step`."""
        num_beams, steps, rng = 3, 5, np.random.default_rng(3)
        layer = attention(pattern=pattern, positions=SCHEMES[scheme]())
        entries = np.arange(steps * num_beams)
        histories = np.zeros((BATCH, num_beams, steps, HIDDEN_DIM), "float32")
        ancestors = np.zeros((BATCH, num_beams, len(entries)), bool)
        cache = np.zeros((BATCH, 2, len(entries), NUM_HEADS, KEY_DIM), "float32")
        for step in range(steps):
            parents = rng.integers(0, num_beams, (BATCH, num_beams))
            ancestors = np.take_along_axis(ancestors, parents[..., None], axis=1)
            histories = np.take_along_axis(histories, parents[..., None, None], axis=1)
            newest = rng.normal(size=(BATCH, num_beams, HIDDEN_DIM)).astype("float32")
            histories[:, :, step] = newest
            ancestors |= entries == step * num_beams + np.arange(num_beams)[:, None]
            output, cache = layer(
                newest,
                newest,
                attention_mask=ancestors,
                cache=cache,
                cache_update_index=step * num_beams,
                query_positions=np.full(num_beams, step),
                key_positions=entries // num_beams,
            )
            sequences = histories.reshape(-1, steps, HIDDEN_DIM)
            whole = layer(sequences, sequences, use_causal_mask=True)
            expected = to_numpy(whole)[:, step]
            np.testing.assert_allclose(
                to_numpy(output).reshape(expected.shape), expected, atol=1e-5
            )


class TestInBlocks:
    def check(self, layer, scheme, causal, padded, tolerance=1e-4):
        positions, padding = range(LONG), PADDING if padded else PADDING | True
        mask = definition(layer.pattern, positions, positions, causal)
        expected, _ = reference_attention(
            layer, scheme, INPUTS, mask & padding[:, None]
        )
        options = {"use_causal_mask": causal}
        if padded:
            options["value_mask"] = padding
        output = self_attention(layer, INPUTS, **options)
        np.testing.assert_allclose(to_numpy(output), expected, atol=tolerance)

    @each_pattern
    @pytest.mark.parametrize(
        ("scheme", "causal", "padded"),
        [
            ("none", False, True),
            ("none", True, False),
            ("rotary", True, True),
            ("alibi", False, False),
            ("relative", False, True),
        ],
    )
    def test_equals_the_reference(self, pattern, scheme, causal, padded, blocked_calls):
        layer = attention(pattern=pattern, positions=SCHEMES[scheme]())
        self.check(layer, scheme, causal, padded)
        assert blocked_calls == [pattern]

    @each_pattern
    def test_with_fewer_key_value_heads(self, pattern, blocked_calls):
        layer = attention(
            pattern=pattern,
            positions=SCHEMES["relative"](),
            num_key_value_heads=2,
            value_dim=VALUE_DIM,
        )
        self.check(layer, "relative", causal=True, padded=True)
        assert blocked_calls == [pattern]

    @each_pattern
    @pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
    def test_in_half_precision(self, pattern, dtype, blocked_calls):
        layer = attention(pattern=pattern, positions=SCHEMES["alibi"](), dtype=dtype)
        self.check(layer, "alibi", True, padded=True, tolerance=TOLERANCE[dtype])
        assert blocked_calls == [pattern]

    @each_pattern
    @pytest.mark.parametrize(
        ("scheme", "causal"), [("rotary", True), ("relative", False)]
    )
    def test_gradients_are_those_under_a_mask(
        self, pattern, scheme, causal, blocked_calls
    ):
        in_blocks, densely = (
            attention(pattern=p, positions=SCHEMES[scheme]()) for p in (pattern, None)
        )
        mask = definition(pattern, range(LONG), range(LONG), causal)
        actual = weight_gradients(
            in_blocks, INPUTS, INPUTS, value_mask=PADDING, use_causal_mask=causal
        )
        assert blocked_calls == [pattern]
        expected = weight_gradients(
            densely, INPUTS, INPUTS, attention_mask=mask & PADDING[:, None]
        )
        assert len(actual) == 9 if scheme == "relative" else 8
        for one, other in zip(actual, expected, strict=True):
            assert np.isfinite(one).all()
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=2e-3)

    @causal_or_not
    @pytest.mark.parametrize("masks", [{}, {"value_mask": PADDING}])
    def test_keras_s_sliding_window(self, causal, masks, blocked_calls):
        ours = attention(sliding_window=4)
        theirs = attention(keras.layers.MultiHeadAttention, sliding_window=4)
        theirs.set_weights([1.2 * weight for weight in ours.get_weights()])
        ours.set_weights(theirs.get_weights())
        options = {"use_causal_mask": causal, **masks}
        output = to_numpy(self_attention(ours, INPUTS, **options))
        assert blocked_calls == [LocalWindow(3)]
        expected = to_numpy(self_attention(theirs, INPUTS, **options))
        # Keras takes the average of all values where a query sees nothing.
        seen = definition(LocalWindow(3), range(LONG), range(LONG), causal)
        if masks:
            seen = seen & PADDING[:, None]
        seen = np.broadcast_to(seen.any(-1), PADDING.shape)
        assert seen.sum() > 200
        np.testing.assert_allclose(output[seen], expected[seen], atol=2e-5)

    @each_pattern
    def test_dropout_keeps_the_sums_on_average(self, pattern, blocked_calls):
        layer = attention(pattern=pattern, dropout=0.5, output_shape=1)
        *kernels, value_kernel, value_bias, output_kernel, bias = layer.get_weights()
        layer.set_weights(
            [
                *kernels,
                0 * value_kernel,
                0 * value_bias + 1,
                0 * output_kernel + 1 / (NUM_HEADS * KEY_DIM),
                0 * bias,
            ]
        )
        sums = to_numpy(self_attention(layer, INPUTS, training=True))
        assert blocked_calls == [pattern]
        assert 0.1 < sums.std() < 1
        assert abs(sums.mean() - 1) < 5 / np.sqrt(sums.size)
        sums = to_numpy(self_attention(layer, INPUTS))
        np.testing.assert_allclose(sums, 1, atol=1e-5)

    @each_pattern
    def test_in_a_model_of_any_length(self, pattern):
        inputs = keras.Input((None, HIDDEN_DIM))
        layer = MultiHeadAttention(
            NUM_HEADS, KEY_DIM, pattern=pattern, positions=SCHEMES["alibi"]()
        )
        model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
        for length in (LONG, LENGTH):
            x = INPUTS[:, :length]
            expected, _ = layer(
                x, x, use_causal_mask=True, return_attention_scores=True
            )
            predicted = model.predict(x, verbose=0)
            np.testing.assert_allclose(predicted, to_numpy(expected), atol=2e-5)


class TestChoiceOfTheRoute:
    BLOCKED = {
        "no mask": {},
        "causal": {"use_causal_mask": True},
        "padding": {"value_mask": PADDING, "query_mask": PADDING},
        "a mask for every query": {"attention_mask": PADDING[:, None]},
        "the same with an axis for the heads": {
            "attention_mask": PADDING[:, None, None]
        },
    }
    DENSE = {
        "scores": {"return_attention_scores": True},
        "a mask for each query": {"attention_mask": np.ones((1, LONG, LONG), bool)},
        "a mask of two axes": {"attention_mask": np.ones((LONG, LONG), bool)},
        "a mask for each head": {
            "attention_mask": np.ones((1, NUM_HEADS, 1, LONG), bool)
        },
        "positions": {"query_positions": np.arange(LONG)},
        "a cache": {"cache": np.ones((BATCH, 2, LONG, NUM_HEADS, KEY_DIM), "float32")},
        "other keys": {"value": INPUTS[:, :113]},
    }

    @pytest.mark.parametrize("options", BLOCKED.values(), ids=BLOCKED.keys())
    def test_blocks_whenever_they_can(self, options, blocked_calls):
        layer = attention(pattern=LocalWindow(3))
        output = to_numpy(self_attention(layer, INPUTS, **options))
        assert blocked_calls == [LocalWindow(3)]
        options = {**options, "return_attention_scores": True}
        dense, _ = self_attention(layer, INPUTS, **options)
        np.testing.assert_allclose(output, to_numpy(dense), atol=1e-5)

    @pytest.mark.parametrize("options", DENSE.values(), ids=DENSE.keys())
    def test_densely_where_they_can_not(self, options, blocked_calls):
        layer = attention(pattern=LocalWindow(3))
        layer(INPUTS, **{"value": INPUTS, **options})
        assert blocked_calls == []

    def test_densely_where_blocks_do_not_pay(self, blocked_calls):
        attention(pattern=LocalWindow(3))(SHORT, SHORT)
        attention(pattern=LocalWindow(61))(INPUTS, INPUTS)
        assert blocked_calls == []
