import numpy as np
import pytest

from keras_transformer.dataset.buckets import Buckets

pytestmark = pytest.mark.once


def random_lengths(count):
    return np.random.default_rng(3).integers([2, 3], [23, 31], [count, 2])


@pytest.mark.parametrize("count", [1, 13, 97, 499])
@pytest.mark.parametrize("max_shapes", [1, 3, 7])
def test_every_pair_once_where_it_fits(count, max_shapes):
    lengths = random_lengths(count)
    buckets = Buckets.choose(lengths, 101, max_shapes)
    filled = buckets.fill(lengths)
    assert len(filled) == len(buckets.rows) <= max_shapes
    for limits, rows, batches in zip(
        buckets.lengths, buckets.rows, filled, strict=True
    ):
        assert batches.shape == (len(batches), rows)
        assert rows * max(limits) <= 101
        assert (lengths[batches[batches >= 0]] <= limits).all()
    numbers = np.concatenate([batches.ravel() for batches in filled])
    assert sorted(numbers[numbers >= 0]) == list(range(count))
    for rows, batches in zip(buckets.rows, filled, strict=True):
        assert (batches < 0).sum() < rows
        assert (batches[:-1] >= 0).all()


def test_nearly_all_pairs_stay_in_their_own_bucket():
    lengths = random_lengths(499)
    buckets = Buckets.choose(lengths, 101, 5)
    for limits, batches in zip(buckets.lengths, buckets.fill(lengths), strict=True):
        narrower = buckets.lengths[buckets.lengths.sum(axis=1) < limits.sum()]
        held = (lengths[batches.ravel(), None] <= narrower).all(axis=-1).any(axis=-1)
        assert held.sum() < len(buckets.rows) * 13


def test_longest_pairs_move_on():
    lengths = np.array([[2, 2], [3, 3], [2, 3], [5, 5]])
    buckets = Buckets(np.array([[3, 3], [5, 5]]), [2, 2])
    narrow, wide = buckets.fill(lengths)
    assert narrow.tolist() == [[0, 2]]
    assert wide.tolist() == [[1, 3]]


@pytest.mark.parametrize("length, moves", [(6, True), (7, False)])
def test_a_batch_is_filled_up_where_moving_makes_more_padding(length, moves):
    """Two pairs in rows of 9: 2 * (2 * length - 9) more ids to move, 9 for a third."""
    lengths = np.array([[3, 3], [3, 3], [length, length]])
    buckets = Buckets(np.array([[4, 5], [length, length]]), [3, 3])
    narrow, wide = buckets.fill(lengths)
    assert narrow.tolist() == ([] if moves else [[0, 1, -1]])
    assert wide.tolist() == ([[0, 1, 2]] if moves else [[2, -1, -1]])


def test_other_pairs_fill_the_same_buckets():
    buckets = Buckets(np.array([[3, 3], [5, 4]]), [2, 3])
    assert [batches.tolist() for batches in buckets.fill(np.array([[2, 2]]))] == [
        [],
        [[0, -1, -1]],
    ]


def test_last_bucket_may_be_empty():
    lengths = np.array([[3, 5]] * 7 + [[2, 11]] * 3)
    buckets = Buckets.choose(lengths, 13, 8)
    assert buckets.lengths.tolist() == [[3, 5], [2, 11], [3, 11]]
    *_, last = buckets.fill(lengths)
    assert last.size == 0


@pytest.mark.parametrize("multiple", [2, 8])
@pytest.mark.parametrize("longest", [None, np.array([40, 40])])
def test_rows_are_a_multiple(multiple, longest):
    lengths = random_lengths(499)
    buckets = Buckets.choose(lengths, 240, 5, longest, multiple)
    assert all(rows % multiple == 0 for rows in buckets.rows)
    for limits, rows in zip(buckets.lengths, buckets.rows, strict=True):
        assert rows == multiple or rows * max(limits) <= 240
    numbers = np.concatenate([batches.ravel() for batches in buckets.fill(lengths)])
    assert sorted(numbers[numbers >= 0]) == list(range(499))
