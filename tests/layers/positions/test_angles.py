import math

import numpy as np
import pytest
from layer_contract import to_numpy

from keras_transformer.layers.positions.angles import position_angles


@pytest.mark.parametrize("dim", [1, 4, 7])
@pytest.mark.parametrize("positions", [[0, 3, 11], [[2], [5]]])
def test_equals_the_formula(dim, positions):
    positions = np.array(positions)
    expected = np.zeros((*positions.shape, math.ceil(dim / 2)))
    for index in np.ndindex(expected.shape):
        expected[index] = positions[index[:-1]] / 300 ** (2 * index[-1] / dim)
    angles = to_numpy(position_angles(positions, dim, 300))
    np.testing.assert_allclose(angles, expected, rtol=1e-6)
