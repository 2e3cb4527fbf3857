import math

import numpy as np
import pytest
from keras import ops
from scripted_step import END, PAD, ScriptedStep, random_step

from keras_transformer.decoding import GreedySearch, Sampling

STEP = random_step(3, seed=37)
LIMITS = [4, 3, 4]
LOGITS = np.log([[0.05, 0.4, 0.3, 0.15, 0.1]]).astype("float32")


def filtered(**options):
    """What tokens are drawn from, as NumPy probabilities."""
    logits = Sampling(**options).filter(ops.convert_to_tensor(LOGITS))
    return ops.convert_to_numpy(ops.softmax(logits))[0]


def test_frequencies_equal_the_probabilities():
    count = 20_000
    step = ScriptedStep(np.broadcast_to(LOGITS[:, None], (2, 31, 5)))
    result = step.search(Sampling(count), limits=2)
    for row in result.token_ids:
        drawn = np.bincount(row[:, 0], minlength=5) / count
        expected = np.array([0.0, 0.4, 0.3, 0.15, 0.1]) / 0.95
        deviation = np.sqrt(expected * (1 - expected) / count)
        assert (np.abs(drawn - expected) <= 4 * deviation).all()


@pytest.mark.once("torch")
def test_samples_of_other_sentences_seeds_and_places_differ():
    step = ScriptedStep(np.zeros((2, 2000, 5)))
    step.logits[1, 0, 3] += 0.01  # another sentence, nearly as probable
    step.logits[:, :, END] = -30.0
    search = Sampling(200)
    result = step.search(search, limits=5)
    other = step.search(search, limits=5, seed=1)
    first, second = (ids[:, :4] for ids in result.token_ids)
    for one, two in [
        (first, second),
        (first, other.token_ids[0, :, :4]),
        (first[:, :2], first[:, 2:]),
        (first[:100], first[100:]),
    ]:
        equal = np.mean(one == two)
        assert abs(equal - 1 / 3) < 4 * math.sqrt(2 / 9 / one.size)


@pytest.mark.once("torch")
def test_a_seed_gives_the_same_samples_again():
    one, again = (STEP.search(Sampling(5), LIMITS, seed=7) for _ in range(2))
    np.testing.assert_array_equal(one.token_ids, again.token_ids)


@pytest.mark.once("torch")
def test_the_lowest_temperature_is_greedy_search():
    result = STEP.search(Sampling(3, temperature=1e-4), LIMITS)
    expected = STEP.search(GreedySearch(), LIMITS)
    for sample in range(3):
        np.testing.assert_array_equal(
            result.token_ids[:, sample], expected.token_ids[:, 0]
        )
    np.testing.assert_allclose(result.scores[:, :1], expected.scores, atol=1e-5)


def test_scores_are_log_probabilities_of_the_model():
    result = STEP.search(Sampling(4, temperature=2.0, top_k=3, top_p=0.9), LIMITS)
    for row in range(3):
        for ids, length, score in zip(*(part[row] for part in result[:3]), strict=True):
            np.testing.assert_allclose(STEP.score(row, ids[:length]), score, atol=1e-5)
            assert PAD not in ids[:length]


FILTERS = [
    ({"temperature": 0.5}, np.square([0.05, 0.4, 0.3, 0.15, 0.1]) / 0.285),
    ({"top_k": 2}, [0.0, 4 / 7, 3 / 7, 0.0, 0.0]),
    ({"top_k": 9}, [0.05, 0.4, 0.3, 0.15, 0.1]),
    ({"top_p": 0.69}, [0.0, 4 / 7, 3 / 7, 0.0, 0.0]),
    ({"top_p": 0.71}, [0.0, 0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0.0]),
    ({"top_p": 1e-50}, [0.0, 1.0, 0.0, 0.0, 0.0]),  # 0 in float32
    ({"min_p": 0.3}, [0.0, 0.4 / 0.85, 0.3 / 0.85, 0.15 / 0.85, 0.0]),
    ({"top_k": 3, "min_p": 0.5}, [0.0, 4 / 7, 3 / 7, 0.0, 0.0]),
    ({"temperature": 2.0, "min_p": 0.6}, np.sqrt([0.0, 0.4, 0.3, 0.15, 0.0])),
]


def test_filters():
    for options, expected in FILTERS:
        expected = np.array(expected) / np.sum(expected)
        np.testing.assert_allclose(filtered(**options), expected, atol=1e-6)


def test_equally_probable_tokens_at_the_threshold_are_kept():
    logits = ops.convert_to_tensor(np.zeros((1, 4), "float32"))
    for options in ({"top_k": 2}, {"top_p": 0.3}):
        result = ops.convert_to_numpy(Sampling(**options).filter(logits))
        np.testing.assert_array_equal(result, 0.0)


@pytest.mark.parametrize(
    ("size", "top_p"), [(2, 0.9), (33, 1e-6), (33, 0.3), (5000, 0.9999)]
)
def test_top_p_keeps_the_smallest_set_that_is_probable_enough(size, top_p):
    rng = np.random.default_rng(size)
    logits = rng.normal(scale=[[0.01], [1.0], [20.0]], size=(3, size))
    logits[:, 1::3] = -np.inf
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    order = np.argsort(-probabilities, axis=1)
    sums = np.cumsum(np.take_along_axis(probabilities, order, axis=1), axis=1)
    result = Sampling(top_p=top_p).filter(ops.convert_to_tensor(logits, "float32"))
    kept = np.isfinite(ops.convert_to_numpy(result))
    for row in range(3):
        count = kept[row].sum()
        assert kept[row][order[row, :count]].all()
        # The sums of float32 numbers are not exact.
        assert sums[row, count - 1] > top_p - 1e-6
        assert count == 1 or sums[row, count - 2] < top_p + 1e-6


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "`num_samples` must be an int of at least 1; received"),
        ({"num_samples": 2.0}, "`num_samples` must be an int of at least 1"),
        ({"temperature": 0.0}, "`temperature` must be a number of at least 1e-06"),
        ({"temperature": 1e-40}, "`temperature` must be a number of at least 1e-06"),
        ({"top_k": 0}, "`top_k` must be an int of at least 1; received"),
        ({"top_k": 2.5}, "`top_k` must be an int of at least 1; received"),
        ({"temperature": 1e39}, "`temperature` must be .* and at most 1e.30"),
        ({"top_p": None}, "`top_p` must be above 0 and at most 1; received `top_p=No"),
        ({"top_p": 0.0}, "`top_p` must be above 0 and at most 1"),
        ({"top_p": 1.1}, "`top_p` must be above 0"),
        ({"min_p": 1.0}, "`min_p` must be at least 0 and below 1"),
    ],
)
def test_bad_numbers(options, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**options)
