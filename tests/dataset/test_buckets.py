import itertools
import math

import numpy as np
import pytest

from keras_transformer.dataset.buckets import Buckets, choose_lengths

pytestmark = pytest.mark.once("torch")


def random_lengths(count):
    return np.random.default_rng(3).integers([2, 3], [23, 31], [count, 2])


@pytest.mark.parametrize(("count", "max_shapes"), [(1, 3), (97, 1), (499, 7)])
def test_each_pair_is_in_one_batch_that_holds_it(count, max_shapes):
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


@pytest.mark.parametrize("length, moves", [(6, True), (7, False)])
def test_padding_rows_fill_a_batch_if_moving_needs_more_padding(length, moves):
    """Moving two pairs adds 2 * (2 * length - 9) ids, one row of padding adds 9."""
    lengths = np.array([[3, 3], [3, 3], [length, length]])
    buckets = Buckets(np.array([[4, 5], [length, length]]), [3, 3])
    narrow, wide = buckets.fill(lengths)
    assert narrow.tolist() == ([] if moves else [[0, 1, -1]])
    assert wide.tolist() == ([[0, 1, 2]] if moves else [[2, -1, -1]])


def test_last_bucket_is_kept_without_pairs():
    lengths = np.array([[3, 5]] * 7 + [[2, 11]] * 3)
    buckets = Buckets.choose(lengths, 13, 8)
    assert buckets.lengths.tolist() == [[3, 5], [2, 11], [3, 11]]
    *_, last = buckets.fill(lengths)
    assert last.size == 0


@pytest.mark.parametrize(("multiple", "longest"), [(8, None), (2, np.array([40, 40]))])
def test_rows_are_a_multiple_of_a_number(multiple, longest):
    lengths = random_lengths(499)
    buckets = Buckets.choose(lengths, 240, 5, longest, multiple)
    assert all(rows % multiple == 0 for rows in buckets.rows)
    for limits, rows in zip(buckets.lengths, buckets.rows, strict=True):
        assert rows == multiple or rows * max(limits) <= 240
    numbers = np.concatenate([batches.ravel() for batches in buckets.fill(lengths)])
    assert sorted(numbers[numbers >= 0]) == list(range(499))


# The choice of the lengths.


def size(lengths, shapes):
    """Returns the ids of all pairs, each in the narrowest shape that holds it."""
    fits = (lengths[:, None] <= shapes).all(axis=-1)
    return np.where(fits, shapes.sum(axis=1), 10**6).min(axis=1).sum()


@pytest.mark.parametrize("max_shapes", [1, 2, 3])
def test_lengths_have_the_least_padding_of_all_choices(max_shapes):
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


def test_a_further_shape_saves_the_padding_of_some_batches():
    lengths = np.random.default_rng(5).integers(3, 61, [4999, 1]) * [1, 1]
    sizes = {
        number: size(lengths, choose_lengths(lengths, number))
        for number in range(1, 13)
    }
    for tokens_per_batch, batches in ((1024, 4), (8192, 4), (200_000, 4)):
        least = batches * 2 * tokens_per_batch
        found = Buckets.choose(lengths, tokens_per_batch, None).lengths
        shapes = len(found)
        assert size(lengths, found) == sizes[shapes]
        assert sizes[1] - sizes[shapes] >= (shapes - 1) * least
        assert shapes == 12 or sizes[shapes] - sizes[shapes + 1] < least
    assert shapes == 1


def test_a_window_has_the_shapes_that_its_epoch_deserves():
    lengths = np.random.default_rng(5).integers(3, 61, [499, 1]) * [1, 1]
    whole = np.concatenate([lengths] * 10)
    batches = math.ceil(whole.sum() / 2 / 512)
    window = Buckets.choose(lengths, 512, None, epoch_batches=batches).lengths
    assert len(window) == len(Buckets.choose(whole, 512, None).lengths) > 3
    assert len(window) > len(Buckets.choose(lengths, 512, None).lengths)
