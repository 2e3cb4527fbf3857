import numpy as np
import pytest

from keras_transformer.dataset.subword_sampling.hashing import mix, uniform

pytestmark = pytest.mark.once


def test_every_part_counts():
    numbers = np.arange(53)
    hashes = [
        mix(3, numbers, 5),
        mix(3, numbers, 7),
        mix(2, numbers, 5),
        mix(2, 59, numbers),
        mix(numbers, 3),
    ]
    assert len(np.unique(np.concatenate(hashes))) == 5 * 53
    assert (mix(3, numbers[11], 5) == hashes[0][11]).all()


def test_uniform_and_independent():
    count = 20_000
    values = uniform(mix(7, np.arange(count + 1)))
    assert values.min() >= 0
    assert values.max() < 1
    cells = np.histogram2d(values[1:], values[:-1], bins=4, range=[[0, 1]] * 2)[0]
    assert abs(cells - count / 16).max() < 5 * (count / 16) ** 0.5
