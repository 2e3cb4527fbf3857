"""The cases of other toolkits' tests of beam search, as tables of histories.

Their probabilities depend on the step and on the beam; here on the history that has
this place in their search, which comes to the same.
"""

import numpy as np
import pytest
from scripted_step import END, written_step

from keras_transformer.decoding import (
    BeamSearch,
    GNMTLengthPenalty,
    PowerLengthPenalty,
)

pytestmark = pytest.mark.once("torch")

A, B = 3, 4


def check(result, row, expected):
    """Compares the n-best hypotheses with pairs of tokens and scores."""
    lengths = result.lengths[row]
    found = [
        tuple(ids[:length])
        for ids, length in zip(result.token_ids[row], lengths, strict=True)
    ]
    assert found == [tokens for tokens, _ in expected]
    scores = [score for _, score in expected]
    np.testing.assert_allclose(result.scores[row], scores, atol=1e-4)


# tensor2tensor's: penalty ((5 + n) / 6)^α, n counts the end token; alive and finished
# hypotheses are kept apart, as ours are.

TENSOR2TENSOR = [
    {
        (): {A: 0.1, END: 0.1, B: 0.8},
        (B,): {A: 0.4, END: 0.5, B: 0.1},
        (A,): {A: 0.2, END: 0.4, B: 0.4},
        (B, A): {A: 0.05, END: 0.9, B: 0.05},
        (B, B): {A: 0.4, END: 0.4, B: 0.2},
    },
    {
        (): {A: 0.1, END: 0.1, B: 0.8},
        (B,): {A: 0.3, END: 0.6, B: 0.1},
        (A,): {A: 0.2, END: 0.4, B: 0.4},
        (B, A): {A: 0.05, END: 0.9, B: 0.05},
        (B, B): {A: 0.4, END: 0.4, B: 0.2},
    },
]


def test_tensor2tensor_with_alpha():
    """The longer one wins in the first sentence, the shorter one in the second."""
    search = BeamSearch(2, length_penalty=GNMTLengthPenalty(3.5), num_hypotheses=2)
    result = written_step(*TENSOR2TENSOR).search(search, limits=3)
    long = [np.log(0.8 * share * 0.9) / (8 / 6) ** 3.5 for share in (0.4, 0.3)]
    short = [np.log(0.8 * share) / (7 / 6) ** 3.5 for share in (0.5, 0.6)]
    check(result, 0, [((B, A, END), long[0]), ((B, END), short[0])])
    check(result, 1, [((B, END), short[1]), ((B, A, END), long[1])])


# fairseq's: penalty n^p, n counts the end token; over as soon as there are as many
# finished hypotheses as beams, which is `early_stopping` here.

FAIRSEQ = [
    {
        (): {A: 0.9, B: 0.1},
        (A,): {END: 1.0},
        (B,): {A: 0.9, B: 0.1},
        (B, A): {A: 0.1, B: 0.9},
        (B, B): {END: 0.6, A: 0.2, B: 0.2},
    },
    {
        (): {A: 0.7, B: 0.3},
        (A,): {END: 0.25, A: 0.35, B: 0.4},
        (B,): {A: 0.1, B: 0.9},
        (A, B): {END: 0.6, A: 0.4},
        (B, B): {END: 0.01, B: 0.99},
        (B, B, B): {END: 0.1, A: 0.5, B: 0.4},
    },
]
SHORT = [((A, END), 0.9), ((A, B, END), 0.7 * 0.4 * 0.6)]
LONG = [((B, A, B, END), 0.1 * 0.9 * 0.9), ((A, B, A, END), 0.7 * 0.4 * 0.4)]


@pytest.mark.parametrize(
    "power, long_first",
    [(1.0, [False, True]), (0.0, [False, False]), (0.6, [False, False])]
    + [(5.0, [True, True])],
    ids=["normalized", "not-normalized", "for-short-ones", "for-long-ones"],
)
def test_fairseq(power, long_first):
    search = BeamSearch(
        2, PowerLengthPenalty(power), num_hypotheses=2, early_stopping=True
    )
    result = written_step(*FAIRSEQ).search(search, limits=10)
    for row, is_long in enumerate(long_first):
        pairs = [LONG[row], SHORT[row]] if is_long else [SHORT[row], LONG[row]]
        expected = [
            (tokens, np.log(probability) / len(tokens) ** power)
            for tokens, probability in pairs
        ]
        check(result, row, expected)


# OpenNMT-py's: no end token before the least length, and the n-best are those that have
# ended, however likely it was all along.


@pytest.mark.parametrize("min_length", [1, 3])
def test_open_nmt_does_not_end_before_the_least_length(min_length):
    always = {END: 0.8, A: 0.15, B: 0.05}
    histories = [(), (A,), (B,), (A, A), (A, B), (B, A), (B, B)]
    search = BeamSearch(2, length_penalty=0.0, num_hypotheses=2)
    step = written_step(dict.fromkeys(histories, always))
    result = step.search(search, limits=4, min_lengths=min_length)
    assert (result.lengths >= min_length).all()
    best = np.log(0.8) + (min_length - 1) * np.log(0.15)
    np.testing.assert_allclose(result.scores[:, 0], [best], atol=1e-4)
    assert result.token_ids[0, 0].tolist()[:min_length] == [A] * (min_length - 1) + [
        END
    ]
