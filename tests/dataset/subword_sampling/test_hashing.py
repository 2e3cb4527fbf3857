import numpy as np
import pytest

from keras_transformer.dataset.subword_sampling.hashing import hash_integers, to_uniform

pytestmark = pytest.mark.once("torch")


def test_hash_depends_on_every_part():
    numbers = np.arange(53)
    hashes = [
        hash_integers(3, numbers, 5),
        hash_integers(3, numbers, 7),
        hash_integers(2, numbers, 5),
        hash_integers(2, 59, numbers),
        hash_integers(numbers, 3),
    ]
    assert len(np.unique(np.concatenate(hashes))) == 5 * 53
    assert (hash_integers(3, numbers[11], 5) == hashes[0][11]).all()


def test_hashes_are_uniform_and_independent():
    count = 20_000
    values = to_uniform(hash_integers(7, np.arange(count + 1)))
    assert values.min() >= 0
    assert values.max() < 1
    cells = np.histogram2d(values[1:], values[:-1], bins=4, range=[[0, 1]] * 2)[0]
    assert abs(cells - count / 16).max() < 5 * (count / 16) ** 0.5
