import itertools

import numpy as np
import pytest

from keras_transformer.dataset.lengths import choose_lengths

pytestmark = pytest.mark.once


def size(lengths, shapes):
    """Ids of all pairs, each in the narrowest shape that holds it."""
    fits = (lengths[:, None] <= shapes).all(axis=-1)
    return np.where(fits, shapes.sum(axis=1), 10**6).min(axis=1).sum()


@pytest.mark.parametrize("max_shapes", [1, 2, 3, 4])
def test_least_padding_of_all_choices(max_shapes):
    lengths = np.random.default_rng(5).integers([2, 3], [7, 8], [151, 2])
    lengths[:97, 1] = lengths[:97, 0] + 1
    whole = lengths.max(axis=0)
    grid = list(itertools.product(*map(np.unique, lengths.T)))
    best = min(
        size(lengths, np.array([*shapes, whole]))
        for shapes in itertools.combinations(grid, max_shapes - 1)
    )
    found = choose_lengths(lengths, max_shapes)
    assert size(lengths, found) == best
    assert found[-1].tolist() == whole.tolist()
    widths = found.sum(axis=1).tolist()
    assert widths == sorted(widths)


def test_sides_have_limits_of_their_own():
    lengths = np.array([[3, 17]] * 5 + [[19, 5]] * 7 + [[19, 17]])
    assert choose_lengths(lengths, 3).tolist() == [[3, 17], [19, 5], [19, 17]]


def test_no_more_shapes_than_help():
    lengths = np.array([[3, 5]] * 7 + [[2, 11]])
    assert choose_lengths(lengths, 8).tolist() == [[3, 5], [2, 11], [3, 11]]


def test_many_distinct_lengths():
    lengths = np.stack([np.arange(2, 2003), np.arange(2003, 2, -1)], axis=1)
    found = choose_lengths(lengths, 5)
    assert len(found) == 5
    assert found[-1].tolist() == [2002, 2003]
    assert size(lengths, found) < 0.8 * size(lengths, found[-1:])
