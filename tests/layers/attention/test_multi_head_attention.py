import json

import keras
import numpy as np
import pytest
import reference
from keras import ops
from layer_contract import (
    HALF_POLICIES,
    check_layer,
    get_mask,
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
each_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())


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


class TestAgainstOtherImplementations:
    @pytest.mark.parametrize("value_dim", [None, VALUE_DIM])
    def test_the_reference(self, value_dim):
        layer = attention(value_dim=value_dim)
        for mask in MASKS.values():
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
            ({"use_gate": True}, {"value_mask": KEY_MASK}),
            ({"use_gate": True, "value_dim": VALUE_DIM}, {"use_causal_mask": True}),
            ({"use_gate": True, "use_bias": False}, {"query_mask": QUERY_MASK}),
            ({"sliding_window": 3}, {}),
            ({"sliding_window": 2}, {"use_causal_mask": True}),
            ({"sliding_window": 3}, {"attention_mask": HOLES}),
        ],
    )
    def test_keras_with_weights_carried_both_ways(self, arguments, call):
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


class TestGroupedQueries:
    """Fewer heads of keys and values than of queries."""

    NUM_HEADS = 6
    CALLS = {
        "no mask": {},
        "causal": {"use_causal_mask": True},
        "keys": {"value_mask": KEY_MASK},
        "queries and keys": {"attention_mask": HOLES},
    }

    def attention(self, key_value_heads, **arguments):
        return attention(
            num_heads=self.NUM_HEADS, num_key_value_heads=key_value_heads, **arguments
        )

    @pytest.mark.parametrize("key_value_heads", [6, 2, 1])
    @pytest.mark.parametrize("use_gate", [False, True])
    def test_keras(self, key_value_heads, use_gate):
        ours = self.attention(key_value_heads, use_gate=use_gate)
        theirs = keras.layers.GroupQueryAttention(
            KEY_DIM, self.NUM_HEADS, key_value_heads, use_gate=use_gate
        )
        theirs.build(QUERY.shape, SOURCE.shape)
        theirs.set_weights(ours.get_weights())
        for call in self.CALLS.values():
            expected = theirs(QUERY, SOURCE, return_attention_scores=True, **call)
            actual = ours(QUERY, SOURCE, return_attention_scores=True, **call)
            fused = ours(QUERY, SOURCE, **call), actual[1]
            for pair in (actual, fused):
                for one, other in zip(pair, expected, strict=True):
                    np.testing.assert_allclose(
                        to_numpy(one), to_numpy(other), atol=1e-5, rtol=1e-5
                    )

    @each_mask
    @pytest.mark.parametrize("key_value_heads", [2, 1])
    def test_repeated_projections(self, mask, key_value_heads):
        mask = np.repeat(mask, 2, 1) if mask is PER_HEAD else mask
        layer = self.attention(key_value_heads)
        repeated = layer.get_weights()
        for index, weight in enumerate(repeated[2:6], 2):
            group = self.NUM_HEADS // key_value_heads
            repeated[index] = np.repeat(weight, group, axis=-2)
        expected, expected_scores = reference.multi_head_attention(
            repeated, QUERY, SOURCE, mask
        )
        output, scores = layer(
            QUERY, SOURCE, attention_mask=mask, return_attention_scores=True
        )
        np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(to_numpy(scores), expected_scores, atol=1e-5)

    @pytest.mark.parametrize("key_value_heads", [2, 1])
    def test_the_cache_holds_the_heads_unrepeated(self, key_value_heads):
        layer = MultiHeadAttention(
            self.NUM_HEADS, KEY_DIM, num_key_value_heads=key_value_heads
        )
        layer.build(QUERY.shape, QUERY.shape)
        with_random_weights(layer)
        shape = (BATCH, 2, QUERY_LENGTH, key_value_heads, KEY_DIM)
        assert tuple(layer.compute_cache(QUERY).shape) == shape
        cache, outputs = np.zeros(shape, "float32"), []
        for index in range(QUERY_LENGTH):
            x = QUERY[:, index : index + 1]
            output, cache = layer(
                x, x, use_causal_mask=True, cache=cache, cache_update_index=index
            )
            assert tuple(cache.shape) == shape
            outputs.append(to_numpy(output))
        expected = layer(QUERY, QUERY, use_causal_mask=True)
        np.testing.assert_allclose(
            np.concatenate(outputs, axis=1), to_numpy(expected), atol=1e-5, rtol=1e-5
        )


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

    @pytest.mark.parametrize("dropout", [0.0, 0.5])
    def test_masked_queries_have_zero_scores_and_attend_to_nothing(self, dropout):
        layer = attention(dropout=dropout)
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


class TestDropout:
    def test_leaves_the_fused_path_on_at_inference(self, few_queries, monkeypatch):
        layer, calls = attention(dropout=0.5), count_fused_calls(monkeypatch)
        plain = attention(dropout=0.0)(QUERY, SOURCE)
        num_fused = len(calls)
        fused = keras.backend.backend() == "torch" and few_queries < QUERY_LENGTH
        if keras.backend.backend() == "jax":
            fused = any("gpu" in name for name in keras.distribution.list_devices())
        assert num_fused == fused
        output = layer(QUERY, SOURCE)
        assert len(calls) == 2 * num_fused
        np.testing.assert_array_equal(to_numpy(output), to_numpy(plain))
        layer(QUERY, SOURCE, training=True)
        layer(QUERY, SOURCE, return_attention_scores=True)
        assert len(calls) == 2 * num_fused

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


class TestScoresUnderJit:
    """The scores are an output and not stored in the layer."""

    @pytest.mark.parametrize(
        "arguments",
        [{}, {"dropout": 0.5}, {"pattern": LocalWindow(2)}, {"num_key_value_heads": 1}],
    )
    def test_are_those_without(self, arguments):
        layer = attention(**arguments)

        def call(query, source):
            return layer(query, source, return_attention_scores=True)

        expected, before = call(QUERY, SOURCE), dict(vars(layer))
        compiled = compile_function(call, layer)(
            ops.convert_to_tensor(QUERY), ops.convert_to_tensor(SOURCE)
        )
        for one, other in zip(compiled, expected, strict=True):
            np.testing.assert_allclose(to_numpy(one), to_numpy(other), atol=1e-5)
        assert vars(layer).keys() == before.keys()
        assert all(vars(layer)[name] is value for name, value in before.items())

    @pytest.mark.parametrize(
        "jit_compile",
        [False] if keras.backend.backend() == "torch" else [False, True],
    )
    def test_in_a_model(self, jit_compile):
        inputs = [keras.Input((QUERY_LENGTH, QUERY_DIM)) for _ in range(2)]
        layer = MultiHeadAttention(NUM_HEADS, KEY_DIM)
        outputs = layer(*inputs, return_attention_scores=True)
        model = keras.Model(inputs, outputs)
        model.compile(jit_compile=jit_compile)
        predicted = model.predict([QUERY, QUERY[::-1]], verbose=0)
        expected = layer(QUERY, QUERY[::-1], return_attention_scores=True)
        for one, other in zip(predicted, expected, strict=True):
            np.testing.assert_allclose(one, to_numpy(other), atol=1e-5)


class TestConfig:
    ARGUMENTS = {
        "num_heads": 6,
        "key_dim": 4,
        "num_key_value_heads": 2,
        "use_gate": True,
        "attention_axes": (1,),
        "output_shape": (3, 5),
        "dropout": 0.2,
    }

    def restore(self, layer):
        config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
        return keras.saving.deserialize_keras_object(config)

    def test_holds_every_argument(self):
        layer = MultiHeadAttention(**self.ARGUMENTS)
        assert self.ARGUMENTS.items() <= layer.get_config().items()
        assert self.restore(layer).get_config()["num_key_value_heads"] == 2

    @pytest.mark.parametrize(
        "pattern", [None, LocalWindow(3), GlobalLocal(radius=2, global_tokens=1)]
    )
    @pytest.mark.parametrize(
        "positions",
        [None, RotaryEmbedding(max_wavelength=100), RelativePositionBias(8, 13)],
        ids=["none", "rotary", "relative"],
    )
    def test_holds_pattern_and_positions(self, pattern, positions):
        layer = MultiHeadAttention(
            NUM_HEADS, 4, pattern=pattern, positions=positions, dtype="mixed_bfloat16"
        )
        restored = self.restore(layer)
        assert restored.pattern == pattern
        assert type(restored.positions) is type(positions)
        assert restored.get_config() == layer.get_config()

    def test_holds_the_sliding_window_alone(self):
        layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, sliding_window=4)
        assert layer.pattern == LocalWindow(3)
        config = layer.get_config()
        assert (config["sliding_window"], config["pattern"]) == (4, None)
        assert self.restore(layer).pattern == LocalWindow(3)

    def test_a_model_is_saved_whole(self, tmp_path):
        inputs = keras.Input((QUERY_LENGTH, QUERY_DIM))
        layer = MultiHeadAttention(
            num_heads=2,
            key_dim=KEY_DIM,
            num_key_value_heads=1,
            pattern=LocalWindow(2),
            positions=RelativePositionBias(num_buckets=8, max_distance=13),
            use_gate=True,
        )
        model = keras.Model(inputs, layer(inputs, inputs))
        with_random_weights(layer)
        model.save(tmp_path / "model.keras")
        restored = keras.saving.load_model(tmp_path / "model.keras")
        assert len(restored.weights) == len(model.weights) == 11
        np.testing.assert_array_equal(to_numpy(restored(QUERY)), to_numpy(model(QUERY)))

    def test_a_scheme_is_copied(self, tmp_path):
        """Layers with the same scheme have separate weights."""
        scheme = RelativePositionBias(num_buckets=8, max_distance=13)
        inputs = x = keras.Input((QUERY_LENGTH, QUERY_DIM))
        for num_heads in (2, 3):
            x = MultiHeadAttention(num_heads, KEY_DIM, positions=scheme)(x, x)
        model = with_random_weights(keras.Model(inputs, x))
        assert scheme.weights == [] and len(model.weights) == 2 * 9
        model.save(tmp_path / "model.keras")
        restored = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(to_numpy(restored(QUERY)), to_numpy(model(QUERY)))


def test_symbolic_shapes_of_output_scores_and_cache():
    lengths = {"given": (5, 7), "free": (None, None)}
    for query_length, key_length in lengths.values():
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
    np.testing.assert_allclose(to_numpy(scores), np.ones((BATCH, NUM_HEADS, 1, 1)))
    assert tuple(output.shape) == (BATCH, 1, QUERY_DIM)


def test_more_padding_changes_nothing():
    layer = attention()
    padded = np.pad(SOURCE, ((0, 0), (0, 4), (0, 0)), constant_values=9.0)
    mask = np.pad(KEY_MASK, ((0, 0), (0, 4)))
    np.testing.assert_allclose(
        to_numpy(layer(QUERY, padded, value_mask=mask)),
        to_numpy(layer(QUERY, SOURCE, value_mask=KEY_MASK)),
        rtol=1e-5,
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


class TestErrors:
    @pytest.mark.once("torch")
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                {"num_heads": 0},
                "`num_heads` must be an int .*`num_heads=0`",
            ),
            (
                {"key_dim": 2.5},
                "`key_dim` must be an int .*`key_dim=2.5`",
            ),
            (
                {"value_dim": -1},
                "`value_dim` must be an int .*`value_dim=-1`",
            ),
            (
                {"value_dim": 0},
                "`value_dim` must be an int .*`value_dim=0`",
            ),
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
            ({"dropout": -0.1}, r"`dropout` must be in \[0, 1\); .*`dropout=-0.1`"),
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
        ],
    )
    def test_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            MultiHeadAttention(**{"num_heads": 2, "key_dim": 3, **arguments})

    @pytest.mark.parametrize("name", ["pattern", "positions"])
    def test_names_in_the_place_of_objects(self, name):
        with pytest.raises(TypeError, match=f"`{name}` must be .*`{name}='local'`"):
            MultiHeadAttention(num_heads=2, key_dim=3, **{name: "local"})

    def test_keys_and_values_of_different_lengths(self):
        message = (
            r"must be equal; .*`value.shape=\(2, 7, 10\)`, `key.shape=\(2, 5, 6\)`"
        )
        layer = MultiHeadAttention(NUM_HEADS, KEY_DIM)
        with pytest.raises(ValueError, match=message):
            layer(QUERY, SOURCE, QUERY)
        with pytest.raises(ValueError, match=message):
            layer.compute_output_shape(QUERY.shape, SOURCE.shape, QUERY.shape)

    def test_an_update_index_without_a_cache(self):
        message = "`cache_update_index` must be `None` .*`cache_update_index=2`"
        with pytest.raises(ValueError, match=message):
            attention()(QUERY, SOURCE, cache_update_index=2)

    def test_a_cache_of_values_wider_than_keys(self):
        layer, cache = attention(value_dim=VALUE_DIM), np.ones((BATCH, 2, 7, 3, 11))
        message = "`value_dim` must be equal to `key_dim` .*`value_dim=4`"
        with pytest.raises(ValueError, match=message):
            layer(QUERY, SOURCE, cache=cache)

    @pytest.mark.parametrize("name", ["cache", "query_positions", "key_positions"])
    def test_what_needs_three_axes(self, name):
        inputs = np.ones((2, 3, 5, 7), "float32")
        message = rf"`{name}` must be `None` for .*`query.shape=\(2, 3, 5, 7\)`"
        with pytest.raises(ValueError, match=message):
            MultiHeadAttention(NUM_HEADS, KEY_DIM)(
                inputs, inputs, **{name: np.arange(5)}
            )

    def test_scores_of_flash_attention(self):
        layer = attention(flash_attention=True)
        message = "Returning attention scores is not supported when flash"
        with pytest.raises(ValueError, match=message):
            layer(QUERY, SOURCE, return_attention_scores=True)

    def test_an_odd_width_of_rotated_heads(self):
        layer = attention(positions=RotaryEmbedding())
        with pytest.raises(ValueError, match="`key_dim` must be even.*`key_dim=11`"):
            layer(QUERY, SOURCE)

    @pytest.mark.parametrize("axes", [0, 3, (1, -1)])
    def test_attention_axes(self, axes):
        inputs = np.ones((2, 3, 5, 7), "float32")
        layer = MultiHeadAttention(NUM_HEADS, KEY_DIM, attention_axes=axes)
        message = "`attention_axes` must be axes between .*for inputs with 4 axes"
        with pytest.raises(ValueError, match=message):
            layer(inputs, inputs)
