"""Attention equals that of Qwen 2, Qwen 3 and Llama in transformers."""

import keras
import numpy as np
import pytest
import torch
from keras import ops
from layer_contract import (
    check_layer,
    on_torch,
    output_and_weight_gradients,
    to_numpy,
    with_random_weights,
)
from transformers import DynamicCache, LlamaConfig, Qwen2Config, Qwen3Config
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

from keras_transformer.layers import (
    DecoderBlock,
    EncoderBlock,
    LocalWindow,
    MultiHeadAttention,
    RotaryEmbedding,
)

RNG = np.random.default_rng(41)
BATCH, LENGTH, WIDTH, NUM_HEADS, KEY_VALUE_HEADS, KEY_DIM = 2, 7, 12, 6, 3, 14
INPUTS = RNG.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")
SOURCE = RNG.normal(size=(BATCH, 5, 11)).astype("float32")
EPSILON = 0.01
LATE = 1000  # the positions of a second row
POSITIONS = np.array([range(LENGTH), range(LATE, LATE + LENGTH)])
DYNAMIC = {"type": "dynamic", "factor": 2.0, "original_max_length": 4}
NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")


def config_of(config_class, **options):
    sizes = {
        "hidden_size": WIDTH,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": KEY_DIM,
        "num_hidden_layers": 1,
        "rms_norm_eps": EPSILON,
        "attn_implementation": "eager",
    }
    return config_class(**{**sizes, **options})


def pair_of(attention_class, config, rotary=None, **options):
    """An attention layer of transformers with random weights, and ours with them."""
    theirs = attention_class(config, layer_idx=0).eval()
    ours = MultiHeadAttention(
        NUM_HEADS,
        KEY_DIM,
        num_key_value_heads=KEY_VALUE_HEADS,
        positions=rotary or RotaryEmbedding(),
        **options,
    )
    ours.build(INPUTS.shape, INPUTS.shape)
    with_random_weights(ours)
    weights = iter(ours.get_weights())
    with torch.no_grad():
        for name in NAMES:
            layer = getattr(theirs, name)
            layer.weight.copy_(
                torch.tensor(next(weights)).reshape(layer.weight.T.shape).T
            )
            if layer.bias is not None:
                layer.bias.copy_(torch.tensor(next(weights)).reshape(-1))
        for name in ("q_norm", "k_norm"):
            if hasattr(theirs, name):
                getattr(theirs, name).weight.copy_(torch.tensor(next(weights)))
    assert next(weights, None) is None
    return ours, theirs


def their_output(theirs, embedding, inputs, positions, **options):
    """The output of causal attention with the keys of all earlier calls."""
    inputs, positions = torch.tensor(inputs), torch.tensor(positions)
    known = int(positions[0, -1]) + 1
    mask = torch.full((inputs.shape[1], known), -torch.inf)
    mask = mask.triu(known - inputs.shape[1] + 1)[None, None]
    with torch.no_grad():
        embedded = embedding(inputs, positions)
        return theirs(inputs, embedded, mask, **options)[0].numpy()


def assert_close(actual, expected, atol=2e-5):
    actual, expected = to_numpy(actual), to_numpy(expected)
    np.testing.assert_allclose(actual, expected, atol=atol, rtol=1e-5)


def test_normalized_queries_and_keys_of_qwen_3():
    config = config_of(Qwen3Config)
    ours, theirs = pair_of(
        modeling_qwen3.Qwen3Attention,
        config,
        use_bias=False,
        query_key_normalization="rms",
        layer_norm_epsilon=EPSILON,
    )
    embedding = modeling_qwen3.Qwen3RotaryEmbedding(config)
    expected = their_output(theirs, embedding, INPUTS, POSITIONS)
    places = {"query_positions": POSITIONS, "key_positions": POSITIONS}
    output = ours(INPUTS, INPUTS, use_causal_mask=True, **places)
    assert_close(output, expected, atol=1e-4)
    first = ours(INPUTS[:1], INPUTS[:1], use_causal_mask=True)
    assert_close(first, expected[:1])
    cache = np.zeros((1, 2, LENGTH, KEY_VALUE_HEADS, KEY_DIM), "float32")
    for index in range(LENGTH):
        x = INPUTS[:1, index : index + 1]
        options = {"cache": cache, "cache_update_index": index}
        output, cache = ours(x, x, use_causal_mask=True, **options)
        assert_close(output, expected[:1, index : index + 1])


@pytest.mark.parametrize(
    ("use_bias", "num_biases"),
    [(["query", "key", "value"], 3), on_torch(("value", "key", "query"), 3)],
)
def test_biases_of_qwen_2(use_bias, num_biases):
    config = config_of(Qwen2Config)
    attention_class = modeling_qwen2.Qwen2Attention
    ours, theirs = pair_of(attention_class, config, use_bias=use_bias)
    assert len(ours.weights) == 4 + num_biases
    assert ours.get_config()["use_bias"] == ["query", "key", "value"]
    embedding = modeling_qwen2.Qwen2RotaryEmbedding(config)
    expected = their_output(theirs, embedding, INPUTS, POSITIONS[[0, 0]])
    assert_close(ours(INPUTS, INPUTS, use_causal_mask=True), expected)


def test_cached_steps_of_a_dynamic_scaling():
    """A key keeps the rotation of its step, also in the cache of transformers."""
    parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0}
    config = config_of(
        LlamaConfig, rope_parameters=parameters, max_position_embeddings=4
    )
    rotary = RotaryEmbedding(100.0, DYNAMIC)
    attention_class = modeling_llama.LlamaAttention
    ours, theirs = pair_of(attention_class, config, rotary, use_bias=False)
    embedding = modeling_llama.LlamaRotaryEmbedding(config)
    known = DynamicCache(config=config)
    cache = np.zeros((BATCH, 2, LENGTH, KEY_VALUE_HEADS, KEY_DIM), "float32")
    outputs = []
    for chunk in np.split(np.arange(LENGTH), [3, 5, 6]):
        x, positions = INPUTS[:, chunk], np.stack([chunk] * BATCH)
        expected = their_output(theirs, embedding, x, positions, cache=known)
        options = {"cache": cache, "cache_update_index": int(chunk[0])}
        output, cache = ours(x, x, use_causal_mask=True, **options)
        assert_close(output, expected)
        outputs.append(to_numpy(output))
    whole = to_numpy(ours(INPUTS, INPUTS, use_causal_mask=True))
    assert np.abs(np.concatenate(outputs, axis=1) - whole).max() > 1e-3


# The normalisation of queries and keys.


def normalized(kind="rms", **options):
    layer = MultiHeadAttention(
        NUM_HEADS, KEY_DIM, query_key_normalization=kind, **options
    )
    layer.build(INPUTS.shape, SOURCE.shape)
    return with_random_weights(layer)


def by_hand(layer, inputs, source, kind, epsilon):
    """The same attention with heads that are normalised outside of the layer."""
    heads = []
    for x, dense, norm in (
        (inputs, layer.query_dense, layer.query_norm),
        (source, layer.key_dense, layer.key_norm),
    ):
        x = np.einsum("btd,dhk->bthk", x, to_numpy(dense.kernel)) + to_numpy(dense.bias)
        weights = [to_numpy(weight) for weight in norm.weights]
        if kind == "layer":
            x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weights[0]
        heads.append(x + (weights[1] if kind == "layer" else 0))
    value = layer.value_dense
    values = np.einsum("btd,dhk->bthk", source, to_numpy(value.kernel))
    values = values + to_numpy(value.bias)
    logits = np.einsum("bqhd,bkhd->bhqk", *heads) / np.sqrt(KEY_DIM)
    scores = np.exp(logits - logits.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    attended = np.einsum("bhqk,bkhd->bqhd", scores, values)
    output = layer.output_dense
    kernel, bias = to_numpy(output.kernel), to_numpy(output.bias)
    return np.einsum("bqhd,hdw->bqw", attended, kernel) + bias, scores


@pytest.mark.parametrize("kind", ["layer", on_torch("rms")])
def test_cross_attention_equals_the_formula(kind):
    layer = normalized(kind, layer_norm_epsilon=EPSILON)
    expected, scores = by_hand(layer, INPUTS, SOURCE, kind, EPSILON)
    assert_close(layer(INPUTS, SOURCE), expected)
    assert_close(layer(INPUTS, SOURCE, return_attention_scores=True)[1], scores)
    cache = layer.compute_key_values(SOURCE)  # of normalised keys
    assert_close(layer(INPUTS, INPUTS, cache=cache)[0], expected)


def test_the_weights_are_the_last_ones():
    for kind, num_weights in (("rms", 1), ("layer", 2)):
        layer, plain = normalized(kind), normalized(None)
        weights = layer.get_weights()
        assert len(weights) == len(plain.weights) + 2 * num_weights
        assert all(weight.shape == (KEY_DIM,) for weight in weights[8:])
        names = [weight.path.split("/")[1] for weight in layer.weights[8:]]
        assert names == ["query_norm"] * num_weights + ["key_norm"] * num_weights
        theirs = keras.layers.MultiHeadAttention(NUM_HEADS, KEY_DIM)
        theirs.build(INPUTS.shape, SOURCE.shape)
        theirs.set_weights(weights[:8])
        plain.set_weights(weights[:8])
        assert_close(plain(INPUTS, SOURCE), theirs(INPUTS, SOURCE))
    assert plain.query_norm is None and plain.key_norm is None


def test_contract():
    arguments = {
        "num_heads": 2,
        "key_dim": 3,
        "use_bias": ["query", "output"],
        "query_key_normalization": "layer",
        "layer_norm_epsilon": 0.01,
    }
    shapes = [(12, 2, 3), (2, 3), (11, 2, 3), (11, 2, 3), (2, 3, 12), (12,)]
    check_layer(MultiHeadAttention, arguments, [INPUTS, SOURCE], shapes + [(3,)] * 4)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", on_torch("float16")])
def test_in_a_half_type(policy):
    layer, exact = normalized(dtype=policy), normalized()
    output = to_numpy(layer(INPUTS, SOURCE))
    expected = to_numpy(exact(INPUTS, SOURCE))
    assert np.abs(output - expected).max() < 0.05 * np.abs(expected).max()


def test_blockwise_attention_is_dense_attention():
    length = 130
    inputs = RNG.normal(size=(1, length, WIDTH)).astype("float32")
    layer = MultiHeadAttention(
        2,
        6,
        num_key_value_heads=1,
        pattern=LocalWindow(9),
        positions=RotaryEmbedding(rotary_dim=4),
        query_key_normalization="rms",
        use_bias=["value"],
    )
    layer.build(inputs.shape, inputs.shape)
    with_random_weights(layer)
    assert layer.pattern.is_worthwhile(length)
    options = {"use_causal_mask": True}
    output = layer(inputs, inputs, **options)
    dense, _ = layer(inputs, inputs, return_attention_scores=True, **options)
    assert_close(output, dense)


@pytest.mark.once("torch")
def test_every_weight_is_trained():
    _, gradients = output_and_weight_gradients(normalized("layer"), INPUTS, SOURCE)
    # An offset of the keys moves all logits of a query alike, as a bias does.
    assert [bool(np.abs(g).max() > 1e-3) for g in gradients[8:]] == [1, 1, 1, 0]


@pytest.mark.once("torch")
@pytest.mark.parametrize("block_class", [EncoderBlock, DecoderBlock])
def test_the_epsilon_of_a_block(block_class):
    for options, epsilon in ({}, 0.25), ({"layer_norm_epsilon": 0.125}, 0.125):
        options = {"query_key_normalization": "rms", **options}
        block = block_class(5, 2, layer_norm_epsilon=0.25, attention_options=options)
        block.build((None, None, 8))
        attention = block.self_attention
        assert attention.query_norm.epsilon == attention.key_norm.epsilon == epsilon
        assert block.self_attention_residual.norm.epsilon == 0.25


@pytest.mark.once("torch")
def test_a_saved_model(tmp_path):
    x = inputs = keras.Input((LENGTH, 8))
    for kind in ("rms", "layer"):
        options = {"query_key_normalization": kind, "use_bias": ["key", "value"]}
        x = EncoderBlock(5, 2, attention_options=options)(x)
    model = with_random_weights(keras.Model(inputs, x))
    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")
    numbers = RNG.normal(size=(1, LENGTH, 8)).astype("float32")
    np.testing.assert_array_equal(to_numpy(restored(numbers)), to_numpy(model(numbers)))
    assert restored.layers[1].get_config() == model.layers[1].get_config()


@pytest.mark.once("torch")
def test_a_gate_has_a_bias_with_all_biases_only():
    for use_bias, num_weights in ((True, 10), (False, 5), (["query", "output"], 7)):
        layer = MultiHeadAttention(2, 3, use_gate=True, use_bias=use_bias)
        layer.build(INPUTS.shape, SOURCE.shape)
        assert len(layer.weights) == num_weights


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"use_bias": ["query", "gate"]}, r"`use_bias` must be .*\['query', 'gate'\]`"),
        ({"use_bias": "query"}, "`use_bias` must be a bool or a list .*'query'`"),
        ({"use_bias": {"query"}}, "`use_bias` must be a bool or a list"),
        ({"use_bias": None}, "`use_bias` must be a bool or a list .*`use_bias=None`"),
        (
            {"query_key_normalization": "l2"},
            "`query_key_normalization` must be 'layer' or 'rms'; .*='l2'`",
        ),
        ({"layer_norm_epsilon": 0.0}, "`layer_norm_epsilon` must be a finite number"),
        ({"qk_norm": True}, "Did you mean `query_key_normalization`"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(2, 3, **arguments)


@pytest.mark.once("torch")
def test_a_frozen_layer_has_frozen_normalizations():
    layer = MultiHeadAttention(2, 4, query_key_normalization="rms", trainable=False)
    layer.build(INPUTS.shape, INPUTS.shape)
    assert layer.trainable_weights == [] and len(layer.weights) == 10
    assert ops.shape(layer.key_norm.scale) == (4,)
