import numpy as np
import pytest
from keras import ops

from keras_transformer.decoding.top_candidates import BLOCK, argmax, top_candidates

RNG = np.random.default_rng(7)


def sorted_by_numpy(offsets, values, k):
    """The same by a stable sort of all sums."""
    sums = (offsets[:, :, None] + values).reshape(len(values), -1)
    best = np.argsort(-sums, axis=1, kind="stable")[:, :k]
    columns = values.shape[2]
    return np.take_along_axis(sums, best, axis=1), best // columns, best % columns


# Whole blocks, a part of one, less than one, fewer blocks than candidates.
@pytest.mark.parametrize("columns", [4 * BLOCK, 3 * BLOCK + 5, BLOCK, 3, 1])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", ["distinct", "equal"])
def test_equals_the_first_values_of_a_sort(columns, rows, kind):
    shape = (50, rows, columns)
    if kind == "distinct":
        values = RNG.permuted(np.arange(rows * columns * 50)).reshape(shape)
        offsets = RNG.integers(0, 3, shape[:2]) * 0.5
    else:
        values, offsets = RNG.integers(0, 4, shape), RNG.integers(0, 2, shape[:2])
    values, offsets = values.astype("float32"), offsets.astype("float32")
    k = min(8, rows * columns)
    found = top_candidates(*map(ops.convert_to_tensor, (offsets, values)), k)
    for one, other in zip(found, sorted_by_numpy(offsets, values, k), strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(one), other)


def test_banned_values_come_last():
    values = np.full((1, 2, BLOCK + 1), -np.inf, "float32")
    values[0, 1, BLOCK] = -5.0
    values[0, 0, 3] = -7.0
    offsets = np.array([[0.0, -1.0]], "float32")
    sums, rows, columns = top_candidates(
        *map(ops.convert_to_tensor, (offsets, values)), 4
    )
    assert ops.convert_to_numpy(sums).tolist() == [[-6.0, -7.0, -np.inf, -np.inf]]
    assert ops.convert_to_numpy(rows)[:, :2].tolist() == [[1, 0]]
    assert ops.convert_to_numpy(columns)[:, :2].tolist() == [[BLOCK, 3]]


@pytest.mark.parametrize("columns", [101, 4])
def test_argmax(columns):
    values = RNG.integers(0, 5, (4, 6, columns)).astype("float32")
    found = ops.convert_to_numpy(argmax(ops.convert_to_tensor(values)))
    np.testing.assert_array_equal(found, values.argmax(axis=-1))
