import itertools

import numpy as np
import pytest

from keras_transformer.dataset.mixture import Draw, Mixture, as_weights, draw_lines

pytestmark = pytest.mark.once


def drawn(mixture, windows):
    """(corpus, repetition, line) of the pairs of some windows."""
    return [
        (draw.corpus, draw.repetition, line)
        for number in windows
        for draw in mixture.window(number)
        for line in range(draw.start, draw.stop)
    ]


@pytest.mark.parametrize("weights", [None, np.array([3, 1]), [0.25, 2.5]])
@pytest.mark.parametrize("window", [1, 7, 18, 53])
def test_corpora_are_gone_through_again_and_again(weights, window):
    found = drawn(Mixture([13, 5], weights, window), range(40))
    for corpus, size in enumerate([13, 5]):
        lines = [(repetition, line) for c, repetition, line in found if c == corpus]
        endless = ((n // size, n % size) for n in itertools.count())
        assert lines == list(itertools.islice(endless, len(lines)))


def test_windows_have_their_size_and_shares():
    mixture = Mixture([13, 5], [3, 1], 17)
    for number in range(23):
        assert abs(len(drawn(mixture, [number])) - 17) < 2
    shares = [corpus for corpus, _, _ in drawn(mixture, range(400))]
    assert shares.count(0) == 3 * shares.count(1) == 3 * 1700


def test_without_weights_all_corpora_end_together():
    mixture = Mixture([13, 5], None, 18)
    for number in range(3):
        assert mixture.window(number) == [
            Draw(0, number, 0, 13),
            Draw(1, number, 0, 5),
        ]


def test_no_pairs_of_an_empty_corpus():
    assert Mixture([0, 5], None, 5).window(1) == [Draw(1, 1, 0, 5)]


def test_drawn_lines():
    lines, repetitions = draw_lines([Draw(0, 2, 3, 5), Draw(1, 0, 7, 8)])
    assert lines.tolist() == [[0, 3], [0, 4], [1, 7]]
    assert repetitions.tolist() == [2, 2, 0]


@pytest.mark.parametrize(
    "weights",
    [[1], [1, 2, 3], [1, 0], [1, -1], [1, float("nan")], 0.5, [1, "x"], [1, None]],
)
def test_bad_weights(weights):
    with pytest.raises(ValueError, match="`weights` must be a number above 0 for each"):
        as_weights(weights, 2)


@pytest.mark.parametrize("kind", [tuple, iter, np.float32])
def test_weights_are_any_numbers(kind):
    assert as_weights(kind([0.5, 3]), 2) == [0.5, 3.0]


def test_weight_of_nothing():
    with pytest.raises(ValueError, match="dropped of file number 1, counted from 0"):
        Mixture([13, 0], [1, 2], 7)
