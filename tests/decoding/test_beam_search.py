import dataclasses

import numpy as np
import pytest
import reference
from keras import ops
from scripted_step import END, PAD, random_step, spell, written_step

from keras_transformer.decoding import BeamSearch, GreedySearch

NO_PENALTY = {"length_penalty": 0.0}
# "3" looks best at first, but "4" is the better whole: 0.4 against 0.6 * 0.4.
GARDEN_PATH = {
    (): {3: 0.6, 4: 0.4},
    (3,): {END: 0.3, 3: 0.4, 4: 0.3},
    (4,): {END: 1.0},
}


@pytest.mark.once("torch")
def test_finds_what_greedy_search_misses():
    result = written_step(GARDEN_PATH).search(BeamSearch(2, **NO_PENALTY), limits=4)
    assert result.token_ids.tolist() == [[[4, END, PAD, PAD]]]
    assert result.lengths.tolist() == [[2]]
    np.testing.assert_allclose(result.scores, [[np.log(0.4)]], atol=1e-4)


@pytest.mark.once("torch")
def test_the_length_penalty_decides_between_short_and_long():
    script = {(): {END: 0.4, 3: 0.6}, (3,): {3: 0.6, 4: 0.4}, (3, 3): {4: 1.0}}
    step = written_step(script)
    short = step.search(BeamSearch(2, length_penalty=0.0), limits=4)
    long = step.search(BeamSearch(2, length_penalty=2.0), limits=4)
    assert _hypotheses(short, 0) == [(END,)]
    assert _hypotheses(long, 0) == [(3, 3, 4, END)]
    np.testing.assert_allclose(short.scores, [[np.log(0.4)]], atol=1e-4)
    np.testing.assert_allclose(long.scores, [[np.log(0.36) / 1.5**2]], atol=1e-4)


@pytest.mark.parametrize(
    "alpha", [0.6, pytest.param(-0.5, marks=pytest.mark.once("torch"))]
)
def test_a_beam_as_wide_as_the_tree_is_exhaustive_search(alpha):
    limits, num_beams = [3, 1, 2], 13
    step = random_step(len(limits), max_length=3)
    result = step.search(
        BeamSearch(num_beams, length_penalty=alpha, num_hypotheses=num_beams),
        limits,
        max_length=4,
    )
    for row, limit in enumerate(limits):
        expected = reference.exhaustive_search(
            lambda history, row=row: step.log_probs(row, history),
            END,
            limit,
            penalty=lambda length: ((5 + length) / 6) ** alpha,
            pad_token_id=PAD,
        )
        count = len(expected)
        assert count == {1: 1, 2: 4, 3: 13}[limit]
        assert _hypotheses(result, row) == [tokens for tokens, _ in expected]
        scores = [score for _, score in expected]
        np.testing.assert_allclose(result.scores[row, :count], scores, atol=3e-5)
        assert (result.lengths[row, count:] == 0).all()
        assert (result.token_ids[row, count:] == PAD).all()
        assert (result.scores[row, count:] == -np.inf).all()


@dataclasses.dataclass(frozen=True)
class Favour:
    """A rule that raises a log-probability, above 0 even."""

    token_id: int
    bonus: float

    def __call__(self, logits, history):
        favoured = np.arange(logits.shape[-1]) == self.token_id
        return logits + self.bonus * ops.convert_to_tensor(favoured, "float32")


@pytest.mark.once("torch")
def test_the_best_is_found_if_a_processor_raises_later_scores():
    """To end at once looks better than all that can follow, but for the rule."""
    script = {(): {END: 0.6, 3: 0.4}, (3,): {END: 0.5, 4: 0.5}, (3, 4): {END: 1.0}}
    step, options = written_step(script), {**NO_PENALTY, "patience": np.inf}
    plain = step.search(BeamSearch(2, **options), limits=4)
    assert _hypotheses(plain, 0) == [(END,)]
    raised = BeamSearch(2, **options, logits_processors=[Favour(4, 2.0)])
    result = step.search(raised, limits=4)
    assert _hypotheses(result, 0) == [(3, 4, END)]
    np.testing.assert_allclose(result.scores, [[np.log(0.2) + 2]], atol=1e-4)


@pytest.mark.once("torch")
def test_one_beam_is_greedy_search():
    step = random_step(11, seed=31)
    limits = [1, 2, 3, 4] * 2 + [4, 4, 4]
    expected = step.search(GreedySearch(), limits)
    result = step.search(BeamSearch(1, **NO_PENALTY), limits)
    np.testing.assert_array_equal(result.token_ids, expected.token_ids)
    np.testing.assert_array_equal(result.lengths, expected.lengths)
    np.testing.assert_allclose(result.scores, expected.scores, atol=1e-5)


@pytest.mark.once("torch")
def test_a_finished_hypothesis_does_not_change():
    script = {(): {END: 0.2, 3: 0.8}, (3,): {3: 1.0}, (3, 3): {3: 1.0}}
    step = written_step(script)
    search = BeamSearch(2, num_hypotheses=2)
    result = step.search(search, limits=4)
    assert _hypotheses(result, 0) == [(3, 3, 3, END), (END,)]
    expected = [np.log(0.8) / 1.5**0.6, np.log(0.2)]
    np.testing.assert_allclose(result.scores, [expected], atol=1e-4)


@pytest.mark.once("torch")
def test_stops_when_no_hypothesis_can_improve():
    step = spell([3], [4])
    step.search(BeamSearch(3), limits=4)
    assert len(step.calls) == 2


# Two hypotheses of length 2 finish; the better one has log(0.4): a score of -0.92
# without a penalty, of -0.49 with α = 4. "3 3" has log(0.3) = -1.20, which α = 4 turns
# into -0.38 at length 3 and into -0.24 at length 4.
SLOW = {
    (): {3: 0.6, 4: 0.4},
    (3,): {END: 0.5, 3: 0.5},
    (4,): {END: 1.0},
    (3, 3): {3: 1.0},
}


@pytest.mark.once("torch")
@pytest.mark.parametrize("num_beams, alpha, calls", [(4, 4.0, 4), (2, 0.0, 2)])
def test_continues_while_a_longer_hypothesis_can_win(num_beams, alpha, calls):
    step = written_step(SLOW)
    result = step.search(BeamSearch(num_beams, length_penalty=alpha), limits=4)
    assert len(step.calls) == calls
    assert _hypotheses(result, 0) == [(3, 3, 3, END) if alpha else (4, END)]


# "3 END" scores -0.29 with α = 6. "3 3" has log(0.12) = -2.12, which is -0.38 at length
# 3, no better, but -0.19 at length 4.
LATE = {
    (): {3: 0.6, 4: 0.4},
    (3,): {END: 0.8, 3: 0.2},
    (4,): {END: 1.0},
    (3, 3): {3: 1.0},
}


@pytest.mark.once("torch")
@pytest.mark.parametrize(("options", "calls"), [({}, 2), ({"patience": 2}, 4)])
def test_patience(options, calls):
    step = written_step(LATE)
    result = step.search(BeamSearch(2, 6.0, **options), limits=4)
    assert len(step.calls) == calls
    assert _hypotheses(result, 0) == [(3, END) if calls == 2 else (3, 3, 3, END)]


@pytest.mark.once("torch")
@pytest.mark.parametrize(("patience", "calls"), [(0.5, 2), (9, 4)])
def test_early_stopping(patience, calls):
    step = written_step(SLOW)
    search = BeamSearch(2, 4.0, patience=patience, early_stopping=True)
    result = step.search(search, limits=4)
    assert len(step.calls) == calls
    assert _hypotheses(result, 0) == [(4, END) if calls == 2 else (3, 3, 3, END)]


@pytest.mark.parametrize(
    "vocabulary_size", [5, pytest.param(1009, marks=pytest.mark.once("torch"))]
)
def test_equal_hypotheses_are_sorted_by_token_ids(vocabulary_size):
    step = random_step(2, vocabulary_size, max_length=2)
    step.logits[:] = 0.0
    result = step.search(BeamSearch(3, 0.0, num_hypotheses=3), limits=2)
    expected = [(END,), (2, END), (3, END)]
    assert [_hypotheses(result, row) for row in range(2)] == [expected] * 2
    equal = step.search(BeamSearch(2, 0.0, num_hypotheses=2), 2, min_lengths=2)
    assert _hypotheses(equal, 0) == [(2, END), (3, END)]


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 0}, "`num_beams` must be an int of at least 1; .*=0`"),
        ({"num_hypotheses": 2.0}, "`num_hypotheses` must be an int of at least 1"),
        (
            {"num_beams": 3, "num_hypotheses": 4},
            "`num_hypotheses` must be at most `num_beams`; received "
            r"`num_hypotheses=4`, `num_beams=3`. Search with more beams",
        ),
        ({"length_penalty": np.inf}, "`length_penalty` must be .*penalty=inf`"),
        ({"length_penalty": "0.6"}, "`length_penalty` must be .*penalty='0.6'`"),
        ({"patience": 0}, "`patience` must be above 0; received"),
        ({"patience": float("nan")}, "`patience` must be above 0; received"),
        ({"coverage_penalty": -0.1}, "`coverage_penalty` must be a number of at"),
    ],
)
def test_invalid_options(options, message):
    with pytest.raises(ValueError, match=message):
        BeamSearch(**options)


def _hypotheses(result, row):
    """The hypotheses of one sentence, without padding."""
    pairs = zip(result.token_ids[row], result.lengths[row], strict=True)
    return [tuple(tokens[:length].tolist()) for tokens, length in pairs if length]
