"""Arguments that blocks and stacks share: defaults and effect."""

import inspect
import json

import keras
import numpy as np
import pytest
import reference
from designs import DESIGNS
from layer_contract import to_numpy, with_random_weights

from keras_transformer.layers import (
    DecoderBlock,
    DecoderStack,
    EncoderBlock,
    EncoderStack,
    KeyValues,
    RotaryEmbedding,
)

RNG = np.random.default_rng(67)
LENGTH, SOURCE_LENGTH, HIDDEN_DIM, NUM_LAYERS, NUM_HEADS = 5, 7, 12, 2, 3
TARGET = RNG.normal(size=(2, LENGTH, HIDDEN_DIM)).astype("float32")
SOURCE = RNG.normal(size=(2, SOURCE_LENGTH, HIDDEN_DIM)).astype("float32")
TARGET_HOLES = RNG.random((2, LENGTH, LENGTH)) < 0.6
SOURCE_HOLES = RNG.random((2, LENGTH, SOURCE_LENGTH)) < 0.6
TARGET_HOLES[:, :, 0] = SOURCE_HOLES[:, :, 0] = True
TARGET_PADDING = np.arange(LENGTH) < [[3], [5]]
SOURCE_PADDING = np.arange(SOURCE_LENGTH) < [[7], [4]]

STACKS = [EncoderStack, DecoderStack]
CLASSES = [EncoderBlock, DecoderBlock, *STACKS]
SHARED = inspect.signature(EncoderBlock).parameters

each_class = pytest.mark.parametrize("layer_class", CLASSES)
each_stack = pytest.mark.parametrize("stack_class", STACKS)


def sizes(layer_class):
    of_block = {"intermediate_dim": 13, "num_heads": NUM_HEADS}
    return of_block | ({"num_layers": NUM_LAYERS} if layer_class in STACKS else {})


def assert_close(actual, expected, atol=2e-5):
    np.testing.assert_allclose(to_numpy(actual), to_numpy(expected), atol=atol)


def built(stack_class, **arguments):
    layer = stack_class(NUM_LAYERS, 13, NUM_HEADS, **arguments)
    shapes = [SOURCE.shape] if stack_class is EncoderStack else [TARGET.shape] * 2
    layer.build(*shapes)
    return with_random_weights(layer)


@pytest.mark.once("torch")
@each_stack
def test_stacks_have_the_defaults_of_the_blocks(stack_class):
    given = inspect.signature(stack_class).parameters
    assert given.keys() - SHARED == {"num_layers", "rematerialize"}
    for name, parameter in SHARED.items():
        assert given[name].default == parameter.default, name


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("block", "stack"), [(EncoderBlock, EncoderStack), (DecoderBlock, DecoderStack)]
)
def test_stacks_take_the_call_arguments_of_their_blocks(block, stack):
    of_block, of_stack = (inspect.signature(x.call).parameters for x in (block, stack))
    assert of_block.keys() == of_stack.keys()
    for name in of_block:
        assert of_block[name].default == of_stack[name].default, name


@pytest.mark.once("torch")
@each_class
def test_every_design_comes_back_from_its_config(layer_class):
    for make in DESIGNS.values():
        layer = layer_class(**sizes(layer_class), **make(), dtype="mixed_bfloat16")
        stored = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
        restored = keras.saving.deserialize_keras_object(stored)
        assert type(restored) is layer_class
        assert restored.get_config() == layer.get_config()
        assert type(restored.positions) is type(layer.positions)


@pytest.mark.once("torch")
@each_class
def test_arguments_out_of_range_are_named(layer_class):
    wrong = {"num_heads": "2", "dropout": 1.0, "positions": "r"}
    if layer_class in STACKS:
        wrong["num_layers"] = 0
    for name, value in wrong.items():
        message = f"`{name}` must be .*`{name}={value!r}`"
        with pytest.raises((ValueError, TypeError), match=message):
            layer_class(**{**sizes(layer_class), name: value})
    layer = layer_class(**{**sizes(layer_class), "num_heads": 5})
    with pytest.raises(ValueError, match="`hidden_dim=12`, `num_heads=5`"):
        layer.build(TARGET.shape)


@pytest.mark.once("torch")
@each_class
def test_initializers(layer_class):
    layer = layer_class(
        **sizes(layer_class),
        kernel_initializer=keras.initializers.Constant(0.25),
        bias_initializer="ones",
    )
    layer = layer_class.from_config(layer.get_config())
    layer.build(TARGET.shape)
    kernels = [w for w in layer.weights if "kernel" in w.path]
    biases = [w for w in layer.weights if "bias" in w.path]
    assert len(kernels) == len(biases) >= 6
    assert all((to_numpy(kernel) == 0.25).all() for kernel in kernels)
    assert all((to_numpy(bias) == 1.0).all() for bias in biases)


@pytest.mark.once("torch")
@each_stack
def test_initializers_without_a_seed_differ_between_blocks(stack_class):
    layer = stack_class(NUM_LAYERS, 13, NUM_HEADS, kernel_initializer="he_normal")
    layer.build(TARGET.shape)
    kernels = [b.feed_forward.output_dense.kernel for b in layer.blocks]
    assert np.abs(to_numpy(kernels[0]) - to_numpy(kernels[1])).max() > 0.01


@pytest.mark.once("torch")
def test_masks_of_an_encoder_stack():
    layer = built(EncoderStack)
    holes = RNG.random((2, SOURCE_LENGTH, SOURCE_LENGTH)) < 0.6
    holes[:, :, 0] = True
    mask = holes & SOURCE_PADDING[:, None]
    weights, expected = layer.get_weights(), SOURCE
    for start in 0, 16:
        block = weights[start : start + 16]
        expected, _ = reference.encoder_block(block, expected, mask)
    output = layer(SOURCE, padding_mask=SOURCE_PADDING, attention_mask=holes)
    assert_close(output, expected)


def test_masks_of_a_decoder_stack():
    layer = built(DecoderStack)
    self_mask = TARGET_HOLES & TARGET_PADDING[:, None]
    cross_mask = SOURCE_HOLES & SOURCE_PADDING[:, None]
    weights, expected = layer.get_weights(), TARGET
    for start in 0, 26:
        block = weights[start : start + 26]
        expected, _, _ = reference.decoder_block(
            block, expected, SOURCE, self_mask, cross_mask
        )
    output = layer(
        TARGET,
        SOURCE,
        decoder_padding_mask=TARGET_PADDING,
        decoder_attention_mask=TARGET_HOLES,
        encoder_padding_mask=SOURCE_PADDING,
        encoder_attention_mask=SOURCE_HOLES,
        use_causal_mask=False,
    )
    assert_close(output, expected)


@pytest.mark.parametrize(
    ("stack_class", "is_batch"), [(EncoderStack, False), (DecoderStack, True)]
)
def test_packed_sequences_are_computed_as_they_are_apart(stack_class, is_batch):
    layer = stack_class(
        NUM_LAYERS, 13, NUM_HEADS, normalize_first=True, positions=RotaryEmbedding()
    )
    layer.build(TARGET.shape)
    with_random_weights(layer)
    owner = np.array([0, 0, 0, 1, 1])
    positions = np.array([0, 1, 2, 0, 1])
    is_encoder = stack_class is EncoderStack
    name = "attention_mask" if is_encoder else "decoder_attention_mask"
    output = layer(
        TARGET,
        positions=np.stack([positions] * 2) if is_batch else positions,
        **{name: (owner[:, None] == owner)[None]},
    )
    apart = [to_numpy(layer(TARGET[:, part])) for part in (slice(3), slice(3, 5))]
    assert_close(output, np.concatenate(apart, axis=1))


@pytest.mark.parametrize("is_one_tensor", [False, True])
def test_caches_of_a_decoder_stack_with_an_encoder(is_one_tensor):
    layer = built(DecoderStack)
    expected = layer(TARGET, SOURCE, encoder_padding_mask=SOURCE_PADDING)
    expected = to_numpy(expected)
    shape = (2, 2, LENGTH, NUM_HEADS, HIDDEN_DIM // NUM_HEADS)
    own = [np.zeros(shape, "float32") for _ in layer.blocks]
    cross = [b.cross_attention.compute_cache(SOURCE) for b in layer.blocks]
    if not is_one_tensor:
        pairs = layer.empty_caches(SOURCE, LENGTH)
        own, cross = (list(caches) for caches in zip(*pairs, strict=True))
    for index in range(LENGTH):
        output, own, cross = layer(
            TARGET[:, index : index + 1],
            encoder_padding_mask=SOURCE_PADDING,
            self_attention_cache=own,
            self_attention_cache_update_index=index,
            cross_attention_cache=cross,
        )
        assert_close(output[:, 0], expected[:, index])
    assert all(isinstance(x, KeyValues) != is_one_tensor for x in (*own, *cross))
