import numpy as np
from keras import ops
from layer_contract import to_numpy

from keras_transformer.layers import PositionScheme
from keras_transformer.layers.positions.logit_bias import add_bias
from keras_transformer.layers.positions.scheme import relative_positions


class Ahead(PositionScheme):
    """Adds the same to every head: how far the key is ahead of the query."""

    def bias(self, query_positions, key_positions):
        relative = relative_positions(query_positions, key_positions)
        return ops.cast(relative, "float32")[..., None, :, :]


def test_relative_positions():
    queries, keys = np.array([[4, 5], [0, 9]]), np.array([3, 4, 8])
    relative = to_numpy(relative_positions(queries, keys)).tolist()
    assert relative == [[[-1, 0, 4], [-2, -1, 3]], [[3, 4, 8], [-6, -5, -1]]]


def test_positions_are_counted_unless_given():
    logits = np.full((2, 3, 2, 3), 0.5, "float32")
    biased = to_numpy(add_bias(Ahead(), logits))
    for matrix in biased.reshape(-1, 2, 3):
        assert matrix.tolist() == [[0.5, 1.5, 2.5], [-0.5, 0.5, 1.5]]
    biased = to_numpy(add_bias(Ahead(), logits, query_positions=np.array([7, 5])))
    assert biased[1, 2].tolist() == [[-6.5, -5.5, -4.5], [-4.5, -3.5, -2.5]]
    biased = to_numpy(add_bias(Ahead(), logits, key_positions=np.array([2, 5, 9])))
    assert biased[1, 2].tolist() == [[2.5, 5.5, 9.5], [1.5, 4.5, 8.5]]
