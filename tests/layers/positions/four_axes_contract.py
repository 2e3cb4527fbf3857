"""The contract of schemes that act in attention, whose inputs have four axes."""

import json
import pathlib
import tempfile

import keras
import numpy as np
from layer_contract import (
    get_mask,
    to_numpy,
    weight_gradients,
    with_mask,
    with_random_weights,
)


def check_scheme(scheme_class, init_kwargs, inputs, symbolic_shape, weight_shapes):
    """Checks the contract of a scheme that acts in attention.

    Args:
        scheme_class: class of the scheme.
        init_kwargs: arguments of its constructor.
        inputs: float32 array with four axes to call it with.
        symbolic_shape: shape of a `keras.Input` for them, without the batch.
        weight_shapes: shapes of its weights, in order.
    """
    _check_config(scheme_class, init_kwargs)
    scheme = scheme_class(**init_kwargs)
    assert not scheme.added_to_inputs
    np.testing.assert_equal(scheme(inputs).shape, inputs.shape)
    assert [tuple(w.shape) for w in scheme.trainable_weights] == weight_shapes
    assert scheme.non_trainable_weights == []
    _check_saved_model(scheme, inputs, symbolic_shape)
    _check_half_precision(scheme_class, init_kwargs, inputs)
    mask = np.array([[True] * (inputs.shape[1] - 1) + [False]] * len(inputs))
    np.testing.assert_array_equal(get_mask(scheme(with_mask(inputs, mask))), mask)


def _check_config(scheme_class, init_kwargs):
    name = f"keras_transformer>{scheme_class.__name__}"
    assert keras.saving.get_registered_name(scheme_class) == name
    scheme = scheme_class(**init_kwargs, name="custom", dtype="mixed_bfloat16")
    config = scheme.get_config()
    assert {key: config[key] for key in init_kwargs} == init_kwargs
    stored = json.loads(json.dumps(keras.saving.serialize_keras_object(scheme)))
    restored = keras.saving.deserialize_keras_object(stored)
    assert type(restored) is scheme_class
    assert restored.get_config() == config


def _check_saved_model(scheme, inputs, symbolic_shape):
    symbolic = keras.Input(symbolic_shape)
    output = scheme(symbolic)
    assert output.shape == (None, *symbolic_shape)
    model = keras.Model(symbolic, output)
    expected = to_numpy(with_random_weights(scheme)(inputs))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.keras"
        model.save(path)
        reloaded = keras.saving.load_model(path)
    np.testing.assert_allclose(to_numpy(reloaded(inputs)), expected, atol=1e-6)


def _check_half_precision(scheme_class, init_kwargs, inputs):
    scheme = scheme_class(**init_kwargs, dtype="mixed_float16")
    output = scheme(inputs)
    assert keras.backend.standardize_dtype(output.dtype) == "float16"
    assert all(w.dtype == "float32" for w in scheme.weights)
    gradients = weight_gradients(scheme, inputs)
    assert all(np.isfinite(x).all() for x in (to_numpy(output), *gradients))
