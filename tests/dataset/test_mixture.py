import itertools

import numpy as np
import pytest

from keras_transformer.dataset.mixture import (
    CorpusRange,
    MixedLines,
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


@pytest.mark.parametrize("weights", [None, np.array([3, 1]), [0.25, 2.5]])
@pytest.mark.parametrize("window", [1, 7, 18, 53])
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


def test_without_weights_all_corpora_end_in_the_same_window():
    mixture = Mixture([13, 5], None, 18)
    for number in range(3):
        assert mixture.window(number) == [
            CorpusRange(0, number, 0, 13),
            CorpusRange(1, number, 0, 5),
        ]


def test_an_empty_corpus_has_no_pairs():
    assert Mixture([0, 5], None, 5).window(1) == [CorpusRange(1, 1, 0, 5)]


def test_mixed_lines():
    lines, repetitions = MixedLines.of(
        [CorpusRange(0, 2, 3, 5), CorpusRange(1, 0, 7, 8)]
    )
    assert lines.tolist() == [[0, 3], [0, 4], [1, 7]]
    assert repetitions.tolist() == [2, 2, 0]


@pytest.mark.parametrize(
    "weights",
    [[1], [1, 2, 3], [1, 0], [1, -1], [1, float("nan")], 0.5, [1, "x"], [1, None]],
)
def test_bad_weights(weights):
    with pytest.raises(
        ValueError, match="`weights` must be one number above 0 for each"
    ):
        parse_weights(weights, 2)


@pytest.mark.parametrize("kind", [tuple, iter, np.float32])
def test_weights_of_any_type_of_number(kind):
    assert parse_weights(kind([0.5, 3]), 2) == [0.5, 3.0]


def test_weight_of_an_empty_corpus():
    with pytest.raises(ValueError, match="dropped of file number 2, counted from 1"):
        Mixture([13, 0], [1, 2], 7)
