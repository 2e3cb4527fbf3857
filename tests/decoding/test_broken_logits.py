"""Searches end at logits without probabilities, and say that there is no output."""

from dataclasses import dataclass

import numpy as np
import pytest
from keras import ops
from scripted_step import END, PAD, random_step, written_step

from keras_transformer.decoding import (
    BeamSearch,
    GreedySearch,
    Sampling,
    SuppressTokens,
)
from keras_transformer.decoding.top_candidates import argmax, top_candidates

SEARCHES = {
    "greedy": GreedySearch(),
    "n-best": BeamSearch(num_beams=3, num_hypotheses=2),
    "groups": BeamSearch(4, num_beam_groups=2, diversity_penalty=1.0),
    "sampling": Sampling(num_samples=2, top_k=3, top_p=0.9, min_p=0.01),
}
each_search = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES.keys())

STEP = random_step(2, seed=23)
NAN = float("nan")


@each_search
@pytest.mark.parametrize("value", ["nan", "-inf"])
def test_the_search_of_a_broken_sentence_ends_without_a_hypothesis(search, value):
    step = STEP[:]
    tokens = [3] if value != "-inf" else [0, 1, 2, 3, 4]  # one, or all
    for node in range(step.logits.shape[1]):
        step.logits[0, node, tokens] = float(value)
    with np.errstate(invalid="ignore"):  # the key of a sentence is the sum of logits
        result = step.search(search, limits=4)
        unbroken = STEP.search(search, limits=4)
    assert (result.token_ids[0] == PAD).all()
    assert (result.lengths[0] == 0).all()
    assert np.isnan(result.scores[0]).all()
    for part, expected in zip(result, unbroken, strict=True):
        np.testing.assert_allclose(part[1], expected[1], atol=1e-6)


@pytest.mark.once("torch")
def test_another_hypothesis_wins_when_the_best_one_breaks():
    step = written_step({(): {3: 0.6, 4: 0.4}, (4,): {END: 1.0}})
    step.logits[0, step.node((3,)), 2] = NAN
    greedy = step.search(GreedySearch(), limits=4)
    assert np.isnan(greedy.scores).all()
    beam = step.search(BeamSearch(2, length_penalty=0.0), limits=4)
    assert beam.token_ids.tolist() == [[[4, END, PAD, PAD]]]
    np.testing.assert_allclose(beam.scores, [[np.log(0.4)]], atol=1e-4)


@pytest.mark.once("torch")
def test_a_broken_sample_comes_last():
    step = written_step({(): {3: 0.5, 4: 0.5}, (4,): {END: 1.0}})
    step.logits[0, step.node((3,)), :] = NAN
    result = step.search(Sampling(num_samples=16), limits=4)
    found = result.lengths[0] > 0
    assert 0 < found.sum() < 16
    assert found.tolist() == sorted(found, reverse=True)
    np.testing.assert_allclose(result.scores[0, found], np.log(0.5), atol=1e-4)
    assert np.isnan(result.scores[0, ~found]).all()


@dataclass(frozen=True)
class Undefined:
    """Gives a token the logit NaN."""

    token: int

    def __call__(self, logits, history):
        is_token = np.arange(logits.shape[-1]) == self.token
        return ops.where(ops.convert_to_tensor(is_token), NAN, logits)


@pytest.mark.once("torch")
@pytest.mark.parametrize("kind", [GreedySearch, BeamSearch, Sampling])
def test_a_processor_that_returns_nan_bans_the_token(kind):
    results = [
        STEP.search(kind(logits_processors=[rule]), limits=4)
        for rule in (Undefined(3), SuppressTokens([3]))
    ]
    for part, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(part, expected)


@dataclass(frozen=True)
class Endless(GreedySearch):
    """Never ends, as a faulty search of a user."""

    def advance(self, model, inputs, search_state):
        advanced = super().advance(model, inputs, search_state)
        return advanced._replace(done=ops.zeros_like(advanced.done))


@pytest.mark.once("torch")
@pytest.mark.parametrize("room", [None, 3])
def test_every_search_ends_after_the_greatest_limit(room):
    step = random_step(4, seed=1)
    step.search(Endless(), limits=4, max_length=4, room=room)
    steps = 4 if room is None else room + 4 * (4 - room)  # then one at a time
    assert len(step.calls) == steps


@pytest.mark.parametrize("columns", [5, 32, 75])
def test_a_row_with_nan_has_no_candidates(columns):
    rng = np.random.default_rng(columns)
    values = rng.normal(size=(3, 3, columns)).astype("float32")
    values[1, 0] = -NAN
    values[1, 1, ::3] = NAN
    values[2] = -NAN
    offsets = np.zeros((3, 3), "float32")
    offsets[0, 1], offsets[1, :2], offsets[2] = -np.inf, NAN, NAN
    found = top_candidates(*map(ops.convert_to_tensor, (offsets, values)), 4)
    sums = np.nan_to_num(values + offsets[:, :, None], nan=-np.inf)
    expected = -np.sort(-sums.reshape(3, -1), axis=1)[:, :4]
    np.testing.assert_array_equal(ops.convert_to_numpy(found.sums), expected)
    for places in (found.rows, found.columns, argmax(ops.convert_to_tensor(values))):
        places = ops.convert_to_numpy(places)
        assert (places >= 0).all() and (places < columns).all()
