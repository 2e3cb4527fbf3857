"""Phrases that must occur, against all sequences that have them."""

import numpy as np
import pytest
import reference
from scripted_step import END, PAD, random_step, written_step

from keras_transformer.decoding import BeamSearch, GreedySearch, NoRepeatNGram

# Tokens are 2, 3 and 4. The rows: two phrases that may overlap, none, a phrase twice,
# one that begins with another and overlaps itself, three of one token.
PHRASES = [[(3, 4), (4, 2)], [], [(3,), (3,)], [(2, 2, 3), (2, 2)], [(4,), (2,), (3,)]]
LIMITS = [5, 3, 5, 5, 5]
STEP = random_step(5, max_length=5, seed=17)
WIDE = 120  # as many continuations as a step has


def occurrences(tokens, phrase):
    """The number of times that a phrase occurs without overlap, from the left."""
    count, start = 0, 0
    while start + len(phrase) <= len(tokens):
        found = tuple(tokens[start : start + len(phrase)]) == phrase
        count += found
        start += len(phrase) if found else 1
    return count


def has_all(tokens, phrases):
    return all(occurrences(tokens, each) >= phrases.count(each) for each in phrases)


def every(row, step=STEP, limits=LIMITS, prefix=(), rule=lambda tokens: True):
    """All sequences with the phrases of a row, best first, and their scores."""
    found = reference.exhaustive_search(
        lambda history: step.log_probs(row, history),
        END,
        limits[row],
        lambda length: ((5 + length) / 6) ** 0.6,
        PAD,
    )
    return [
        (tokens, score)
        for tokens, score in found
        if has_all(tokens, PHRASES[row])
        and tokens[: len(prefix)] == prefix
        and rule(tokens)
    ]


def check_row(result, row, expected):
    count = len(expected)
    ids, lengths = result.token_ids[row], result.lengths[row]
    found = [tuple(x[:n].tolist()) for x, n in zip(ids, lengths, strict=True) if n]
    assert found == [tokens for tokens, _ in expected]
    scores = [score for _, score in expected]
    np.testing.assert_allclose(result.scores[row, :count], scores, atol=3e-5)
    assert (result.scores[row, count:] == -np.inf).all()


def test_a_beam_as_wide_as_the_tree_is_exhaustive_search():
    search = BeamSearch(WIDE, num_hypotheses=7, patience=np.inf)
    result = STEP.search(search, LIMITS, phrases=PHRASES)
    for row in range(5):
        check_row(result, row, every(row)[:7])
    assert len(every(0)) == 9  # 3 4 2, with a token before or after; 4 2 3 4; 3 4 4 2


@pytest.mark.once("torch")
def test_with_prefixes_and_rules():
    prefixes = [[PAD, PAD], [3, PAD], [2, 3], [4, PAD], [PAD, PAD]]
    rules = [NoRepeatNGram(2)]
    search = BeamSearch(WIDE, num_hypotheses=7, logits_processors=rules)
    result = STEP.search(search, LIMITS, phrases=PHRASES, prefixes=prefixes)
    for row, prefix in enumerate(prefixes):

        def has_no_repeat(tokens):
            pairs = [*zip(tokens, tokens[1:], strict=False)]
            return len(set(pairs)) == len(pairs)

        prefix = tuple(token for token in prefix if token != PAD)
        check_row(result, row, every(row, prefix=prefix, rule=has_no_repeat)[:7])


@pytest.mark.once("torch")
@pytest.mark.parametrize("num_beams", [1, 3])
def test_few_beams_find_all_phrases(num_beams):
    step = random_step(7, max_length=8, vocabulary_size=5, seed=23)
    # The phrases leave no other token, but they may overlap.
    phrases = [[(4, 3, 4), (3, 3), (4, 4)]] * 4 + [[(2, 2, 2), (2, 4)], [], [(3,)] * 7]
    result = step.search(BeamSearch(num_beams), 8, phrases=phrases)
    for row, entry in enumerate(phrases):
        tokens = result.token_ids[row, 0, : result.lengths[row, 0]].tolist()
        assert has_all(tokens, entry)
        assert tokens.index(END) == len(tokens) - 1
        np.testing.assert_allclose(
            result.scores[row, 0],
            step.score(row, tokens) / ((5 + len(tokens)) / 6) ** 0.6,
            atol=3e-5,
        )


@pytest.mark.once("torch")
def test_what_the_best_output_has_changes_nothing():
    step = random_step(11, max_length=6, seed=29)
    step.logits[:, :, END] -= 3
    search = BeamSearch(2, num_hypotheses=2)
    free = step.search(search, 6)
    best = [ids[: max(n - 1, 0)] for ids, n in zip(*_best(free), strict=True)]
    cut = [tuple(tokens[row % 3 :][:2]) for row, tokens in enumerate(best)]
    phrases = [[phrase] if phrase else [] for phrase in cut]
    assert sum(map(bool, phrases)) > 4
    result = step.search(BeamSearch(2), 6, phrases=phrases)
    assert len(step.calls) <= 6
    np.testing.assert_array_equal(result.token_ids[:, 0], free.token_ids[:, 0])
    np.testing.assert_array_equal(result.scores[:, 0], free.scores[:, 0])
    several = step.search(search, 6, phrases=phrases)
    assert (several.scores[:, 0] >= free.scores[:, 0] - 1e-6).all()
    assert len(step.calls) > 6  # the second hypotheses lack the phrases


def _best(result):
    return result.token_ids[:, 0].tolist(), result.lengths[:, 0].tolist()


@pytest.mark.once("torch")
def test_the_first_output_with_a_phrase_does_not_end_the_search():
    """Two beams with the phrase are worse than "2 END"; the third is better."""
    script = {
        (): {2: 0.05, 3: 0.95},
        (2,): {END: 0.4, 4: 0.6},
        (2, 4): {4: 0.5, 3: 0.5},
        (3,): {4: 1.0},
        (3, 4): {4: 1.0},
        (3, 4, 4): {END: 0.7, 2: 0.3},
    }
    result = written_step(script).search(BeamSearch(3, 0.0), 6, phrases=[[(2,)]])
    assert result.token_ids[0, 0].tolist() == [3, 4, 4, 2, END, PAD]
    np.testing.assert_allclose(result.scores, [[np.log(0.95 * 0.3)]], atol=1e-4)


@pytest.mark.once("torch")
def test_phrases_without_room_find_nothing():
    result = STEP.search(BeamSearch(3), 3, phrases=[[(3, 4, 3)]] * 5)
    assert (result.scores == -np.inf).all()
    assert (result.lengths == 0).all()
    assert (result.token_ids == PAD).all()


@pytest.mark.once("torch")
def test_rows_continue_in_smaller_batches():
    step = random_step(16, max_length=6, seed=31)
    phrases = [[(2, 3), (4,)] if row % 3 else [] for row in range(16)]
    result = step.search(BeamSearch(3), 6, phrases=phrases, room=2)
    for row in (0, 1, 5, 15):
        one = step[row : row + 1].search(
            BeamSearch(3), 6, phrases=phrases[row : row + 1]
        )
        np.testing.assert_array_equal(result.token_ids[row], one.token_ids[0])


@pytest.mark.once("torch")
def test_other_searches_find_no_phrases():
    with pytest.raises(ValueError, match="`search` must be a `BeamSearch`"):
        STEP.search(GreedySearch(), LIMITS, phrases=PHRASES)
