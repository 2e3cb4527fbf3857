"""The contract of all layers, and functions for tests of layers."""

import json
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

HALF_POLICIES = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}


def check_layer(
    layer_class: type[keras.layers.Layer],
    init_kwargs: dict[str, Any],
    inputs: Sequence[np.ndarray],
    weight_shapes: Sequence[tuple[int, ...]],
    symbolic_shapes: Sequence[tuple[int | None, ...]] | None = None,
) -> None:
    """Checks the contract of a layer.

    Args:
        layer_class: class of the layer.
        init_kwargs: arguments of its constructor.
        inputs: float32 arrays to call it with; its output has the shape of the first.
        weight_shapes: shapes of the weights, in order.
        symbolic_shapes: shapes of `keras.Input` for them, without the batch. Defaults
            to `(None, dim)`.
    """
    symbolic_shapes = symbolic_shapes or [(None, x.shape[-1]) for x in inputs]
    _check_config(layer_class, init_kwargs)
    _check_weights_and_gradients(layer_class(**init_kwargs), inputs, weight_shapes)
    _check_functional_model(layer_class(**init_kwargs), inputs, symbolic_shapes)
    _check_half_precision(layer_class, init_kwargs, inputs)
    _check_mask_is_passed_on(layer_class(**init_kwargs), inputs)


def _check_config(layer_class, init_kwargs) -> None:
    name = f"keras_transformer>{layer_class.__name__}"
    assert keras.saving.get_registered_name(layer_class) == name
    layer = layer_class(**init_kwargs, name="custom", dtype="mixed_bfloat16")
    config = layer.get_config()
    assert layer_class.from_config(config).get_config() == config
    for argument, value in init_kwargs.items():
        assert config[argument] == value, argument
    stored = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    restored = keras.saving.deserialize_keras_object(stored)
    assert type(restored) is layer_class
    assert restored.name == "custom"
    assert restored.dtype_policy.name == "mixed_bfloat16"


def _check_weights_and_gradients(layer, inputs, weight_shapes) -> None:
    layer.build(*(x.shape for x in inputs))
    assert [tuple(w.shape) for w in layer.trainable_weights] == list(weight_shapes)
    assert layer.non_trainable_weights == []
    output, gradients = output_and_weight_gradients(with_random_weights(layer), *inputs)
    assert tuple(output.shape) == inputs[0].shape
    for weight, gradient in zip(layer.trainable_weights, gradients, strict=True):
        assert np.isfinite(gradient).all(), weight.path


def _check_functional_model(layer, inputs, symbolic_shapes) -> None:
    symbolic = [keras.Input(shape) for shape in symbolic_shapes]
    output = layer(*symbolic)
    assert output.shape == (None, *symbolic_shapes[0])
    assert output.dtype == "float32"
    model = keras.Model(symbolic, output)
    with_random_weights(layer)
    expected = to_numpy(model(list(inputs)))
    np.testing.assert_allclose(to_numpy(layer(*inputs)), expected, atol=1e-6)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        model.save(path)
        reloaded = keras.saving.load_model(path)
    np.testing.assert_allclose(to_numpy(reloaded(list(inputs))), expected, atol=1e-6)


def _check_half_precision(layer_class, init_kwargs, inputs) -> None:
    layer = layer_class(**init_kwargs, dtype="mixed_float16")
    layer.build(*(x.shape for x in inputs))
    output, gradients = output_and_weight_gradients(layer, *inputs)
    assert keras.backend.standardize_dtype(output.dtype) == "float16"
    assert all(w.dtype == "float32" for w in layer.weights)
    assert all(np.isfinite(x).all() for x in (to_numpy(output), *gradients))


def _check_mask_is_passed_on(layer, inputs) -> None:
    mask = np.ones(inputs[0].shape[:2], bool)
    mask[0, -1] = False
    first, *others = (with_mask(x, mask if x is inputs[0] else None) for x in inputs)
    np.testing.assert_array_equal(get_mask(layer(first, *others)), mask)


def on_torch(*values: Any) -> Any:
    """Returns parameters of a case that runs with PyTorch only.

    The first cases of a test run on every backend. The others differ from them in
    what the library does, and not in what a backend does.
    """
    return pytest.param(*values, marks=pytest.mark.once("torch"))


def with_random_weights(layer: Any, seed: int = 11) -> Any:
    """Returns the layer with random weights, also in place of zeros and ones."""
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(0.0, 0.5, w.shape) for w in layer.weights])
    return layer


def with_mask(array: Any, mask: np.ndarray | None) -> Any:
    """Returns a tensor with a Keras mask, like an output of `Embedding`."""
    tensor = ops.convert_to_tensor(np.array(array))
    if mask is not None:
        tensor._keras_mask = ops.convert_to_tensor(mask)
    return tensor


def get_mask(tensor: Any) -> np.ndarray:
    """Returns the Keras mask of a tensor."""
    return ops.convert_to_numpy(tensor._keras_mask)


def to_numpy(tensor: Any) -> np.ndarray:
    """Returns a float tensor as a float32 array."""
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


def weight_gradients(layer: Any, *inputs: Any, **options: Any) -> list[np.ndarray]:
    """Returns the gradients of the sum of squared outputs by the trainable weights."""
    _, gradients = output_and_weight_gradients(layer, *inputs, **options)
    return gradients


def output_and_weight_gradients(
    layer: Any, *inputs: Any, **options: Any
) -> tuple[Any, list[np.ndarray]]:
    """Returns the output too: JAX compiles one function for both."""
    variables = layer.trainable_variables

    def loss(*values: Any) -> Any:
        with keras.StatelessScope(zip(variables, values, strict=True)):
            outputs = layer(*inputs, **options)
        return ops.sum(ops.square(ops.cast(outputs, "float32"))), outputs

    if not variables:
        return layer(*inputs, **options), []
    values = [variable.value for variable in variables]
    computed, output = _GRADIENTS[keras.backend.backend()](loss, values)
    return output, list(map(to_numpy, computed))


def gradients(function: Callable[..., Any], *arguments: Any) -> list[np.ndarray]:
    """Returns the gradients of a scalar function by its tensor arguments."""
    tensors = [ops.convert_to_tensor(argument) for argument in arguments]
    compute = _GRADIENTS[keras.backend.backend()]
    computed, _ = compute(lambda *values: (function(*values), None), tensors)
    return list(map(to_numpy, computed))


# The gradients of the first result of a function, and its second result.


def _tensorflow_gradients(function, tensors):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(tensors)
        value, other = function(*tensors)
    zero = tf.UnconnectedGradients.ZERO
    return tape.gradient(value, tensors, unconnected_gradients=zero), other


def _jax_gradients(function, tensors):
    import jax

    compute = jax.grad(function, argnums=range(len(tensors)), has_aux=True)
    return jax.jit(compute)(*tensors)


def _torch_gradients(function, tensors):
    import torch

    tensors = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    unused = sum(0.0 * tensor.sum() for tensor in tensors)
    value, other = function(*tensors)
    return torch.autograd.grad(value + unused, tensors), other


_GRADIENTS = {
    "tensorflow": _tensorflow_gradients,
    "jax": _jax_gradients,
    "torch": _torch_gradients,
}
