import numpy as np
import pytest
from scripted_step import END, PAD, START, random_step, spell

from keras_transformer.decoding import (
    BeamSearch,
    GreedySearch,
    NoRepeatNGram,
    Sampling,
    SearchResult,
)

SEARCHES = {
    "greedy": GreedySearch(),
    "beam": BeamSearch(num_beams=3, num_hypotheses=2),
    "sampling": Sampling(num_samples=3),
}
each_search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES.keys())

STEP = random_step(4, seed=23)
LIMITS = [4, 1, 3, 2]


# What holds for every search.


@pytest.mark.once("torch")
@each_search
def test_finds_the_scripted_outputs(search):
    step = spell([4, 3, 4], [3], [2, 2, 2], [])
    result = step.search(search, limits=4)
    expected = [[4, 3, 4, END], [3, END, PAD, PAD], [2, 2, 2, END], [END] + 3 * [PAD]]
    assert result.token_ids[:, 0].tolist() == expected
    assert result.lengths[:, 0].tolist() == [4, 2, 4, 1]
    np.testing.assert_allclose(result.scores[:, 0], 0.0, atol=1e-4)


RULES = [NoRepeatNGram(2)]
MANY = random_step(9, seed=29)
EVERYTHING = {
    "limits": [4, 1, 3, 2, 4, 4, 1, 4, 3],
    "min_lengths": [0, 0, 2, 0, 3, 0, 0, 4, 0],
    "prefixes": [[PAD], [PAD], [3], [PAD], [4], [PAD], [PAD], [3], [PAD]],
    "attention": np.random.default_rng(1).random((9, 5, 3)),
}


@pytest.mark.parametrize(
    ("search", "room"),
    [
        (Sampling(num_samples=3), 2),
        (BeamSearch(3, 0.6, 3, coverage_penalty=0.2, logits_processors=RULES), 1),
    ],
    ids=["samples", "beams"],
)
def test_smaller_batches_give_the_same_results(search, room):
    together = MANY.search(search, **EVERYTHING)
    for one, other in zip(
        MANY.search(search, **EVERYTHING, room=room), together, strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.once("torch")
def test_the_last_sequences_continue_in_a_smaller_batch():
    long, short = [4, 3, 4], [3]
    step = spell(*2 * [long, short, short, long], *8 * [short])
    assert step.search(GreedySearch(), limits=4, room=4).lengths[:, 0].max() == 4
    assert step.calls == [16, 16, 4, 4]
    small = step[:8]  # not worth a smaller batch
    small.search(GreedySearch(), limits=4, room=4)
    assert small.calls == [8, 8, 8, 8]
    step = spell(*3 * [long], *5 * [short])
    step.search(GreedySearch(), limits=4, room=3)
    assert step.calls == [8, 8, 8, 2, 2]  # three are more than a quarter


@pytest.mark.once("torch")
@each_search
def test_an_endless_sentence_ends_at_its_limit(search):
    step = STEP[:]
    step.logits[:, :, END] = -50.0
    result = step.search(search, LIMITS)
    assert result.lengths[:, 0].tolist() == LIMITS
    for row, limit in enumerate(LIMITS):
        tokens = result.token_ids[row, 0]
        assert tokens[limit - 1] == END
        assert not np.isin(tokens[: limit - 1], [END, PAD]).any()
        assert (tokens[limit:] == PAD).all()
    assert (result.scores[:, 0] < -20.0).all()  # the forced end token is scored


@pytest.mark.once("torch")
@each_search
def test_the_limit_is_stronger_than_a_prefix(search):
    prefixes = [[3, 4, 3], [4, PAD, PAD], [3, 3, PAD], [4, 3, 4]]
    result = STEP.search(search, [2, 3, 1, 4], prefixes=prefixes)
    best = result.token_ids[:, 0].tolist()
    assert best[0] == [3, END, PAD, PAD]
    assert best[1][0] == 4
    assert best[2] == [END, PAD, PAD, PAD]
    assert best[3] == [4, 3, 4, END]


@pytest.mark.once("torch")
@pytest.mark.parametrize("search", [*SEARCHES.values()][:2], ids=[*SEARCHES][:2])
def test_special_ids_are_settings(search):
    step = STEP[:]
    new_ids = np.array([END, 3, PAD, 4, START])  # of pad, end, start, 3 and 4
    for length in range(4):
        for history in np.ndindex((5,) * length):
            logits = STEP.logits[:, STEP.node(history)]
            step.logits[:, step.node(new_ids[list(history)]), new_ids] = logits
    expected = STEP.search(search, LIMITS)
    result = step.search(
        search, LIMITS, pad_token_id=END, end_token_id=3, start_token_id=PAD
    )
    np.testing.assert_array_equal(result.token_ids, new_ids[expected.token_ids])
    np.testing.assert_allclose(result.scores, expected.scores, atol=1e-5)


@each_search
def test_scores_are_those_of_the_tokens(search):
    result = STEP.search(search, LIMITS)
    assert isinstance(result, SearchResult)
    assert result.token_ids.shape == (4, search.num_hypotheses, 4)
    assert result.lengths.shape == result.scores.shape == (4, search.num_hypotheses)
    assert [part.dtype for part in result] == ["int32", "int32", "float32", "bool"]
    alpha = getattr(search, "length_penalty", 0.0)
    for row, hypothesis in np.argwhere(result.lengths):
        length = int(result.lengths[row, hypothesis])
        score = STEP.score(row, result.token_ids[row, hypothesis, :length])
        np.testing.assert_allclose(
            result.scores[row, hypothesis],
            score / ((5 + length) / 6) ** alpha,
            atol=1e-5 * length,
        )


@pytest.mark.once("torch")
@each_search
def test_a_sentence_does_not_depend_on_its_batch_mates(search):
    together = STEP.search(search, LIMITS)
    assert len(np.unique(together.lengths[:, 0])) > 1
    for row, limit in enumerate(LIMITS):
        alone = STEP[row : row + 1].search(search, limit, max_length=4)
        np.testing.assert_array_equal(together.token_ids[row], alone.token_ids[0])
        np.testing.assert_array_equal(together.lengths[row], alone.lengths[0])
        np.testing.assert_allclose(together.scores[row], alone.scores[0], atol=1e-6)


# The parts they share.
