import math
import random

import numpy as np
import pytest

from keras_transformer.evaluation import (
    METRICS,
    bleu,
    character_error_rate,
    check_tokenize,
    chrf,
    sequence_error_rate,
    text_scores,
    token_error_rate,
    translation_scores,
)
from keras_transformer_runtime import bleu as bleu_metric

pytestmark = pytest.mark.once("torch")

FUNCTIONS = [
    *(bleu, chrf, sequence_error_rate),
    *(token_error_rate, character_error_rate, text_scores),
]


def edit_distance(first, second):
    """Computes the edit distance with the textbook recursion over prefixes."""
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, start=1):
        previous, row = row, [i]
        for j, b in enumerate(second, start=1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (a != b)))
    return row[-1]


def test_bleu_derived_by_hand():
    # 1- to 4-gram precisions 5/6, 4/5, 3/4, 2/3; brevity penalty exp(1 - 7/6).
    result = bleu(["a b c d e x"], ["a b c d e f g"])
    precisions = (5 / 6) * (4 / 5) * (3 / 4) * (2 / 3)
    assert result.score == pytest.approx(
        100 * math.exp(1 - 7 / 6) * precisions**0.25, abs=1e-9
    )


def test_bleu_pools_counts_over_the_corpus():
    # Precisions 8/9, 6/7, 4/5, 2/3 over both items, no brevity penalty.
    result = bleu(["a b c d", "e f g h x"], ["a b c d", "e f g h i"])
    expected = 100 * ((8 / 9) * (6 / 7) * (4 / 5) * (2 / 3)) ** 0.25
    assert result.score == pytest.approx(expected, abs=1e-9)


def test_bleu_ignores_case_only_with_lowercase():
    hypotheses, references = ["The Cat Sat Down ."], ["the cat sat down ."]
    assert bleu(hypotheses, references).score < 50
    lowercased = bleu(hypotheses, references, lowercase=True)
    assert lowercased.score == pytest.approx(100)
    assert "case:lc" in lowercased.signature
    assert "tok:13a" in lowercased.signature


def test_bleu_of_text_without_spaces():
    hypothesis, reference = "我们都是好人吗", "我们都是好人。"
    assert bleu([hypothesis], [reference]).score == 0
    # Precisions 6/7, 5/6, 4/5 and 3/4 of characters, no brevity penalty.
    expected = 100 * ((6 / 7) * (5 / 6) * (4 / 5) * (3 / 4)) ** 0.25
    for tokenize in ("zh", "char"):
        result = bleu([hypothesis], [reference], tokenize=tokenize)
        assert result.score == pytest.approx(expected, abs=1e-9)
        assert f"tok:{tokenize}" in result.signature


def test_unknown_tokenizer():
    message = "`tokenize` must be one of sacreBLEU's .*'13a'.*; received `tokenize='x'`"
    for check in (check_tokenize, lambda name: bleu(["a"], ["a"], tokenize=name)):
        with pytest.raises(ValueError, match=message):
            check("x")


@pytest.mark.parametrize(
    "failure, error, message",
    [
        (ImportError("get it\nhere"), ModuleNotFoundError, "package .* get it here"),
        (
            RuntimeError("MeCab"),
            ModuleNotFoundError,
            "requires a package .* reports: Me",
        ),
        (OSError("no network"), OSError, "a file that sacreBLEU downloads .* no netw"),
    ],
)
def test_unavailable_tokenizer(monkeypatch, failure, error, message):
    class Failing:
        TOKENIZERS = bleu_metric.BLEU.TOKENIZERS

        def __init__(self, **options):
            raise failure

    monkeypatch.setattr(bleu_metric, "BLEU", Failing)
    with pytest.raises(error, match=message):
        check_tokenize("ja-mecab")


def test_translation_scores():
    hypotheses, references = ["The Cat sat Down ."], ["the cat sat down ."]
    options = {"lowercase": True, "tokenize": "char"}
    scores = translation_scores(hypotheses, references, **options)
    assert scores == {
        "bleu": bleu(hypotheses, references, **options),
        "chrf": chrf(hypotheses, references, lowercase=True),
    }
    assert translation_scores(hypotheses, references)["chrf"].score < 100


def test_chrf_derived_by_hand():
    # "ab" against "abc": precisions 1, 1; recalls 2/3, 1/2; no longer n-grams exist.
    precision, recall = 1, (2 / 3 + 1 / 2) / 2
    expected = 100 * 5 * precision * recall / (4 * precision + recall)
    result = chrf(["ab"], ["abc"])
    assert result.score == pytest.approx(expected, abs=1e-9)
    assert "chrF2" not in result.signature and "nc:6|nw:0" in result.signature


@pytest.mark.parametrize("metric", [bleu, chrf])
def test_any_reference_can_match(metric):
    hypotheses = ["a b c d e", "f g h i j", "k l m n o"]
    references = [["x y z u v", "a b c d e"], "f g h i j", ["k l m n o"]]
    assert metric(hypotheses, references).score == pytest.approx(100)
    assert "nrefs:var" in metric(hypotheses, references).signature
    references[0] = ["x y z u v"]
    assert metric(hypotheses, references).score < 90


def test_sequence_error_rate_derived_by_hand():
    references = [["R EH D", "R IY D"], ["K AE T"], "D AO G"]
    assert sequence_error_rate(["R IY D", "K AE T", "D AO G"], references) == 0
    assert sequence_error_rate(["R IY D", "K AE", "D AO G"], references) == 1 / 3
    assert sequence_error_rate(["R IH D", "", "D AO"], references) == 1


@pytest.mark.parametrize(
    ("hypothesis", "reference", "expected"),
    [
        ("a b c", "a b c", 0),
        ("a x c", "a b c", 1 / 3),
        ("a c", "a b c", 1 / 3),
        ("a b x c", "a b c", 1 / 3),
        ("", "a b c", 1),
        ("x y z u v w q", "a b c", 7 / 3),
        ("abc", "a b c", 1),
    ],
)
def test_token_error_rate_derived_by_hand(hypothesis, reference, expected):
    assert token_error_rate([hypothesis], [reference]) == pytest.approx(expected)


def test_token_error_rate_sums_edits_and_lengths_over_the_corpus():
    # 1 edit to the 2 tokens of the nearer reference, 2 edits to 5 tokens.
    references = [["x y z u v", "a b"], "c d e f g"]
    assert token_error_rate(["a c", "c d e"], references) == pytest.approx(3 / 7)


def test_token_error_rate_takes_the_first_of_equally_near_references():
    assert token_error_rate(["a b"], [["a", "a b c"]]) == 1
    assert token_error_rate(["a b"], [["a b c", "a"]]) == pytest.approx(1 / 3)


def test_token_error_rate_equals_the_textbook_recursion():
    generator = random.Random(7)
    corpus = [
        [generator.choices("abcd", k=generator.randint(1, 11)) for _ in range(2)]
        for _ in range(53)
    ]
    edits = sum(edit_distance(*pair) for pair in corpus)
    length = sum(len(reference) for _, reference in corpus)
    hypotheses, references = zip(
        *[[" ".join(tokens) for tokens in pair] for pair in corpus], strict=True
    )
    assert token_error_rate(hypotheses, references) == pytest.approx(edits / length)


@pytest.mark.parametrize("metric", FUNCTIONS)
class TestErrors:
    def test_unequal_counts(self, metric):
        with pytest.raises(ValueError, match=r"each of the 2.*`len\(references\)=3`"):
            metric(["a", "b"], ["a", "b", "c"])

    def test_empty_corpus(self, metric):
        with pytest.raises(ValueError, match=r"`hypotheses=\[\]`.*not empty"):
            metric([], [])

    def test_item_without_a_reference(self, metric):
        with pytest.raises(ValueError, match=r"received `references\[1\]=\[\]`"):
            metric(["a", "b"], [["a"], []])

    def test_bytes(self, metric):
        with pytest.raises(TypeError, match=r"`hypotheses` must .*b'a' in entry 1"):
            metric(["a", b"a"], ["a", "a"])
        with pytest.raises(TypeError, match=r"`references` must .*b'ab' in entry 0"):
            metric(["a"], [["a", b"ab"]])

    def test_arrays(self, metric):
        metric(np.array(["a b c d", "b"]), np.array(["a b c d", "b"]))

    def test_string_in_place_of_a_list(self, metric):
        with pytest.raises(TypeError, match="`hypotheses='a'`.*Put it in a list"):
            metric("a", ["a"])
        with pytest.raises(TypeError, match="`references='a'`.*Put it in a list"):
            metric(["a"], "a")


def test_token_error_rate_without_tokens():
    with pytest.raises(ValueError, match=r"at least one token.*`references=\['']`"):
        token_error_rate(["a"], [""])


def test_character_error_rate_derived_by_hand():
    # One of ten characters differs; "b" is nearer to "ab" than to "xyz".
    assert character_error_rate(["1999-05-04"], ["1999-05-05"]) == pytest.approx(0.1)
    assert character_error_rate(["b", ""], [["xyz", "ab"], "c d"]) == pytest.approx(0.8)
    with pytest.raises(ValueError, match=r"at least one character.*`references=\['']`"):
        character_error_rate(["a"], [""])


def test_text_scores_are_percentages_of_all_metrics():
    hypotheses, references = ["a b", "c D"], ["a x", ["c", "c d"]]
    scores = text_scores(hypotheses, references)
    assert scores.keys() == METRICS.keys()
    assert {name: scores[name] for name in ("bleu", "chrf")} == translation_scores(
        hypotheses, references
    )
    assert scores["exact_match"] == (0.0, "")
    assert scores["token_error_rate"].score == pytest.approx(100 * 2 / 3)
    assert scores["character_error_rate"].score == pytest.approx(100 * 2 / 6)
    folded = text_scores(hypotheses, references, lowercase=True)
    assert folded["exact_match"].score == 50
    assert folded["token_error_rate"].score == 25
    empty = text_scores(["a"], [""])
    assert math.isnan(empty["token_error_rate"].score)
    assert empty["exact_match"].score == 0
