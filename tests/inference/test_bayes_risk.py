import numpy as np
import pytest
import sacrebleu

from keras_transformer import minimum_bayes_risk

pytestmark = pytest.mark.once("torch")

HYPOTHESES = [
    ["the cat sat on the mat", "the cat sits on a mat.", "a dog", "the cat sat on mat"],
    ["aaaa aab aaaab", "aab aaaa", "aaaab aaaab aaaa baab", "b", "aaaa aab aaaab"],
    ["", "x", "xy", "", "Überall ist es schön, sagt er.", "Überall  ist's schön"],
    ["only one"],
    ["", ""],
]
SCORES = [[-1, -0.5, -2, -1.5], [-3, -1, 0, -1, -2], [-4, -1, -1, -2, -9, -3], [-7]]
SCORES.append([-1, -2])


def sentence_chrf(hypothesis, reference):
    return sacrebleu.sentence_chrf(hypothesis, [reference]).score


def sentence_bleu(hypothesis, reference):
    return sacrebleu.sentence_bleu(hypothesis, [reference]).score


def overlap(hypothesis, reference):
    """Neither symmetric nor the same for all equal texts."""
    return len(set(hypothesis) & set(reference)) - len(reference) / 7


REFERENCES = {"chrf": sentence_chrf, "bleu": sentence_bleu, overlap: overlap}


def brute_force(candidates, utility, weights):
    """Every candidate with every candidate, duplicates and all."""
    expected = [
        np.average([utility(h, r) for r in candidates], weights=weights)
        for h in candidates
    ]
    best = max(range(len(candidates)), key=lambda i: round(expected[i], 9))
    return candidates[best], expected[best]


@pytest.mark.parametrize("utility", REFERENCES)
@pytest.mark.parametrize("scores", [None, SCORES], ids=["equal", "weighted"])
def test_the_choice_equals_brute_force(utility, scores):
    result = minimum_bayes_risk(HYPOTHESES, utility, scores)
    assert result.utilities.shape == (5,)
    assert result.utilities.dtype == "float64"
    for number, candidates in enumerate(HYPOTHESES):
        weights = np.exp(scores[number]) if scores else None
        expected = brute_force(candidates, REFERENCES[utility], weights)
        assert result.texts[number] == expected[0]
        np.testing.assert_allclose(result.utilities[number], expected[1], atol=1e-9)


def test_duplicates_are_counted():
    assert minimum_bayes_risk([["ab", "xy", "xy"]]).texts == ["xy"]
    np.testing.assert_allclose(
        minimum_bayes_risk([["ab", "xy", "xy"]]).utilities, [200 / 3]
    )
    calls = []

    def utility(hypothesis, reference):
        calls.append((hypothesis, reference))
        return float(hypothesis == reference)

    minimum_bayes_risk([["ab", "xy", "xy", "ab", "xy"]], utility)
    assert len(calls) == 4


def test_the_first_of_equally_good_ones():
    for candidates in (["ab", "xy"], ["xy", "ab"], ["xy", "ab", "xy", "ab"]):
        assert minimum_bayes_risk([candidates]).texts == candidates[:1]


def test_equal_scores_change_nothing():
    plain = minimum_bayes_risk(HYPOTHESES[:1])
    weighted = minimum_bayes_risk(HYPOTHESES[:1], scores=np.full((1, 4), -1e4))
    assert plain.texts == weighted.texts
    np.testing.assert_allclose(plain.utilities, weighted.utilities)


def test_a_missing_candidate():
    def longest(hypothesis, reference):
        return -len(hypothesis)

    scores = np.array([[-1, -1, -np.inf]], "float32")
    result = minimum_bayes_risk([["abc", "ab", ""]], longest, scores)
    assert result.texts == ["ab"]
    assert result.utilities == [-2]


def test_no_sentences():
    texts, utilities = minimum_bayes_risk([])
    assert texts == []
    assert utilities.shape == (0,)


def test_errors():
    message = "`utility` must be 'bleu' or 'chrf', or a function .*`utility='ter'`"
    with pytest.raises(ValueError, match=message):
        minimum_bayes_risk([["a"]], "ter")
    for hypotheses in (["ab", "cd"], [["ab"], []]):
        with pytest.raises(ValueError, match="must be a list of at least one cand"):
            minimum_bayes_risk(hypotheses)
    with pytest.raises(ValueError, match="`scores` must have a row for each .* 2 rows"):
        minimum_bayes_risk([["a"]], scores=[[1.0], [2.0]])
    for row in ([1.0, 2.0], [-np.inf], [np.nan]):
        with pytest.raises(ValueError, match="`scores` must have a number for each"):
            minimum_bayes_risk([["a"]], scores=[row])
