import keras
import numpy as np
import pytest
import reference
from keras import ops
from layer_contract import (
    HALF_POLICIES,
    check_layer,
    get_mask,
    gradients,
    to_numpy,
    with_mask,
    with_random_weights,
)

from keras_transformer.layers import MultiHeadAttention, scaled_dot_product_attention

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

MASKS = {
    "none": None,
    "keys": KEY_MASK[:, None],
    "queries and keys": HOLES,
    "fully masked rows": NOTHING_SEEN,
    "per head": PER_HEAD,
    "one for all": HOLES[:1],
    "causal": reference.causal_mask(QUERY_LENGTH, KEY_LENGTH, offset=2),
    "nothing": np.zeros((1, 1, 1), bool),
}
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}

each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE)
each_path = pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])


def heads(length, dim, dtype="float32"):
    values = RNG.normal(size=(BATCH, length, NUM_HEADS, dim)).astype("float32")
    return ops.cast(values, dtype)


def query_key_value(dtype="float32"):
    return (
        heads(QUERY_LENGTH, KEY_DIM, dtype),
        heads(KEY_LENGTH, KEY_DIM, dtype),
        heads(KEY_LENGTH, KEY_DIM, dtype),
    )


def attention(cls=MultiHeadAttention, **arguments):
    arguments = {"num_heads": NUM_HEADS, "key_dim": KEY_DIM, **arguments}
    layer = cls(**arguments)
    layer.build(QUERY.shape, SOURCE.shape)
    return with_random_weights(layer)


def count_fused_calls(monkeypatch):
    calls, fused = [], ops.dot_product_attention

    def counted(*args, **kwargs):
        calls.append(args)
        return fused(*args, **kwargs)

    monkeypatch.setattr(ops, "dot_product_attention", counted)
    return calls


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


class TestScaledDotProductAttention:
    def test_by_hand(self):
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

    @each_dtype
    @each_mask
    def test_equals_the_reference_with_and_without_scores(self, mask, dtype):
        inputs = query_key_value(dtype)
        expected, expected_scores = reference.scaled_dot_product_attention(
            *map(to_numpy, inputs), mask
        )
        fused = scaled_dot_product_attention(*inputs, mask)
        output, scores = scaled_dot_product_attention(
            *inputs, mask, return_attention_scores=True
        )
        atol = TOLERANCE[dtype]
        for tensor in (fused, output, scores):
            assert keras.backend.standardize_dtype(tensor.dtype) == dtype
        np.testing.assert_allclose(to_numpy(fused), expected, atol=atol)
        np.testing.assert_allclose(to_numpy(output), expected, atol=atol)
        np.testing.assert_allclose(to_numpy(scores), expected_scores, atol=atol)

    @each_path
    @each_dtype
    def test_nothing_to_attend_to_gives_exact_zeros(self, fused, dtype):
        attended = scaled_dot_product_attention(
            *query_key_value(dtype), NOTHING_SEEN, return_attention_scores=not fused
        )
        output, *scores = (attended,) if fused else attended
        empty = ~NOTHING_SEEN.any(-1)
        output = to_numpy(output)
        assert (output[empty] == 0).all() and (output[~empty] != 0).all()
        for score in map(to_numpy, scores):
            by_query = score.transpose(0, 2, 1, 3)
            assert (by_query[empty] == 0).all()
            np.testing.assert_allclose(by_query[~empty].sum(-1), 1, atol=1e-2)

    @each_path
    @each_dtype
    def test_nothing_to_attend_to_has_finite_gradients(self, fused, dtype):
        def loss(query, key, value):
            attended = scaled_dot_product_attention(
                query, key, value, NOTHING_SEEN, return_attention_scores=not fused
            )
            output = attended if fused else attended[0]
            return ops.sum(ops.square(ops.cast(output, "float32")))

        of_query, *others = gradients(loss, *query_key_value(dtype))
        assert (of_query[~NOTHING_SEEN.any(-1)] == 0).all()
        assert all(np.isfinite(g).all() and g.any() for g in (of_query, *others))

    @each_mask
    def test_fused_and_unfused_gradients_agree(self, mask):
        def loss(*inputs, **options):
            output = scaled_dot_product_attention(*inputs, mask, **options)
            return ops.sum(ops.sin(output))

        inputs = query_key_value()
        fused = gradients(loss, *inputs)
        unfused = gradients(lambda *x: loss(*x, dropout=lambda scores: scores), *inputs)
        for one, other in zip(fused, unfused, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)

    def test_large_logits_stay_finite_in_half_precision(self):
        query = np.full((1, 1, 1, 64), 60.0)
        key = np.stack([np.full((1, 1, 64), 60.0), np.full((1, 1, 64), -60.0)], axis=1)
        value = np.array([[[[3.0]], [[5.0]]]])
        inputs = [ops.cast(x, "float16") for x in (query, key, value)]
        output, scores = scaled_dot_product_attention(
            *inputs, return_attention_scores=True
        )
        assert to_numpy(output).item() == 3.0
        assert to_numpy(scores).ravel().tolist() == [1.0, 0.0]

    def test_dropout_weighs_the_values_but_not_the_scores(self):
        inputs = query_key_value()
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
            ([(2, 5, 4, 4), (2, 7, 3, 4), (2, 7, 3, 4)], "or a multiple of it"),
            ([(2, 5, 3, 4), (2, 7, 3, 4), (2, 7, 1, 4)], "the same num_heads"),
        ],
    )
    def test_shapes_that_do_not_fit_are_named(self, shapes, message):
        with pytest.raises(ValueError, match=message) as error:
            scaled_dot_product_attention(*map(np.zeros, shapes))
        assert all(str(shape) in str(error.value) for shape in shapes)


class TestAgainstOtherImplementations:
    @each_mask
    @pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
    def test_the_reference(self, mask, value_dim):
        layer = attention(value_dim=value_dim)
        expected, expected_scores = reference.multi_head_attention(
            layer.get_weights(), QUERY, SOURCE, mask
        )
        plain = layer(QUERY, SOURCE, attention_mask=mask)
        output, scores = layer(
            QUERY, SOURCE, attention_mask=mask, return_attention_scores=True
        )
        np.testing.assert_allclose(to_numpy(plain), expected, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(to_numpy(scores), expected_scores, atol=1e-5)

    @pytest.mark.parametrize(
        ("arguments", "call"),
        [
            ({}, {}),
            ({"value_dim": VALUE_DIM, "use_bias": False}, {"attention_mask": HOLES}),
            ({"output_shape": (2, 13)}, {"value_mask": KEY_MASK}),
            ({"output_shape": 17}, {"key_mask": KEY_MASK, "use_causal_mask": True}),
            ({"dropout": 0.5}, {"use_causal_mask": True}),
            ({"sliding_window": 3}, {}),
            ({"sliding_window": 2}, {"use_causal_mask": True}),
            ({"sliding_window": 3}, {"attention_mask": HOLES}),
        ],
    )
    @pytest.mark.parametrize("ours_first", [True, False])
    def test_keras_with_weights_carried_both_ways(self, arguments, call, ours_first):
        ours = attention(MultiHeadAttention, **arguments)
        theirs = attention(keras.layers.MultiHeadAttention, **arguments)
        giver, taker = (ours, theirs) if ours_first else (theirs, ours)
        names = [[w.path.split("/", 1)[1] for w in x.weights] for x in (ours, theirs)]
        assert names[0] == names[1]
        taker.set_weights([1.5 * w for w in giver.get_weights()])
        giver.set_weights(taker.get_weights())
        output, scores = ours(QUERY, SOURCE, return_attention_scores=True, **call)
        expected, expected_scores = theirs(
            QUERY, SOURCE, return_attention_scores=True, **call
        )
        # Keras takes the average of all values where a query sees nothing.
        seen = to_numpy(scores).any(axis=(1, 3))
        assert seen.sum() >= BATCH * (QUERY_LENGTH - 1)
        for one, other in ((output, expected), (ours(QUERY, SOURCE, **call), expected)):
            np.testing.assert_allclose(
                to_numpy(one)[seen], to_numpy(other)[seen], atol=1e-5, rtol=1e-5
            )
        one, other = (
            to_numpy(x).transpose(0, 2, 1, 3)[seen] for x in (scores, expected_scores)
        )
        np.testing.assert_allclose(one, other, atol=1e-5)

    def test_keras_with_a_key_of_its_own(self):
        key = RNG.normal(size=(BATCH, KEY_LENGTH, 13)).astype("float32")
        ours = MultiHeadAttention(NUM_HEADS, KEY_DIM)
        theirs = keras.layers.MultiHeadAttention(NUM_HEADS, KEY_DIM)
        for layer in (ours, theirs):
            layer.build(QUERY.shape, SOURCE.shape, key.shape)
            with_random_weights(layer)
        np.testing.assert_allclose(
            to_numpy(ours(QUERY, SOURCE, key)),
            to_numpy(theirs(QUERY, SOURCE, key)),
            atol=1e-5,
            rtol=1e-5,
        )

    @pytest.mark.parametrize("use_causal_mask", [False, True])
    def test_torch(self, use_causal_mask):
        import torch

        dim, length = NUM_HEADS * KEY_DIM, KEY_LENGTH
        inputs = RNG.normal(size=(BATCH, length, dim)).astype("float32")
        layer = MultiHeadAttention(NUM_HEADS, KEY_DIM)
        layer.build(inputs.shape, inputs.shape)
        weights = with_random_weights(layer).get_weights()
        kernels = [kernel.reshape(dim, dim) for kernel in weights[::2]]
        biases = [bias.reshape(dim) for bias in weights[1::2]]
        theirs = torch.nn.MultiheadAttention(dim, NUM_HEADS, batch_first=True)
        tensors = {
            "in_proj_weight": np.concatenate([kernel.T for kernel in kernels[:3]]),
            "in_proj_bias": np.concatenate(biases[:3]),
            "out_proj.weight": kernels[3].T,
            "out_proj.bias": biases[3],
        }
        theirs.load_state_dict({k: torch.tensor(v) for k, v in tensors.items()})
        x = torch.tensor(inputs)
        expected = theirs(
            x,
            x,
            x,
            key_padding_mask=torch.tensor(~KEY_MASK),
            attn_mask=~torch.ones(length, length).tril().bool()
            if use_causal_mask
            else None,
            average_attn_weights=False,
        )
        actual = layer(
            inputs,
            inputs,
            value_mask=KEY_MASK,
            use_causal_mask=use_causal_mask,
            return_attention_scores=True,
        )
        for one, other in zip(actual, expected, strict=True):
            other = other.detach().cpu().numpy()
            np.testing.assert_allclose(to_numpy(one), other, atol=1e-5, rtol=1e-5)


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
        np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5, rtol=1e-5)

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

    def test_embedding_masks_in_a_functional_model(self):
        token_ids = np.array([[3, 1, 4, 0, 0], [1, 5, 0, 0, 0]])
        inputs = keras.Input((None,), dtype="int32")
        embedding = keras.layers.Embedding(7, QUERY_DIM, mask_zero=True)
        embedded = embedding(inputs)
        layer = MultiHeadAttention(NUM_HEADS, KEY_DIM)
        model = keras.Model(inputs, layer(embedded, embedded))
        output = model(token_ids)
        mask = token_ids != 0
        expected, _ = reference.multi_head_attention(
            layer.get_weights(),
            *[to_numpy(embedding(token_ids))] * 2,
            mask[:, None] & mask[:, :, None],
        )
        np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)
        np.testing.assert_array_equal(get_mask(output), mask)


class TestCache:
    @pytest.mark.parametrize("sliding_window", [None, 3])
    @pytest.mark.parametrize("chunks", [[1] * 5, [3, 1, 1], [2, 3], [5]])
    @pytest.mark.parametrize("as_tensor", [False, True])
    def test_cached_equals_uncached(self, chunks, as_tensor, sliding_window):
        layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, sliding_window=sliding_window)
        layer.build(QUERY.shape, QUERY.shape)
        with_random_weights(layer)
        expected = layer(QUERY, QUERY, use_causal_mask=True)
        cache = np.full((BATCH, 2, 7, NUM_HEADS, KEY_DIM), 1e3, "float32")
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
        np.testing.assert_allclose(
            np.concatenate(outputs, axis=1), to_numpy(expected), atol=1e-5, rtol=1e-5
        )
        cache = to_numpy(cache)
        np.testing.assert_allclose(
            cache[:, :, :5], to_numpy(layer.compute_cache(QUERY)), atol=1e-6
        )
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

    @pytest.mark.parametrize(("policy", "dtype"), HALF_POLICIES.items())
    def test_holds_the_compute_dtype(self, policy, dtype):
        layer = attention(dtype=policy)
        cache = layer.compute_cache(SOURCE)
        assert keras.backend.standardize_dtype(cache.dtype) == dtype
        output, same = layer(QUERY, QUERY, cache=cache)
        np.testing.assert_array_equal(to_numpy(output), to_numpy(layer(QUERY, SOURCE)))
        np.testing.assert_array_equal(to_numpy(same), to_numpy(cache))

    def test_an_update_index_without_a_cache_is_an_error(self):
        with pytest.raises(ValueError, match="`cache_update_index` must be `None`"):
            attention()(QUERY, SOURCE, cache_update_index=2)


class TestDropout:
    def test_leaves_the_fused_path_on_at_inference(self, monkeypatch):
        layer, calls = attention(dropout=0.5), count_fused_calls(monkeypatch)
        plain = attention(dropout=0.0)(QUERY, SOURCE)
        calls.clear()
        output = layer(QUERY, SOURCE)
        assert len(calls) == 1
        np.testing.assert_array_equal(to_numpy(output), to_numpy(plain))
        layer(QUERY, SOURCE, training=True)
        layer(QUERY, SOURCE, return_attention_scores=True)
        assert len(calls) == 1

    def test_drops_in_training_alone_and_leaves_the_scores_whole(self):
        layer = attention(dropout=0.5, seed=3)
        output, scores = layer(QUERY, SOURCE, return_attention_scores=True)
        dropped, whole = layer(
            QUERY, SOURCE, return_attention_scores=True, training=True
        )
        assert np.abs(to_numpy(output) - to_numpy(dropped)).max() > 0.01
        np.testing.assert_array_equal(to_numpy(scores), to_numpy(whole))

    def test_the_seed_settles_what_is_dropped(self):
        first, same, other = (
            to_numpy(attention(dropout=0.5, seed=seed)(QUERY, SOURCE, training=True))
            for seed in (3, 3, 5)
        )
        np.testing.assert_array_equal(first, same)
        assert not np.array_equal(first, other)


def test_symbolic_shapes_of_output_and_scores():
    lengths = {"given": (5, 7), "free": (None, None)}
    for query_length, key_length in lengths.values():
        output, scores = MultiHeadAttention(NUM_HEADS, KEY_DIM)(
            keras.Input((query_length, QUERY_DIM)),
            keras.Input((key_length, SOURCE_DIM)),
            return_attention_scores=True,
        )
        assert output.shape == (None, query_length, QUERY_DIM)
        assert scores.shape == (None, NUM_HEADS, query_length, key_length)


def test_length_one_attends_to_itself():
    layer = attention()
    output, scores = layer(QUERY[:, :1], SOURCE[:, :1], return_attention_scores=True)
    np.testing.assert_allclose(to_numpy(scores), np.ones((BATCH, NUM_HEADS, 1, 1)))
    assert tuple(output.shape) == (BATCH, 1, QUERY_DIM)


def test_more_padding_changes_nothing():
    layer = attention()
    padded = np.pad(SOURCE, ((0, 0), (0, 4), (0, 0)), constant_values=9.0)
    mask = np.pad(KEY_MASK, ((0, 0), (0, 4)))
    np.testing.assert_allclose(
        to_numpy(layer(QUERY, padded, value_mask=mask)),
        to_numpy(layer(QUERY, SOURCE, value_mask=KEY_MASK)),
        atol=1e-6,
    )


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 0}, "`num_heads` must be a positive int; .*`num_heads=0`"),
        ({"key_dim": 2.5}, "`key_dim` must be a positive int; .*`key_dim=2.5`"),
        ({"value_dim": -1}, "`value_dim` must be a positive int; .*`value_dim=-1`"),
        ({"value_dim": 0}, "`value_dim` must be a positive int; .*`value_dim=0`"),
        ({"sliding_window": 0}, "`sliding_window` must be .*`sliding_window=0`"),
        ({"dropout": 1.0}, r"`dropout` must be in \[0, 1\); .*`dropout=1.0`"),
        ({"dropout": -0.1}, r"`dropout` must be in \[0, 1\); .*`dropout=-0.1`"),
    ],
)
def test_arguments_out_of_range_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**{"num_heads": 2, "key_dim": 3, **arguments})
