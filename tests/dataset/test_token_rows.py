import numpy as np
import pytest

from keras_transformer.dataset.token_rows import TokenPairs, TokenRows

pytestmark = pytest.mark.once("torch")

ROWS = [[5, 7], [], [11, 13, 17], [19]]


def make_rows(rows):
    token_ids = np.array([id for row in rows for id in row], np.int32)
    return TokenRows(token_ids, np.array([len(row) for row in rows]))


def as_lists(rows):
    return [row.tolist() for row in np.split(rows.token_ids, rows.lengths.cumsum())][
        :-1
    ]


def test_pad():
    padded = make_rows(ROWS).pad(np.array([2, -1, 0, 1]), 2, 3)
    assert padded.tolist() == [[11, 13], [3, 3], [5, 7], [3, 3]]
    assert padded.dtype == np.int32
    assert make_rows(ROWS).pad(np.array([3, 2]), 5, 0).tolist() == [
        [19, 0, 0, 0, 0],
        [11, 13, 17, 0, 0],
    ]


@pytest.mark.parametrize("numbers", [[], [1], [3, 0, 0, 2], [0, 1, 2, 3]])
def test_take(numbers):
    taken = make_rows(ROWS).take(np.array(numbers, np.int64))
    assert as_lists(taken) == [ROWS[number] for number in numbers]


def test_concatenate():
    rows = TokenRows.concatenate([make_rows(ROWS[:1]), make_rows(ROWS[1:])])
    assert as_lists(rows) == ROWS


def test_sum():
    sums = make_rows(ROWS).sum(np.array([1, 2, 3, 4, 5, 6]))
    assert sums.tolist() == [3, 0, 12, 6]


def test_pairs():
    lines = np.array([[0, 3], [1, 5]])
    pairs = TokenPairs(make_rows([[4], [5, 6]]), make_rows([[2, 7, 3], [2, 3]]), lines)
    assert pairs.lengths.tolist() == [[1, 2], [2, 1]]
    taken = pairs.take(np.array([1]))
    assert as_lists(taken.source) == [[5, 6]]
    assert as_lists(taken.target) == [[2, 3]]
    assert taken.lines.tolist() == [[1, 5]]
