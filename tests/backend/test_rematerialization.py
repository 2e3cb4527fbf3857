"""Stacks and models that compute their blocks again for the gradient."""

import keras
import numpy as np
import pytest
from designs import DESIGNS
from keras import ops
from layer_contract import (
    get_mask,
    gradients,
    to_numpy,
    weight_gradients,
    with_mask,
    with_random_weights,
)

from keras_transformer import CausalLM, DecoderStack, EncoderStack, Seq2Seq
from keras_transformer.layers import stack

RNG = np.random.default_rng(59)
BATCH, LENGTH, SOURCE_LENGTH, NUM_LAYERS, HIDDEN_DIM = 3, 5, 7, 2, 8
TARGET = RNG.normal(size=(BATCH, LENGTH, HIDDEN_DIM)).astype("float32")
SOURCE = RNG.normal(size=(BATCH, SOURCE_LENGTH, HIDDEN_DIM)).astype("float32")
INPUTS = {EncoderStack: [SOURCE], DecoderStack: [TARGET, SOURCE]}
PADDING = np.arange(SOURCE_LENGTH) < [[SOURCE_LENGTH], [4], [1]]
MASKS = {EncoderStack: "padding_mask", DecoderStack: "encoder_padding_mask"}

each_stack = pytest.mark.parametrize("stack_class", INPUTS)


def pair(stack_class, **arguments):
    """The same stack, seeds included, without and with rematerialisation."""
    sizes = {"num_layers": NUM_LAYERS, "intermediate_dim": 11, "num_heads": 2}
    made = []
    for rematerialize in (False, True):
        keras.utils.set_random_seed(3)
        defaults = {"dropout": 0.2, "normalize_first": True, **sizes}
        layer = stack_class(**{**defaults, **arguments}, rematerialize=rematerialize)
        layer.build(*(x.shape for x in INPUTS[stack_class]))
        made.append(with_random_weights(layer))
    return made


def seeded(function, *args, **options):
    """Calls a function with the same dropout each time.

    On PyTorch, Keras's dropout draws from the global generator. On the other backends
    it draws from seeds that `pair` makes equal.
    """
    keras.utils.set_random_seed(3)
    return function(*args, **options)


def all_gradients(layer, *inputs, **options):
    """Gradients of the sum of the squared outputs by the weights and the inputs."""
    weights = layer.trainable_variables

    def loss(*values):
        mapping = zip(weights, values[: len(weights)], strict=True)
        with keras.StatelessScope(mapping):
            outputs = layer(*values[len(weights) :], **options)
        return ops.sum(ops.square(ops.cast(outputs, "float32")))

    return gradients(loss, *(weight.value for weight in weights), *inputs)


def seeds(layer):
    return [to_numpy(v) for v in layer.variables if "seed" in v.path]


def assert_all_close(actual, expected, rtol=1e-4):
    for one, other in zip(actual, expected, strict=True):
        scale = max(np.abs(other).max(), 1.0)
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * scale)


@pytest.mark.parametrize(
    ("stack_class", "design"), [(EncoderStack, "relative"), (DecoderStack, "modern")]
)
def test_gradients_are_those_of_the_plain_stack(stack_class, design):
    plain, layer = pair(stack_class, **DESIGNS[design]())
    options = {"training": True, MASKS[stack_class]: PADDING}
    expected = seeded(all_gradients, plain, *INPUTS[stack_class], **options)
    actual = seeded(all_gradients, layer, *INPUTS[stack_class], **options)
    assert_all_close(actual, expected)
    assert all(gradient.any() for gradient in expected[len(plain.weights) :])


@pytest.mark.once("torch")
@each_stack
def test_losses_of_activities_are_those_of_the_plain_stack(stack_class):
    regularizer = keras.regularizers.L2(0.1)
    options = {"attention_options": {"activity_regularizer": regularizer}}
    losses = []
    for layer in pair(stack_class, dropout=0.0, **options):
        inputs = [keras.Input(x.shape[1:]) for x in INPUTS[stack_class]]
        model = keras.Model(inputs, layer(*inputs))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        target = np.zeros_like(INPUTS[stack_class][0])
        steps = [model.train_on_batch(INPUTS[stack_class], target) for _ in range(2)]
        losses.append(steps)
    assert losses[0][1] != losses[0][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


@each_stack
def test_seeds_go_on_once(stack_class):
    plain, layer = pair(stack_class)
    before = seeds(layer)
    for _ in range(2):
        outputs = [
            seeded(own, *INPUTS[stack_class], training=True) for own in (plain, layer)
        ]
        np.testing.assert_allclose(*map(to_numpy, outputs), atol=1e-6)
    assert len(before) >= 2 * NUM_LAYERS
    draws = 0 if keras.backend.backend() == "torch" else 2
    for old, new, expected in zip(before, seeds(layer), seeds(plain), strict=True):
        np.testing.assert_array_equal(new, expected)
        np.testing.assert_array_equal(new - old, [0, draws])


def test_blocks_are_computed_again_for_the_gradient(monkeypatch):
    calls = []
    plain, layer = pair(EncoderStack)
    block_class = type(plain.blocks[0])
    call = block_class.call

    def counted(self, *args, **kwargs):
        calls.append(self)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(block_class, "call", counted)
    all_gradients(plain, SOURCE, training=True)
    assert len(calls) == NUM_LAYERS
    calls.clear()
    all_gradients(layer, SOURCE, training=True)
    assert all(calls.count(block) >= 2 for block in layer.blocks)


@each_stack
def test_nothing_changes_without_training(stack_class, monkeypatch):
    _, layer = pair(stack_class)
    monkeypatch.setattr(stack, "rematerialized_call", None)
    layer(*INPUTS[stack_class])
    with pytest.raises(TypeError, match="not callable"):
        layer(*INPUTS[stack_class], training=True)


def test_half_precision_and_frozen_blocks():
    plain, layer = pair(DecoderStack, dtype="mixed_bfloat16", **DESIGNS["relative"]())
    for own in (plain, layer):
        own.blocks[1].trainable = False
    expected, actual = (
        seeded(all_gradients, own, *INPUTS[DecoderStack], training=True)
        for own in (plain, layer)
    )
    assert len(expected) < len(layer.weights)
    assert_all_close(actual, expected, rtol=0.1)


def test_parts_of_full_precision():
    whole = {"dtype": "float32"}
    options = {f"{part}_options": whole for part in ("attention", "feed_forward")}
    plain, layer = pair(EncoderStack, dtype="mixed_bfloat16", **options)
    outputs = [to_numpy(seeded(own, SOURCE, training=True)) for own in (plain, layer)]
    np.testing.assert_allclose(*outputs, atol=1e-6)


@each_stack
def test_masks_that_inputs_carry(stack_class):
    arrays = INPUTS[stack_class]
    masks = [np.arange(x.shape[1]) < [[x.shape[1]], [3], [2]] for x in arrays]
    tensors = [with_mask(x, mask) for x, mask in zip(arrays, masks, strict=True)]
    plain, layer = pair(stack_class)
    expected = seeded(weight_gradients, plain, *tensors, training=True)
    actual = seeded(weight_gradients, layer, *tensors, training=True)
    assert_all_close(actual, expected)
    output = layer(*tensors, training=True)
    np.testing.assert_array_equal(get_mask(output), masks[0])
    unmasked = plain(*arrays, training=True)
    assert np.abs(to_numpy(unmasked) - to_numpy(output)).max() > 0.01


def test_attention_scores():
    options = {"training": True, "return_attention_scores": True}
    expected, actual = (
        keras.tree.flatten(seeded(own, TARGET, SOURCE, **options))
        for own in pair(DecoderStack)
    )
    assert_all_close(map(to_numpy, actual), map(to_numpy, expected))


def test_a_model_learns_the_same():
    rng = np.random.default_rng(5)
    inputs = {
        "encoder_token_ids": rng.integers(1, 13, (12, 7)),
        "decoder_token_ids": rng.integers(1, 13, (12, 5)),
    }
    inputs["encoder_token_ids"][::2, 4:] = 0
    targets = rng.integers(0, 13, (12, 5))
    losses, weights = [], []
    for rematerialize in (False, True):
        keras.utils.set_random_seed(3)
        model = Seq2Seq(
            num_layers=1,
            hidden_dim=8,
            intermediate_dim=11,
            num_heads=2,
            vocabulary_size=13,
            dropout=0.3,
            rematerialize=rematerialize,
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5), loss)
        fitted = model.fit(inputs, targets, batch_size=4, epochs=3, verbose=0)
        losses.append(fitted.history["loss"])
        weights.append(model.get_weights())
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert_all_close(*weights)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="only JAX tells what it will need"
)
def test_less_memory_on_a_cpu():
    """Where XLA would merge the recomputation with the forward pass."""
    import jax

    def needed(layer, x):
        def loss(values):
            scope = keras.StatelessScope(
                zip(layer.trainable_variables, values, strict=True)
            )
            with scope:
                return ops.sum(ops.square(layer(x, training=True)))

        values = [v.value for v in layer.trainable_variables]
        compiled = jax.jit(jax.grad(loss)).lower(values).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    x = ops.convert_to_tensor(RNG.normal(size=(16, 31, HIDDEN_DIM)))
    plain, layer = pair(EncoderStack, num_layers=4)
    assert needed(layer, x) < 0.7 * needed(plain, x)


@pytest.mark.once("jax")
@pytest.mark.parametrize(
    "options", [{"mode": "full"}, {"mode": "larger_than", "output_size_threshold": 1}]
)
def test_modes_of_keras_name_the_argument_that_works(options):
    with keras.RematScope(**options):
        model = CausalLM(
            num_layers=1,
            hidden_dim=4,
            intermediate_dim=5,
            num_heads=2,
            vocabulary_size=7,
        )
        with pytest.raises(ValueError, match="(?s)RematScope.*jax.*`rematerialize="):
            model(np.array([[5, 6, 3]]), training=True)
