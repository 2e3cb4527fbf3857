import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.backend.compiling import compile_function

INPUTS = np.arange(10, dtype="float32").reshape(2, 5)
KERNEL = np.linspace(-1.0, 1.0, 15, dtype="float32").reshape(5, 3)


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model.set_weights([KERNEL, np.zeros(3)])
    return model


@pytest.fixture
def traces():
    return []


@pytest.fixture
def compiled(model, traces):
    def function(inputs, scale):
        traces.append(inputs.shape)
        return {"outputs": model(inputs) * scale, "sums": ops.sum(inputs, axis=1)}

    return compile_function(function, model)


def test_equals_the_eager_call(compiled):
    result = compiled(ops.convert_to_tensor(INPUTS), ops.convert_to_tensor(2.0))
    outputs = ops.convert_to_numpy(result["outputs"])
    np.testing.assert_allclose(outputs, 2.0 * INPUTS @ KERNEL, rtol=1e-5)
    np.testing.assert_allclose(ops.convert_to_numpy(result["sums"]), [10.0, 35.0])


def test_new_weights_need_no_new_trace(model, compiled, traces):
    arguments = ops.convert_to_tensor(INPUTS), ops.convert_to_tensor(1.0)
    compiled(*arguments)
    model.set_weights([2 * KERNEL, np.ones(3)])
    outputs = ops.convert_to_numpy(compiled(*arguments)["outputs"])
    np.testing.assert_allclose(outputs, INPUTS @ (2 * KERNEL) + 1.0, rtol=1e-5)
    if keras.backend.backend() != "torch":  # which traces nothing
        assert len(traces) == 1


@pytest.mark.once("torch")
def test_many_functions_are_not_many_traces_of_one(model, caplog):
    """As of a model that is asked for a sixth search."""

    def make(number):
        return compile_function(lambda inputs: model(inputs) + number, model)

    import tensorflow as tf

    tf.get_logger().addHandler(caplog.handler)
    for number in range(6):
        make(number)(ops.convert_to_tensor(INPUTS))
    tf.get_logger().removeHandler(caplog.handler)
    assert caplog.messages == []


@pytest.mark.parametrize("change", ["enable_lora", "quantize"])
def test_lora_and_quantization_take_effect(model, compiled, change):
    arguments = ops.convert_to_tensor(INPUTS), ops.convert_to_tensor(1.0)
    before = ops.convert_to_numpy(compiled(*arguments)["outputs"])
    dense = model.layers[0]
    if change == "enable_lora":
        dense.enable_lora(rank=2)
        for weight in dense.trainable_weights:
            weight.assign(np.ones(weight.shape))
    else:
        dense.quantize("int8")
    outputs = ops.convert_to_numpy(compiled(*arguments)["outputs"])
    expected = ops.convert_to_numpy(model(INPUTS))
    np.testing.assert_allclose(outputs, expected, rtol=1e-5)
    assert np.abs(expected - before).max() > 1e-4


def test_each_shape_gives_its_own_result(compiled):
    for rows in (INPUTS, INPUTS[:1], INPUTS):
        result = compiled(ops.convert_to_tensor(rows), ops.convert_to_tensor(1.0))
        outputs = ops.convert_to_numpy(result["outputs"])
        np.testing.assert_allclose(outputs, rows @ KERNEL, rtol=1e-5)


def test_no_gradients_are_kept(compiled):
    result = compiled(ops.convert_to_tensor(INPUTS), ops.convert_to_tensor(1.0))
    assert not getattr(result["outputs"], "requires_grad", False)
