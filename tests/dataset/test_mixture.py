import itertools

import numpy as np
import pytest

from keras_transformer.dataset.mixture import (
    Mixture,
    parse_weights,
)

pytestmark = pytest.mark.once("torch")


def mixed(mixture, windows):
    """Returns (corpus, repetition, line) of the pairs of some windows."""
    return [
        (each.corpus, each.repetition, line)
        for number in windows
        for each in mixture.window(number)
        for line in range(each.start, each.stop)
    ]


@pytest.mark.parametrize("weights", [None, np.array([3, 1])])
@pytest.mark.parametrize("window", [7, 53])
def test_corpora_are_repeated_endlessly(weights, window):
    found = mixed(Mixture([13, 5], weights, window), range(40))
    for corpus, size in enumerate([13, 5]):
        lines = [(repetition, line) for c, repetition, line in found if c == corpus]
        endless = ((n // size, n % size) for n in itertools.count())
        assert lines == list(itertools.islice(endless, len(lines)))


def test_windows_have_their_size_and_the_shares_of_the_weights():
    mixture = Mixture([13, 5], [3, 1], 17)
    for number in range(23):
        assert abs(len(mixed(mixture, [number])) - 17) < 2
    shares = [corpus for corpus, _, _ in mixed(mixture, range(400))]
    assert shares.count(0) == 3 * shares.count(1) == 3 * 1700


@pytest.mark.parametrize(
    "weights",
    [[1], [1, 2, 3], [1, 0], [1, float("nan")], 0.5, [1, "x"]],
)
def test_bad_weights(weights):
    with pytest.raises(
        ValueError, match="`weights` must be one number above 0 for each"
    ):
        parse_weights(weights, 2)


def test_weight_of_an_empty_corpus():
    with pytest.raises(ValueError, match="dropped of file number 2, counted from 1"):
        Mixture([13, 0], [1, 2], 7)
