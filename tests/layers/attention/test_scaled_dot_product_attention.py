import sys

import keras
import numpy as np
import pytest
import reference
from keras import ops
from layer_contract import gradients, to_numpy

from keras_transformer.layers import scaled_dot_product_attention

MODULE = sys.modules[scaled_dot_product_attention.__module__]

RNG = np.random.default_rng(13)
BATCH, QUERY_LENGTH, KEY_LENGTH, NUM_HEADS, KEY_DIM, VALUE_DIM = 2, 5, 7, 6, 11, 13
PAIRS = QUERY_LENGTH, KEY_LENGTH

PADDING = np.arange(KEY_LENGTH) < [[KEY_LENGTH], [4]]
HOLES = RNG.random((BATCH, *PAIRS)) < 0.6
HOLES[:, :, 0] = True
NOTHING_SEEN = HOLES.copy()
NOTHING_SEEN[0, 2] = NOTHING_SEEN[1, :2] = False
PER_HEAD = RNG.random((BATCH, NUM_HEADS, *PAIRS)) < 0.3
CAUSAL = reference.causal_mask(*PAIRS)

MASKS = {
    "none": None,
    "keys": PADDING[:, None],
    "one for all": HOLES[0],
    "queries and keys": HOLES,
    "fully masked rows": NOTHING_SEEN,
    "per head": PER_HEAD,
    "per head, for all": PER_HEAD[:1],
    "nothing": np.zeros((1, 1, 1), bool),
}
BIASES = {
    "none": None,
    "one for all": RNG.normal(size=(1, *PAIRS)).astype("float32"),
    "per head": RNG.normal(size=(NUM_HEADS, *PAIRS)).astype("float32"),
    "per row": RNG.normal(size=(BATCH, 1, *PAIRS)).astype("float32"),
    "per row and head": RNG.normal(size=(BATCH, NUM_HEADS, *PAIRS)).astype("float32"),
}
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}

each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
each_bias = pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES.keys())
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE)
each_path = pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
each_group = pytest.mark.parametrize("key_value_heads", [NUM_HEADS, 2, 1])
some_masks = pytest.mark.parametrize(
    "mask", [None, PADDING[:, None], NOTHING_SEEN, PER_HEAD]
)
causal_or_not = pytest.mark.parametrize(
    "causal", [False, True], ids=["both ways", "causal"]
)


def heads(length, num_heads, dim, dtype="float32"):
    values = RNG.normal(size=(BATCH, length, num_heads, dim)).astype("float32")
    return ops.cast(values, dtype)


def query_key_value(dtype="float32", key_value_heads=NUM_HEADS, value_dim=KEY_DIM):
    return (
        heads(QUERY_LENGTH, NUM_HEADS, KEY_DIM, dtype),
        heads(KEY_LENGTH, key_value_heads, KEY_DIM, dtype),
        heads(KEY_LENGTH, key_value_heads, value_dim, dtype),
    )


def with_causal(mask, causal):
    """The mask with four axes, merged with the causal mask."""
    if mask is None:
        mask = np.ones(PAIRS, bool)
    mask = np.expand_dims(mask, 1) if mask.ndim == 3 else mask
    return np.broadcast_to(
        mask & CAUSAL if causal else mask, (BATCH, NUM_HEADS, *PAIRS)
    )


def attend(*inputs, fused, **options):
    """The output, computed with or without the fused kernel."""
    if fused:
        return scaled_dot_product_attention(*inputs, **options)
    return scaled_dot_product_attention(
        *inputs, return_attention_scores=True, **options
    )[0]


def test_by_hand():
    query = np.array([2 * np.log(3.0), 0, 0, 0], "float32").reshape(1, 1, 1, 4)
    keys = np.array([[1, 0, 0, 0], [0, 5, 0, 0], [0, 0, 9, 9]], "float32")
    values = np.array([4, 8, 70], "float32")
    output, scores = scaled_dot_product_attention(
        query,
        keys.reshape(1, 3, 1, 4),
        values.reshape(1, 3, 1, 1),
        np.array([[[True, True, False]]]),
        return_attention_scores=True,
    )
    np.testing.assert_allclose(to_numpy(scores), [[[[0.75, 0.25, 0]]]], atol=1e-6)
    np.testing.assert_allclose(to_numpy(output), [[[[5.0]]]], atol=1e-5)


class TestAgainstTheReference:
    def check(self, inputs, mask=None, bias=None, causal=False):
        expected, expected_scores = reference.scaled_dot_product_attention(
            *map(to_numpy, inputs), with_causal(mask, causal), bias
        )
        options = {"attention_mask": mask, "bias": bias, "use_causal_mask": causal}
        plain = scaled_dot_product_attention(*inputs, **options)
        output, scores = scaled_dot_product_attention(
            *inputs, return_attention_scores=True, **options
        )
        dtype = keras.backend.standardize_dtype(inputs[0].dtype)
        for actual, wanted in (
            (plain, expected),
            (output, expected),
            (scores, expected_scores),
        ):
            assert keras.backend.standardize_dtype(actual.dtype) == dtype
            np.testing.assert_allclose(to_numpy(actual), wanted, atol=TOLERANCE[dtype])

    @each_group
    @each_mask
    @causal_or_not
    def test_masks(self, mask, key_value_heads, causal):
        inputs = query_key_value(key_value_heads=key_value_heads)
        self.check(inputs, mask, causal=causal)

    @each_group
    @each_bias
    @pytest.mark.parametrize("mask", [None, NOTHING_SEEN, PER_HEAD])
    def test_biases(self, mask, bias, key_value_heads):
        inputs = query_key_value(key_value_heads=key_value_heads)
        self.check(inputs, mask, bias, causal=bias is not None)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    @pytest.mark.parametrize("key_value_heads", [NUM_HEADS, 2])
    @some_masks
    def test_half_precision(self, mask, key_value_heads, dtype):
        self.check(query_key_value(dtype, key_value_heads), mask)

    @each_dtype
    @each_group
    def test_all_at_once(self, key_value_heads, dtype):
        inputs = query_key_value(dtype, key_value_heads, VALUE_DIM)
        self.check(inputs, PER_HEAD, BIASES["per head"], causal=True)

    @pytest.mark.parametrize(("queries", "keys"), [(1, 7), (5, 1), (1, 1)])
    @each_group
    def test_length_one(self, queries, keys, key_value_heads):
        inputs = (
            heads(queries, NUM_HEADS, KEY_DIM),
            heads(keys, key_value_heads, KEY_DIM),
            heads(keys, key_value_heads, VALUE_DIM),
        )
        expected, _ = reference.scaled_dot_product_attention(*inputs)
        for fused in (True, False):
            output = attend(*inputs, fused=fused)
            np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)


@each_path
@each_dtype
@pytest.mark.parametrize(
    ("key_value_heads", "bias"), [(NUM_HEADS, None), (2, BIASES["per head"])]
)
class TestNothingToAttendTo:
    EMPTY = ~NOTHING_SEEN.any(-1)

    def test_gives_exact_zeros(self, fused, dtype, key_value_heads, bias):
        attended = scaled_dot_product_attention(
            *query_key_value(dtype, key_value_heads),
            NOTHING_SEEN,
            return_attention_scores=not fused,
            bias=bias,
        )
        output, *scores = (attended,) if fused else attended
        output = to_numpy(output)
        assert (output[self.EMPTY] == 0).all() and (output[~self.EMPTY] != 0).all()
        for score in map(to_numpy, scores):
            by_query = score.transpose(0, 2, 1, 3)
            assert (by_query[self.EMPTY] == 0).all()
            np.testing.assert_allclose(by_query[~self.EMPTY].sum(-1), 1, atol=1e-2)

    def test_has_finite_gradients(self, fused, dtype, key_value_heads, bias):
        def loss(*inputs):
            options = {"attention_mask": NOTHING_SEEN, "bias": bias}
            output = attend(*inputs, fused=fused, **options)
            return ops.sum(ops.square(ops.cast(output, "float32")))

        of_query, *others = gradients(loss, *query_key_value(dtype, key_value_heads))
        assert (of_query[self.EMPTY] == 0).all()
        assert all(np.isfinite(g).all() and g.any() for g in (of_query, *others))


@some_masks
@pytest.mark.parametrize(
    ("key_value_heads", "causal"), [(NUM_HEADS, False), (NUM_HEADS, True), (2, True)]
)
def test_fused_and_unfused_gradients_agree(mask, key_value_heads, causal):
    def loss(*inputs, **options):
        options |= {"attention_mask": mask, "use_causal_mask": causal}
        return ops.sum(ops.sin(scaled_dot_product_attention(*inputs, **options)))

    inputs = query_key_value(key_value_heads=key_value_heads)
    fused = gradients(loss, *inputs)
    unfused = gradients(lambda *x: loss(*x, dropout=lambda scores: scores), *inputs)
    for one, other in zip(fused, unfused, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@each_path
@pytest.mark.parametrize(
    ("key_value_heads", "mask"), [(NUM_HEADS, NOTHING_SEEN), (2, None)]
)
def test_gradient_by_the_bias(mask, key_value_heads, fused):
    """By the mean value theorem: central differences of the float64 reference."""
    inputs = query_key_value(key_value_heads=key_value_heads)
    bias, direction = RNG.normal(size=(2, NUM_HEADS, *PAIRS))

    def loss(bias):
        output = attend(*inputs, fused=fused, attention_mask=mask, bias=bias)
        return ops.sum(ops.sin(output))

    def reference_loss(bias):
        output, _ = reference.scaled_dot_product_attention(*inputs, mask, bias)
        return np.sin(output).sum()

    (gradient,) = gradients(loss, bias.astype("float32"))
    step = 1e-4 * direction
    difference = reference_loss(bias + step) - reference_loss(bias - step)
    np.testing.assert_allclose((gradient * direction).sum(), difference / 2e-4, 1e-3)


@pytest.mark.parametrize("key_value_heads", [2, 1])
@each_path
def test_consecutive_heads_share_keys_and_values(key_value_heads, fused):
    query, key, value = query_key_value(key_value_heads=key_value_heads)
    group = NUM_HEADS // key_value_heads
    output = to_numpy(attend(query, key, value, fused=fused))
    for head in range(NUM_HEADS):
        own = slice(head, head + 1)
        shared = slice(head // group, head // group + 1)
        alone = attend(
            query[:, :, own], key[:, :, shared], value[:, :, shared], fused=fused
        )
        np.testing.assert_allclose(to_numpy(alone), output[:, :, own], atol=1e-5)


def test_large_logits_stay_finite_in_half_precision():
    query = np.full((1, 1, 1, 64), 60.0)
    key = np.stack([np.full((1, 1, 64), 60.0), np.full((1, 1, 64), -60.0)], axis=1)
    value = np.array([[[[3.0]], [[5.0]]]])
    inputs = [ops.cast(x, "float16") for x in (query, key, value)]
    output, scores = scaled_dot_product_attention(*inputs, return_attention_scores=True)
    assert to_numpy(output).item() == 3.0
    assert to_numpy(scores).ravel().tolist() == [1.0, 0.0]


@each_path
@each_dtype
def test_a_large_bias_stays_finite(dtype, fused):
    """A bias as large as that of ALiBi at a distance of 20,000 tokens."""
    inputs = query_key_value(dtype)
    bias = np.full((1, *PAIRS), -1e4, "float32")
    bias[..., 3] = 0.0
    output = to_numpy(attend(*inputs, fused=fused, attention_mask=HOLES, bias=bias))
    assert np.isfinite(output).all()
    value = to_numpy(inputs[2])[:, 3]
    for row, query in zip(*np.nonzero(HOLES[:, :, 3]), strict=True):
        np.testing.assert_allclose(output[row, query], value[row], atol=1e-6)


@pytest.mark.parametrize("length", [3, 31])
def test_symbolic_inputs(length):
    x = keras.Input((length, 2, 4))
    assert scaled_dot_product_attention(x, x, x).shape == (None, length, 2, 4)


@pytest.mark.parametrize("options", [{}, {"flash_attention": False}, {"bias": 0}])
@pytest.mark.parametrize(
    "dtypes", [("float16", "float32"), ("bfloat16", "float16"), ("float32", "bfloat16")]
)
def test_the_outputs_have_the_dtype_of_the_query(dtypes, options):
    arrays = [to_numpy(x) for x in query_key_value()]
    of_query, of_others = dtypes
    inputs = [
        ops.cast(x, dtype)
        for x, dtype in zip(arrays, (of_query, of_others, of_others), strict=True)
    ]
    if "bias" in options:
        options = {"bias": np.zeros((NUM_HEADS, *PAIRS), "float32")}
    output = scaled_dot_product_attention(*inputs, attention_mask=HOLES, **options)
    with_scores, scores = scaled_dot_product_attention(
        *inputs, attention_mask=HOLES, return_attention_scores=True, **options
    )
    expected, expected_scores = reference.scaled_dot_product_attention(*arrays, HOLES)
    tolerance = max(TOLERANCE[dtype] for dtype in dtypes)
    for x, right in ((output, expected), (with_scores, expected)):
        assert keras.backend.standardize_dtype(x.dtype) == of_query
        np.testing.assert_allclose(to_numpy(x), right, atol=tolerance)
    assert keras.backend.standardize_dtype(scores.dtype) == of_query
    np.testing.assert_allclose(to_numpy(scores), expected_scores, atol=tolerance)


def test_dropout_weighs_the_values_but_not_the_scores():
    inputs = query_key_value(key_value_heads=2)
    output, scores = scaled_dot_product_attention(
        *inputs, return_attention_scores=True, dropout=lambda scores: 2 * scores
    )
    expected, expected_scores = reference.scaled_dot_product_attention(*inputs)
    np.testing.assert_allclose(to_numpy(output), 2 * expected, atol=1e-5)
    np.testing.assert_allclose(to_numpy(scores), expected_scores, atol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 5, 3), (2, 7, 3, 4), (2, 7, 3, 4)], "must have 4 axes"),
        ([(2, 5, 3, 6), (2, 7, 3, 4), (2, 7, 3, 4)], "the same key_dim"),
        ([(2, 5, 3, 4), (2, 7, 3, 4), (2, 11, 3, 4)], "the same length"),
        ([(2, 5, 4, 4), (2, 7, 3, 4), (2, 7, 3, 4)], "a multiple of the num_heads"),
        ([(2, 5, 3, 4), (2, 7, 3, 4), (2, 7, 1, 4)], "the same num_heads"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, message):
    with pytest.raises(ValueError, match=message) as error:
        scaled_dot_product_attention(*map(np.zeros, shapes))
    assert all(str(shape) in str(error.value) for shape in shapes)


@pytest.fixture
def kernel_calls(monkeypatch):
    """Calls of the fused kernel, as on a machine with a GPU."""
    calls = []
    kernel = ops.dot_product_attention

    def recorded(*inputs, **options):
        calls.append(options)
        return kernel(*inputs, **options)

    monkeypatch.setattr(MODULE, "_is_on_gpu", lambda: True)
    monkeypatch.setattr(MODULE.ops, "dot_product_attention", recorded)
    return calls


def ones(length, dtype="bfloat16", heads=2, dim=8):
    return ops.ones((1, length, heads, dim), dtype)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="rules of JAX's kernel")
class TestKernelOfJaxOnAGpu:
    def test_is_used_in_half_precision_for_many_keys(self, kernel_calls):
        for dtype in ("bfloat16", "float16"):
            x = ones(128, dtype)
            scaled_dot_product_attention(x, x, x, use_causal_mask=True)
        assert [options["is_causal"] for options in kernel_calls] == [True, True]

    @pytest.mark.parametrize(
        ("query", "key", "value"),
        [
            (ones(128, "float32"), ones(128, "float32"), ones(128, "float32")),
            (ones(128), ones(126), ones(126)),
            (ones(16), ones(128), ones(128)),
            (ones(128), ones(128), ones(128, dim=6)),
        ],
        ids=["float32", "few keys", "few queries", "other value_dim"],
    )
    def test_is_not_used_otherwise(self, kernel_calls, query, key, value):
        scaled_dot_product_attention(query, key, value)
        assert not kernel_calls

    @pytest.mark.parametrize("length", [128, 129])
    @pytest.mark.parametrize("heads", [1, 2])
    def test_takes_even_lengths_only_with_a_mask(self, kernel_calls, length, heads):
        query, key = ones(length), ones(length, heads=heads)
        mask = np.arange(length)[None, None] < 100
        scaled_dot_product_attention(query, key, key)
        scaled_dot_product_attention(query, key, key, mask)
        scaled_dot_product_attention(query, key, key, use_causal_mask=True)
        masks = [options["mask"] is not None for options in kernel_calls]
        is_masked_if_causal = heads == 1  # The query heads are folded to queries.
        if length % 2 == 0:
            assert masks == [False, True, is_masked_if_causal]
        else:
            assert masks == [False] + [False] * (not is_masked_if_causal)

    def test_gets_masks_and_biases_for_all_queries(self, kernel_calls):
        """Its layout has an axis for the queries; those of the rows may have size 1."""
        x = ones(128)
        mask, bias = np.arange(128)[None, None] < 100, ops.ones((2, 1, 128))
        scaled_dot_product_attention(x, x, x, mask)
        scaled_dot_product_attention(x, x, x, bias=bias)
        scaled_dot_product_attention(x, x, x, mask, bias=bias)
        first, *others = kernel_calls
        assert first["mask"].shape == (1, 1, 128, 128)
        assert [options["bias"].shape for options in others] == 2 * [(1, 2, 128, 128)]
