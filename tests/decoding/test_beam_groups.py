"""Groups of beams, against the algorithm in plain Python."""

import collections

import numpy as np
import pytest
from scripted_step import END, PAD, random_step, written_step

from keras_transformer.decoding import BeamSearch, NoRepeatNGram

LIMITS = [4, 2, 5, 5]
PREFIXES = [[PAD, PAD], [PAD, PAD], [3, PAD], [2, 4]]
STEP = random_step(4, max_length=5, seed=37)


class Group:
    """The beams of a group and its finished hypotheses."""

    def __init__(self, size, kept):
        self.size, self.kept, self.done = size, kept, False
        self.beams, self.finished = [((), 0.0)], []

    def advance(self, log_probs, index, limit, prefix, penalty, lost, is_banned):
        """Chooses the next tokens; `lost` is what each token loses."""
        candidates = []
        is_last = index + 1 == limit
        forced = END if is_last else dict(enumerate(prefix)).get(index)
        for place, (history, total) in enumerate(self.beams):
            following = log_probs(history)
            for token, log_prob in enumerate(following):
                if token == PAD or forced not in (None, token):
                    continue
                if forced is None and is_banned(history, token):
                    continue
                score = total + log_prob
                key = score - lost[token]
                candidates.append((-key, place, token, (*history, token), score))
        candidates.sort()
        ended = [c for c in candidates[: self.size] if c[2] == END]
        if not self.done:
            divisor = penalty(index + 1)
            self.finished += [(score / divisor, ids) for *_, ids, score in ended]
            self.finished.sort(reverse=True)
        rest = [c for c in candidates[: 2 * self.size] if c[2] != END][: self.size]
        self.beams = [(ids, score) for *_, ids, score in rest]
        used = (
            collections.Counter()
            if self.done
            else collections.Counter(token for _, _, token, *_ in rest)
        )
        best = max((score for _, score in self.beams), default=-np.inf)
        bound = best / max(penalty(index + 1), penalty(limit))
        if len(self.finished) >= self.kept:
            self.done |= bound <= self.finished[self.kept - 1][0]
        return used


def diverse(row, search, limit, prefix=()):
    """The result of the search of one sentence, best first, and its scores."""
    count = search.num_beam_groups
    kept = -(-search.num_hypotheses // count)
    groups = [Group(search.num_beams // count, kept) for _ in range(count)]

    def penalty(length):
        return ((5 + length) / 6) ** search.length_penalty

    for index in range(limit):
        used = collections.Counter()
        for group in groups:
            lost = {token: search.diversity_penalty * used[token] for token in range(5)}
            used = used + group.advance(
                lambda history: STEP.log_probs(row, history),
                index,
                limit,
                prefix,
                penalty,
                lost,
                lambda history, token: search.logits_processors and token in history,
            )
    best = {ids: score for each in groups for score, ids in each.finished[:kept]}
    ordered = sorted(best.items(), key=lambda pair: -pair[1])
    return ordered[: search.num_hypotheses]


@pytest.mark.parametrize(
    ("search", "prefixes"),
    [
        (BeamSearch(4, 0.0, 4, np.inf, num_beam_groups=2, diversity_penalty=2.5), None),
        (
            BeamSearch(
                6,
                0.6,
                5,
                np.inf,
                logits_processors=[NoRepeatNGram(1)],
                num_beam_groups=3,
                diversity_penalty=0.7,
            ),
            PREFIXES,
        ),
    ],
    ids=["free", "prefix"],
)
def test_equals_the_algorithm_in_python(search, prefixes):
    result = STEP.search(search, LIMITS, prefixes=prefixes)
    for row, limit in enumerate(LIMITS):
        prefix = [token for token in (prefixes or PREFIXES[:1] * 4)[row] if token]
        expected = diverse(row, search, limit, tuple(prefix))
        ids, lengths = result.token_ids[row], result.lengths[row]
        found = [tuple(x[:n].tolist()) for x, n in zip(ids, lengths, strict=True) if n]
        assert found == [tokens for tokens, _ in expected]
        count = len(expected)
        scores = [score for _, score in expected]
        np.testing.assert_allclose(result.scores[row, :count], scores, atol=3e-5)
        assert (result.scores[row, count:] == -np.inf).all()
        assert (ids[count:] == PAD).all()


def hypotheses(result, row):
    pairs = zip(result.token_ids[row], result.lengths[row], strict=True)
    return [tuple(tokens[:length].tolist()) for tokens, length in pairs if length]


@pytest.mark.once("torch")
def test_a_large_penalty_has_no_effect_on_the_scores():
    """The prefix gives all groups the same token, which the second is penalised for."""
    script = {(): {3: 0.6, 4: 0.4}, (3,): {3: 0.9, 4: 0.1}, (3, 4): {4: 1.0}}
    options = {"num_beam_groups": 2, "diversity_penalty": 1e8}
    search = BeamSearch(2, 0.0, 2, **options)
    result = written_step(script).search(search, 4, prefixes=[[3]])
    assert hypotheses(result, 0) == [(3, 3, END), (3, 4, 4, END)]
    expected = np.log([0.6 * 0.9, 0.6 * 0.1])
    np.testing.assert_allclose(result.scores[0], expected, atol=1e-4)


@pytest.mark.once("torch")
def test_a_finished_group_has_no_effect():
    """The first group ends after two steps, but its beam continues with 2 and 4."""
    script = {
        (): {3: 0.9, 4: 0.1},
        (3,): {END: 0.99, 2: 0.01},
        (3, 2): {4: 1.0},
        (4,): {3: 1.0},
        (4, 3): {4: 0.6, 2: 0.4},
    }
    options = {"num_beam_groups": 2, "diversity_penalty": 9.0}
    result = written_step(script).search(BeamSearch(2, 0.0, 2, **options), 5)
    assert hypotheses(result, 0) == [(3, END), (4, 3, 4, END)]
    np.testing.assert_allclose(result.scores[0, 1], np.log(0.1 * 0.6), atol=1e-4)


@pytest.mark.once("torch")
def test_rows_continue_in_smaller_batches():
    step = random_step(16, max_length=6, seed=43)
    search = BeamSearch(4, num_hypotheses=2, num_beam_groups=2, diversity_penalty=1.0)
    result = step.search(search, [6, 3, 5, 6] * 4, room=2)
    for row in (0, 1, 6, 15):
        one = step[row : row + 1].search(search, [6, 3, 5, 6][row % 4], max_length=6)
        np.testing.assert_array_equal(result.token_ids[row], one.token_ids[0])


@pytest.mark.once("torch")
def test_the_coverage_penalty_of_each_group():
    attention = np.random.default_rng(5).uniform(size=(4, 5, 3))
    search = BeamSearch(
        4,
        0.0,
        2,
        coverage_penalty=0.4,
        num_beam_groups=2,
        diversity_penalty=1.0,
    )
    result = STEP.search(search, LIMITS, attention=attention)
    count = 0
    for row in range(4):
        found = hypotheses(result, row)
        count += len(found)
        for tokens, score in zip(found, result.scores[row], strict=False):
            seen = attention[row, [2, *tokens[:-1]]].sum(axis=0)
            expected = STEP.score(row, tokens) + 0.4 * np.log(np.minimum(seen, 1)).sum()
            np.testing.assert_allclose(score, expected, atol=3e-5)
    assert count > 4


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("groups", "penalty", "message"),
    [
        (0, 1.0, "`num_beam_groups` must be an int of at least 1"),
        (3, 1.0, "`num_beam_groups` must be a divisor of `num_beams`"),
        (2, 0.0, "`diversity_penalty` must be a positive number for several groups"),
        (2, np.inf, "`diversity_penalty` must be a positive number"),
        (2, "1", "`diversity_penalty` must be a positive number"),
        (1, 0.5, "and 0 for one; received `diversity_penalty=0.5`"),
    ],
)
def test_invalid_groups(groups, penalty, message):
    with pytest.raises(ValueError, match=message):
        BeamSearch(4, num_beam_groups=groups, diversity_penalty=penalty)


@pytest.mark.once("torch")
def test_groups_find_no_phrases():
    search = BeamSearch(4, num_beam_groups=2, diversity_penalty=0.5)
    with pytest.raises(ValueError, match="`BeamSearch` with one group of beams"):
        STEP.search(search, LIMITS, phrases=[[(3,)]] * 4)
