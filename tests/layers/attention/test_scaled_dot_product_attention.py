import sys

import keras
import numpy as np
import pytest
import reference
from keras import ops
from layer_contract import gradients, on_torch, to_numpy

from keras_transformer.layers import scaled_dot_product_attention

MODULE = sys.modules[scaled_dot_product_attention.__module__]

RNG = np.random.default_rng(13)
# PyTorch computes few queries by matrix products, and more by its fused kernel.
FEW, MANY = 5, MODULE.FEW_QUERIES + 3
BATCH, KEY_LENGTH, NUM_HEADS, KEY_DIM, VALUE_DIM = 2, 7, 6, 11, 13
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}

# Heads of keys and values, queries, whether the causal mask is used.
SETTINGS = [
    (6, FEW, False),
    (2, FEW, True),
    on_torch(1, MANY, False),
    on_torch(6, MANY, True),
]
each_setting = pytest.mark.parametrize(
    ("key_value_heads", "num_queries", "causal"), SETTINGS
)


def random_mask(*shape):
    mask = RNG.random((*shape, KEY_LENGTH)) < 0.6
    mask[..., 0] = True
    return mask


def masks(num_queries):
    padding = np.arange(KEY_LENGTH) < [[KEY_LENGTH], [4]]
    per_head = RNG.random((BATCH, NUM_HEADS, num_queries, KEY_LENGTH)) < 0.3
    return {
        "none": None,
        "keys": padding[:, None],
        "one for all": random_mask(num_queries),
        "fully masked rows": with_empty_rows(num_queries),
        "per head": per_head,
        "per head, for all": per_head[:1],
        "nothing": np.zeros((1, 1, 1), bool),
    }


def with_empty_rows(num_queries):
    mask = random_mask(BATCH, num_queries)
    mask[0, 2] = mask[1, :2] = False
    return mask


def biases(num_queries):
    pairs = num_queries, KEY_LENGTH
    return {
        "one for all": RNG.normal(size=(1, *pairs)).astype("float32"),
        "per head": RNG.normal(size=(NUM_HEADS, *pairs)).astype("float32"),
        "per row": RNG.normal(size=(BATCH, 1, *pairs)).astype("float32"),
        "both": RNG.normal(size=(BATCH, NUM_HEADS, *pairs)).astype("float32"),
    }


def heads(length, num_heads, dim, dtype="float32"):
    values = RNG.normal(size=(BATCH, length, num_heads, dim)).astype("float32")
    return ops.cast(values, dtype)


def query_key_value(
    key_value_heads=NUM_HEADS, num_queries=FEW, dtype="float32", value_dim=KEY_DIM
):
    return (
        heads(num_queries, NUM_HEADS, KEY_DIM, dtype),
        heads(KEY_LENGTH, key_value_heads, KEY_DIM, dtype),
        heads(KEY_LENGTH, key_value_heads, value_dim, dtype),
    )


def check(inputs, mask=None, bias=None, causal=False, name=""):
    """Compares the outputs of both routes, and the scores, with the reference."""
    whole = np.ones((1, 1, 1), bool) if mask is None else mask
    whole = np.expand_dims(whole, -3) if whole.ndim < 4 else whole
    if causal:
        whole = whole & reference.causal_mask(inputs[0].shape[1], KEY_LENGTH)
    expected, expected_scores = reference.scaled_dot_product_attention(
        *map(to_numpy, inputs), whole, bias
    )
    options = {"attention_mask": mask, "bias": bias, "use_causal_mask": causal}
    plain = scaled_dot_product_attention(*inputs, **options)
    output, scores = scaled_dot_product_attention(
        *inputs, return_attention_scores=True, **options
    )
    dtype = keras.backend.standardize_dtype(inputs[0].dtype)
    pairs = (plain, expected), (output, expected), (scores, expected_scores)
    for actual, wanted in pairs:
        assert keras.backend.standardize_dtype(actual.dtype) == dtype
        np.testing.assert_allclose(
            to_numpy(actual), wanted, atol=TOLERANCE[dtype], err_msg=name
        )


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


@each_setting
def test_masks(key_value_heads, num_queries, causal):
    inputs = query_key_value(key_value_heads, num_queries)
    for name, mask in masks(num_queries).items():
        check(inputs, mask, causal=causal, name=name)


@pytest.mark.parametrize(
    ("key_value_heads", "num_queries"), [(2, FEW), on_torch(6, MANY)]
)
def test_biases(key_value_heads, num_queries):
    inputs = query_key_value(key_value_heads, num_queries)
    for name, bias in biases(num_queries).items():
        check(inputs, with_empty_rows(num_queries), bias, name=name)
    check(inputs, None, bias, causal=True)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("key_value_heads", "num_queries"), [(6, FEW), on_torch(2, MANY)]
)
def test_mask_bias_and_value_dim_in_every_precision(
    key_value_heads, num_queries, dtype
):
    inputs = query_key_value(key_value_heads, num_queries, dtype, VALUE_DIM)
    check(inputs)
    mask, bias = masks(num_queries)["per head"], biases(num_queries)["per head"]
    check(inputs, mask, bias, causal=True)


@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 1), on_torch(1, 7), on_torch(MANY, 1)]
)
def test_length_one(queries, keys):
    inputs = (
        heads(queries, NUM_HEADS, KEY_DIM),
        heads(keys, 2, KEY_DIM),
        heads(keys, 2, VALUE_DIM),
    )
    expected, _ = reference.scaled_dot_product_attention(*inputs)
    output, _ = scaled_dot_product_attention(*inputs, return_attention_scores=True)
    for actual in (scaled_dot_product_attention(*inputs), output):
        np.testing.assert_allclose(to_numpy(actual), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("num_queries", "dtype", "key_value_heads", "has_bias"),
    [
        (FEW, "float32", 2, False),
        (FEW, "float16", 6, True),
        on_torch(MANY, "float32", 6, True),
        on_torch(MANY, "bfloat16", 2, False),
    ],
)
def test_nothing_to_attend_to(num_queries, dtype, key_value_heads, has_bias):
    """Gives outputs, scores and gradients of exactly zero."""
    mask = with_empty_rows(num_queries)
    bias = biases(num_queries)["per head"] if has_bias else None
    inputs = query_key_value(key_value_heads, num_queries, dtype)
    options = {"attention_mask": mask, "bias": bias}
    _, scores = scaled_dot_product_attention(
        *inputs, return_attention_scores=True, **options
    )
    empty, scores = ~mask.any(-1), to_numpy(scores).transpose(0, 2, 1, 3)
    assert (scores[empty] == 0).all()
    np.testing.assert_allclose(scores[~empty].sum(-1), 1, atol=1e-2)

    def loss(*inputs):
        output = scaled_dot_product_attention(*inputs, **options)
        return ops.sum(ops.square(ops.cast(output, "float32")))

    output = to_numpy(scaled_dot_product_attention(*inputs, **options))
    assert (output[empty] == 0).all() and (output[~empty] != 0).all()
    of_query, *others = gradients(loss, *inputs)
    assert (of_query[empty] == 0).all()
    assert all(np.isfinite(g).all() and g.any() for g in (of_query, *others))


@pytest.mark.once("torch")
@each_setting
def test_gradients_without_the_fused_kernel_are_the_same(
    key_value_heads, num_queries, causal
):
    mask = with_empty_rows(num_queries)

    def loss(*inputs, **options):
        options |= {"attention_mask": mask, "use_causal_mask": causal}
        return ops.sum(ops.sin(scaled_dot_product_attention(*inputs, **options)))

    inputs = query_key_value(key_value_heads, num_queries)
    fused = gradients(loss, *inputs)
    unfused = gradients(lambda *x: loss(*x, dropout=lambda scores: scores), *inputs)
    for one, other in zip(fused, unfused, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("key_value_heads", "num_queries"), [(2, FEW), on_torch(6, MANY)]
)
def test_gradient_by_the_bias(key_value_heads, num_queries):
    """By the mean value theorem: central differences of the float64 reference."""
    inputs = query_key_value(key_value_heads, num_queries)
    mask = with_empty_rows(num_queries)
    bias, direction = RNG.normal(size=(2, NUM_HEADS, num_queries, KEY_LENGTH))

    def loss(bias):
        output = scaled_dot_product_attention(*inputs, attention_mask=mask, bias=bias)
        return ops.sum(ops.sin(output))

    def reference_loss(bias):
        output, _ = reference.scaled_dot_product_attention(*inputs, mask, bias)
        return np.sin(output).sum()

    (gradient,) = gradients(loss, bias.astype("float32"))
    step = 1e-4 * direction
    difference = reference_loss(bias + step) - reference_loss(bias - step)
    np.testing.assert_allclose((gradient * direction).sum(), difference / 2e-4, 1e-3)


def test_large_logits_stay_finite_in_half_precision():
    query = np.full((1, 1, 1, 64), 60.0)
    key = np.stack([np.full((1, 1, 64), 60.0), np.full((1, 1, 64), -60.0)], axis=1)
    value = np.array([[[[3.0]], [[5.0]]]])
    inputs = [ops.cast(x, "float16") for x in (query, key, value)]
    output, scores = scaled_dot_product_attention(*inputs, return_attention_scores=True)
    assert to_numpy(output).item() == 3.0
    assert to_numpy(scores).ravel().tolist() == [1.0, 0.0]


@pytest.mark.parametrize("dtype", ["float16", on_torch("bfloat16")])
def test_a_large_bias_stays_finite(dtype):
    """A bias as large as that of ALiBi at a distance of 20,000 tokens."""
    for num_queries in (FEW, MANY):
        inputs = query_key_value(6, num_queries, dtype)
        bias = np.full((1, num_queries, KEY_LENGTH), -1e4, "float32")
        bias[..., 3] = 0.0
        mask = random_mask(BATCH, num_queries)
        output = scaled_dot_product_attention(*inputs, attention_mask=mask, bias=bias)
        output, value = to_numpy(output), to_numpy(inputs[2])[:, 3]
        assert np.isfinite(output).all()
        for row, query in zip(*np.nonzero(mask[:, :, 3]), strict=True):
            np.testing.assert_allclose(output[row, query], value[row], atol=1e-6)


@pytest.mark.parametrize(
    ("of_query", "of_others", "has_bias"),
    [
        ("float16", "float32", False),
        on_torch("bfloat16", "float16", True),
        on_torch("float32", "bfloat16", False),
    ],
)
def test_the_outputs_have_the_dtype_of_the_query(of_query, of_others, has_bias):
    arrays = [to_numpy(x) for x in query_key_value(num_queries=MANY)]
    dtypes = of_query, of_others, of_others
    inputs = [ops.cast(x, dtype) for x, dtype in zip(arrays, dtypes, strict=True)]
    mask = random_mask(BATCH, MANY)
    options = {"bias": np.zeros((1, 1, 1), "float32")} if has_bias else {}
    output = scaled_dot_product_attention(*inputs, attention_mask=mask, **options)
    with_scores, scores = scaled_dot_product_attention(
        *inputs, attention_mask=mask, return_attention_scores=True, **options
    )
    expected, expected_scores = reference.scaled_dot_product_attention(*arrays, mask)
    pairs = (output, expected), (with_scores, expected), (scores, expected_scores)
    for actual, wanted in pairs:
        assert keras.backend.standardize_dtype(actual.dtype) == of_query
        tolerance = max(TOLERANCE[dtype] for dtype in dtypes)
        np.testing.assert_allclose(to_numpy(actual), wanted, atol=tolerance)


def test_dropout_weighs_the_values_but_not_the_scores():
    inputs = query_key_value(key_value_heads=2)
    output, scores = scaled_dot_product_attention(
        *inputs, return_attention_scores=True, dropout=lambda scores: 2 * scores
    )
    expected, expected_scores = reference.scaled_dot_product_attention(*inputs)
    np.testing.assert_allclose(to_numpy(output), 2 * expected, atol=1e-5)
    np.testing.assert_allclose(to_numpy(scores), expected_scores, atol=1e-5)


@pytest.mark.once("torch")
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


@pytest.mark.once("jax")
def test_layouts_for_the_kernel_of_jax_on_a_gpu(monkeypatch):
    """The rules of the kernel are tested without a GPU: its calls are recorded."""
    calls = []

    def recorded(query, *inputs, **options):
        calls.append(options)
        return query

    monkeypatch.setattr(MODULE, "_is_on_gpu", lambda: True)
    monkeypatch.setattr(MODULE.ops, "dot_product_attention", recorded)

    def ones(length, dtype="bfloat16", heads=2, dim=8):
        return ops.ones((1, length, heads, dim), dtype)

    x, odd = ones(128), ones(129)
    mask, bias = np.arange(128)[None, None] < 100, ops.ones((2, 1, 128))
    # Not in float32, for few keys, few queries, another `value_dim`, or odd lengths
    # with a mask.
    scaled_dot_product_attention(*[ones(128, "float32")] * 3)
    scaled_dot_product_attention(x, ones(126), ones(126))
    scaled_dot_product_attention(ones(16), x, x)
    scaled_dot_product_attention(x, x, ones(128, dim=6))
    scaled_dot_product_attention(odd, odd, odd, np.arange(129)[None, None] < 100)
    assert not calls
    scaled_dot_product_attention(odd, odd, odd)
    scaled_dot_product_attention(x, x, x, use_causal_mask=True)
    # The heads of the queries are folded to queries, which takes a mask.
    scaled_dot_product_attention(x, *[ones(128, heads=1)] * 2, use_causal_mask=True)
    assert [call["is_causal"] for call in calls] == [False, True, False]
    assert [call["mask"] is not None for call in calls] == [False, False, True]
    calls.clear()
    # Masks and biases have an axis for the queries; that of the rows may have size 1.
    scaled_dot_product_attention(x, x, x, mask)
    scaled_dot_product_attention(x, x, x, bias=bias)
    scaled_dot_product_attention(x, x, x, mask, bias=bias)
    first, *others = calls
    assert first["mask"].shape == (1, 1, 128, 128)
    assert [call["bias"].shape for call in others] == 2 * [(1, 2, 128, 128)]
