"""Patterns and positions in `MultiHeadAttention`: dense, blockwise, step by step."""

import dataclasses

import keras
import numpy as np
import pytest
import reference
from keras import ops
from layer_contract import on_torch, to_numpy, weight_gradients, with_random_weights

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

each_pair = pytest.mark.parametrize(
    ("scheme", "pattern"),
    [
        ("rotary", LocalWindow(3)),
        ("relative", None),
        on_torch("none", GlobalLocal(2, 3)),
        on_torch("alibi", Strided(3, 7)),
    ],
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


def assert_close(actual, expected, atol=2e-5):
    np.testing.assert_allclose(to_numpy(actual), to_numpy(expected), atol=atol)


class TestDensely:
    """Sequences that are too short for blockwise attention."""

    @each_pair
    def test_equals_the_reference(self, pattern, scheme):
        """One sequence contains only padding."""
        layer = attention(
            pattern=pattern,
            positions=SCHEMES[scheme](),
            num_key_value_heads=NUM_HEADS if scheme == "alibi" else 2,
            value_dim=VALUE_DIM,
        )
        causal, padding = scheme != "none", PADDING[:, :LENGTH] & [[True], [False]]
        mask = definition(pattern, range(LENGTH), range(LENGTH), causal)
        expected, expected_scores = reference_attention(
            layer, scheme, SHORT, mask & padding[:, None]
        )
        options = {"value_mask": padding, "use_causal_mask": causal}
        assert_close(self_attention(layer, SHORT, **options), expected)
        options["return_attention_scores"] = True
        output, scores = self_attention(layer, SHORT, **options)
        assert_close(output, expected)
        assert_close(scores, expected_scores)

    @pytest.mark.once("torch")
    def test_fewer_queries_than_keys(self):
        """As in Keras, the first query has the position of the first key."""
        layer = attention(sliding_window=3)
        theirs = attention(keras.layers.MultiHeadAttention, sliding_window=3)
        assert_close(
            layer(SHORT[:, :5], SHORT, use_causal_mask=True),
            theirs(SHORT[:, :5], SHORT, use_causal_mask=True),
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
            assert_close(output, np.take_along_axis(expected, order[..., None], axis=1))

    @pytest.mark.parametrize(
        "scheme", ["rotary", on_torch("alibi"), on_torch("relative")]
    )
    def test_only_distances_count(self, scheme):
        layer = attention(positions=SCHEMES[scheme](), pattern=LocalWindow(3))
        expected = to_numpy(layer(SHORT, SHORT))
        near = np.arange(LENGTH) + [[13], [5]]
        output = layer(SHORT, SHORT, query_positions=near, key_positions=near)
        assert_close(output, expected, 1e-4)
        far = 2 * np.arange(LENGTH)
        output = layer(SHORT, SHORT, query_positions=far, key_positions=far)
        assert np.abs(to_numpy(output) - expected).max() > 1e-2

    # Caches and beams: `test_decoder_block.py` and `test_stacks.py`.


class TestInBlocks:
    @pytest.mark.parametrize(
        ("pattern", "scheme", "causal", "padded", "options"),
        [
            (LocalWindow(3), "rotary", True, True, {}),
            (Strided(3, 7), "alibi", True, False, {"dtype": "mixed_float16"}),
            on_torch(LocalWindow(3), "none", False, False, {"num_key_value_heads": 1}),
            on_torch(Strided(3, 7), "relative", False, True, {"value_dim": VALUE_DIM}),
            (
                GlobalLocal(2, 3),
                "relative",
                True,
                True,
                {"num_key_value_heads": 2, "value_dim": VALUE_DIM},
            ),
            on_torch(
                GlobalLocal(2, 3), "alibi", False, True, {"dtype": "mixed_bfloat16"}
            ),
        ],
    )
    def test_equals_the_reference(self, pattern, scheme, causal, padded, options):
        assert pattern.is_worthwhile(LONG)
        layer = attention(pattern=pattern, positions=SCHEMES[scheme](), **options)
        positions, padding = range(LONG), PADDING if padded else PADDING | True
        mask = definition(pattern, positions, positions, causal)
        expected, _ = reference_attention(
            layer, scheme, INPUTS, mask & padding[:, None]
        )
        masks = {"value_mask": padding} if padded else {}
        output = self_attention(layer, INPUTS, use_causal_mask=causal, **masks)
        assert_close(output, expected, TOLERANCE.get(options.get("dtype"), 1e-4))

    @pytest.mark.parametrize(
        ("pattern", "scheme", "causal"),
        [
            (GlobalLocal(2, 3), "relative", False),
            on_torch(Strided(3, 7), "rotary", True),
        ],
    )
    def test_gradients_are_those_under_a_mask(self, pattern, scheme, causal):
        in_blocks, densely = (
            attention(pattern=p, positions=SCHEMES[scheme]()) for p in (pattern, None)
        )
        mask = definition(pattern, range(LONG), range(LONG), causal)
        actual = weight_gradients(
            in_blocks, INPUTS, INPUTS, value_mask=PADDING, use_causal_mask=causal
        )
        expected = weight_gradients(
            densely, INPUTS, INPUTS, attention_mask=mask & PADDING[:, None]
        )
        assert len(actual) == (9 if scheme == "relative" else 8)
        for one, other in zip(actual, expected, strict=True):
            assert np.isfinite(one).all()
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=2e-3)

    @pytest.mark.once("torch")
    def test_keras_s_sliding_window(self):
        ours = attention(sliding_window=4)
        theirs = attention(keras.layers.MultiHeadAttention, sliding_window=4)
        theirs.set_weights([1.2 * weight for weight in ours.get_weights()])
        ours.set_weights(theirs.get_weights())
        options = {"value_mask": PADDING}
        output = to_numpy(self_attention(ours, INPUTS, **options))
        expected = to_numpy(self_attention(theirs, INPUTS, **options))
        # Keras takes the average of all values where a query sees nothing.
        seen = definition(LocalWindow(3), range(LONG), range(LONG))
        seen = seen & PADDING[:, None]
        seen = np.broadcast_to(seen.any(-1), PADDING.shape)
        assert seen.sum() > 200
        assert_close(output[seen], expected[seen])

    def test_dropout_keeps_the_sums_on_average(self):
        layer = attention(pattern=GlobalLocal(2, 3), dropout=0.5, output_shape=1)
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
        assert 0.1 < sums.std() < 1
        assert abs(sums.mean() - 1) < 5 / np.sqrt(sums.size)
        assert_close(self_attention(layer, INPUTS), np.ones_like(sums))

    @pytest.mark.once
    def test_in_a_model_of_any_length(self):
        inputs = keras.Input((None, HIDDEN_DIM))
        layer = MultiHeadAttention(
            NUM_HEADS, KEY_DIM, pattern=GlobalLocal(2, 3), positions=AlibiBias()
        )
        model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
        for length in (LONG, LENGTH):
            x = INPUTS[:, :length]
            expected, _ = layer(
                x, x, use_causal_mask=True, return_attention_scores=True
            )
            assert_close(model(x), expected)


@dataclasses.dataclass(frozen=True)
class RecordingWindow(LocalWindow):
    """A window that records whether it computes blockwise attention."""

    calls: list = dataclasses.field(default_factory=list, compare=False)

    def attend(self, *arguments, **options):
        self.calls.append(1)
        return super().attend(*arguments, **options)


@pytest.mark.once("torch")
class TestChoiceOfTheRoute:
    @pytest.mark.parametrize(
        "options",
        [
            {"use_causal_mask": True},
            {"value_mask": PADDING, "query_mask": PADDING},
            {"attention_mask": PADDING[:, None, None]},
        ],
        ids=["causal", "padding", "a mask for every query"],
    )
    def test_blocks_whenever_they_can(self, options):
        pattern = RecordingWindow(3)
        layer = attention(pattern=pattern)
        output = self_attention(layer, INPUTS, **options)
        assert pattern.calls == [1]
        options = {**options, "return_attention_scores": True}
        dense, _ = self_attention(layer, INPUTS, **options)
        assert pattern.calls == [1]
        assert_close(output, dense)

    def test_densely_where_they_can_not(self):
        pattern = RecordingWindow(3)
        layer = attention(pattern=pattern)
        for options in (
            {"attention_mask": np.ones((1, LONG, LONG), bool)},
            {"attention_mask": np.ones((LONG, LONG), bool)},
            {"attention_mask": np.ones((1, NUM_HEADS, 1, LONG), bool)},
            {"query_positions": np.arange(LONG)},
            {"cache": np.ones((BATCH, 2, LONG, NUM_HEADS, KEY_DIM), "float32")},
            {"value": INPUTS[:, :113]},
        ):
            layer(INPUTS, **{"value": INPUTS, **options})
        layer(SHORT, SHORT)
        wide = RecordingWindow(61)
        attention(pattern=wide)(INPUTS, INPUTS)
        assert pattern.calls == wide.calls == []
