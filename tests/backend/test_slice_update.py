import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.backend.compiling import compile_function
from keras_transformer.backend.slice_update import slice_update

X = np.arange(24.0, dtype="float32").reshape(2, 3, 4)
PART = -np.ones((2, 2, 4), "float32")


def test_replaces_a_part():
    expected = X.copy()
    expected[:, 1:] = PART

    def write(x, part, index):
        return slice_update(x * 1, part, index, axis=1)

    layer = keras.layers.Dense(1)
    layer.build((1, 1))
    for function in (write, compile_function(write, keras.Sequential([layer]))):
        written = function(*map(ops.convert_to_tensor, (X, PART, np.int32(1))))
        np.testing.assert_array_equal(ops.convert_to_numpy(written), expected)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="of PyTorch alone")
def test_writes_in_place_only_without_gradients():
    import torch

    x, part = torch.tensor(X), torch.tensor(PART)
    with torch.no_grad():
        assert slice_update(x, part, 0, axis=1) is x
    assert (x[:, :2] == -1).all()
    part.requires_grad = True
    written = slice_update(x, part, 1, axis=1)
    assert written is not x and (x[:, 2] >= 0).all()
    written.sum().backward()
    assert (part.grad == 1).all()
