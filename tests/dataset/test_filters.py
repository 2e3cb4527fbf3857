import numpy as np
import pytest

from keras_transformer.dataset.filters import Account, PairFilter

pytestmark = pytest.mark.once

LENGTHS = np.array([[2, 3], [1, 5], [5, 1], [8, 3], [3, 8], [4, 7], [4, 8], [2, 3]])
DUPLICATES = np.array([0, 1, 0, 1, 0, 0, 0, 1], bool)


def reasons(**limits):
    names = ("max_source_length", "max_target_length", "max_length_ratio")
    pair_filter = PairFilter(*(limits.get(name) for name in names))
    faults = pair_filter.faults(LENGTHS, DUPLICATES)
    return {name: np.flatnonzero(fault).tolist() for name, fault in faults.items()}


def test_first_reason_counts():
    assert reasons(max_source_length=7, max_target_length=7) == {
        "empty": [1, 2],
        "max_source_length": [3],
        "max_target_length": [4, 6],
        "max_length_ratio": [],
        "duplicate": [7],
    }


def test_length_ratio_without_end_tokens():
    """7 to 2 and 7 to 3 tokens are too unequal for 2, 6 to 3 are not."""
    found = reasons(max_length_ratio=2)
    assert found["max_length_ratio"] == [3, 4, 6]
    assert found["duplicate"] == [7]
    assert reasons(max_length_ratio=7 / 3)["max_length_ratio"] == [3, 4]


def test_no_limits():
    found = reasons()
    assert [name for name, pairs in found.items() if pairs] == ["empty", "duplicate"]


def test_account():
    account = Account()
    faults = {
        "empty": np.array([0, 1, 0], bool),
        "duplicate": np.array([1, 0, 0], bool),
    }
    account.add(faults)
    account.add(faults)
    assert account.pairs_read == 6
    assert account.dropped == {"empty": 2, "duplicate": 2}


def test_nothing_left():
    message = "all 2 were dropped: {'empty': 1, 'duplicate': 1}"
    with pytest.raises(ValueError, match=message):
        Account().add({"empty": np.array([0, 1]), "duplicate": np.array([1, 0])})
