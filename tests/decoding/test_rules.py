"""Every two of rules, least lengths, prefixes and penalties, against all sequences."""

import itertools

import numpy as np
import pytest
import reference
from rules import RULES, log_probs, score
from scripted_step import END, PAD, random_step

from keras_transformer.decoding import (
    BannedSequences,
    BeamSearch,
    GNMTLengthPenalty,
    GreedySearch,
    NoRepeatNGram,
    PowerLengthPenalty,
    RepetitionPenalty,
    Sampling,
    SuppressTokens,
)

STEP = random_step(3, max_length=5, seed=31)
LIMITS = [4, 2, 5]
MIN_LENGTHS = [3, 4, 0]
PREFIXES = [[3, PAD], [PAD, PAD], [4, 3]]
PENALTIES = {
    "none": (0.0, lambda length: 1.0),
    "gnmt": (GNMTLengthPenalty(0.8), lambda length: ((5 + length) / 6) ** 0.8),
    "power": (PowerLengthPenalty(1.2), lambda length: length**1.2),
}
OPTIONS = [*RULES, "min-length", "prefix"]
# Each option with two others, so that each meets every kind of the others.
PAIRS = [*zip(OPTIONS, OPTIONS[1:] + OPTIONS[:1], strict=True)]
each_pair = pytest.mark.parametrize("pair", PAIRS, ids="+".join)


def asked(pair):
    """The arguments of a search, and the tables that all sequences are made from."""
    rules = [RULES[name] for name in pair if name in RULES]
    min_lengths = MIN_LENGTHS if "min-length" in pair else [0, 0, 0]
    prefixes = PREFIXES if "prefix" in pair else [[], [], []]
    tables = [
        log_probs(
            STEP,
            row,
            rules,
            LIMITS[row],
            min_lengths[row],
            tuple(token for token in prefixes[row] if token != PAD),
        )
        for row in range(3)
    ]
    logits_processors = [rule.processor for rule in rules]
    return logits_processors, {"min_lengths": min_lengths, "prefixes": prefixes}, tables


@pytest.mark.parametrize(
    ("pair", "penalty"),
    [
        (("repetition", "no-repeat-2", "min-length", "prefix"), "gnmt"),
        *(
            pytest.param(pair, penalty, marks=pytest.mark.once("torch"))
            for pair, penalty in zip(PAIRS, itertools.cycle(PENALTIES), strict=False)
        ),
    ],
)
def test_a_beam_as_wide_as_the_tree_is_exhaustive_search(pair, penalty):
    logits_processors, arguments, tables = asked(pair)
    given, divisor = PENALTIES[penalty]
    search = BeamSearch(
        61, given, num_hypotheses=6, logits_processors=logits_processors
    )
    result = STEP.search(search, LIMITS, **arguments)
    for row, table in enumerate(tables):
        every = reference.exhaustive_search(table, END, LIMITS[row], divisor, PAD)
        best = [(ids, value) for ids, value in every if value > -np.inf][:6]
        count = len(best)
        ids_of_row, lengths = result.token_ids[row], result.lengths[row]
        found = [tuple(ids[:n]) for ids, n in zip(ids_of_row, lengths, strict=True)]
        assert found[:count] == [ids for ids, _ in best]
        np.testing.assert_allclose(
            result.scores[row, :count], [value for _, value in best], atol=3e-5
        )
        assert (lengths[count:] == 0).all()
        assert (result.scores[row, count:] == -np.inf).all()


@pytest.mark.once("torch")
@each_pair
def test_greedy_search_takes_the_best_allowed_token(pair):
    logits_processors, arguments, tables = asked(pair)
    result = STEP.search(GreedySearch(logits_processors), LIMITS, **arguments)
    for row, table in enumerate(tables):
        expected, total = [], 0.0
        while END not in expected and total > -np.inf:
            following = table(tuple(expected))
            expected.append(int(following.argmax()))
            total += following.max()
        found = total > -np.inf
        assert result.lengths[row, 0] == (len(expected) if found else 0)
        if found:
            assert result.token_ids[row, 0, : len(expected)].tolist() == expected
        np.testing.assert_allclose(result.scores[row, 0], total, atol=3e-5)


@pytest.mark.once("torch")
@each_pair
def test_samples_follow_the_processors(pair):
    logits_processors, arguments, tables = asked(pair)
    search = Sampling(17, temperature=1.5, logits_processors=logits_processors)
    result = STEP.search(search, LIMITS, **arguments)
    assert (result.scores[:, :-1] >= result.scores[:, 1:]).all()
    for row, table in enumerate(tables):
        distinct = set()
        every = reference.exhaustive_search(table, END, LIMITS[row], pad_token_id=PAD)
        allowed = [ids for ids, value in every if value > -np.inf]
        for ids, length, value in zip(*(part[row] for part in result[:3]), strict=True):
            tokens = ids[:length].tolist()
            distinct.add(tuple(tokens))
            if length:
                assert tokens.index(END) == length - 1
                np.testing.assert_allclose(score(table, tokens), value, atol=3e-5)
        assert distinct <= {(), *allowed}
        assert len(distinct) > 1 or len(allowed) < 3


@pytest.mark.once("torch")
def test_sentences_without_an_allowed_token():
    logits_processors = [SuppressTokens([END, 2, 3, 4])]
    for search in (
        GreedySearch(logits_processors),
        BeamSearch(2, logits_processors=logits_processors),
        Sampling(2, logits_processors=logits_processors),
    ):
        result = STEP.search(search, [4, 1, 4])
        assert result.lengths[:, 0].tolist() == [0, 1, 0]
        assert (result.token_ids[[0, 2]] == PAD).all()
        assert (result.scores[[0, 2]] == -np.inf).all()
        step = STEP[:1]
        step.search(search, 4)
        assert len(step.calls) == 1


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SuppressTokens([]), "`token_ids` must have at least one token"),
        (lambda: BannedSequences([]), "`sequences` must have at least one sequence"),
        (lambda: BannedSequences([[3], []]), "`sequences` must have at least one"),
        (lambda: NoRepeatNGram(0), "`size` must be an int .*; received `size=0`"),
        (lambda: NoRepeatNGram(2.5), "`size` must be an int .*; received `size=2.5`"),
        (lambda: RepetitionPenalty(0.0), "`factor` must be a positive number"),
    ],
)
def test_invalid_rules(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "rule", [SuppressTokens([3, 5]), BannedSequences([[3, 5]])], ids=["one", "two"]
)
def test_tokens_outside_the_vocabulary(rule):
    with pytest.raises(ValueError, match=r"from 0 to 4.*received \[5\]"):
        STEP.search(GreedySearch([rule]), LIMITS)
