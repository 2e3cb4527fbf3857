"""Minimum-Bayes-risk decoding: the candidate that agrees best with all others."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.helpers import extract_all_char_ngrams, extract_all_word_ngrams

Utility: TypeAlias = Callable[[str, str], float]


class BayesRiskResult(NamedTuple):
    """The candidates that `minimum_bayes_risk` chooses."""

    texts: list[str]  # the chosen candidate of each sentence
    utilities: np.ndarray  # float64 (batch,), the expected utility of each


def minimum_bayes_risk(
    hypotheses: Sequence[Sequence[str]],
    utility: str | Utility = "chrf",
    scores: Sequence[Sequence[float] | np.ndarray] | np.ndarray | None = None,
) -> BayesRiskResult:
    """Chooses the candidate of each sentence with the highest expected utility.

    The expected utility of a candidate is its mean utility with each candidate as the
    reference:

        U(h) = Σᵣ P(r) u(h, r)

    Samples of a model have equal probabilities, P = 1 / n, and equal samples count
    several times. For the candidates of a beam search, P is the softmax of their
    `scores`. The most probable output is often not the one that most of the
    probability mass agrees on. With n candidates, n² utilities are computed.

    Args:
        hypotheses: the candidates of each sentence, list of lists of str, such as
            `generate` returns for a search of several hypotheses.
        utility: `"chrf"` or `"bleu"` (sentence-level chrF2 and BLEU as sacreBLEU
            defines them, 0 to 100), or a function `utility(hypothesis, reference)`
            that returns a float; higher is better.
        scores: log-probabilities of the candidates, which `generate` returns with
            `length_penalty=0.0`: `(batch, num_hypotheses)`, or lists. `-inf` = no
            candidate.

    Returns:
        A `BayesRiskResult`. If several candidates have the same utility, it has the
        first.

    Raises:
        ValueError: if a sentence has no candidates, `scores` does not have one entry
            for each candidate, or there is no such utility.

    Example:

    >>> from keras_transformer import minimum_bayes_risk
    >>> candidates = ["a dog", "the cat sat", "the cat sits", "the cat sat"]
    >>> minimum_bayes_risk([candidates]).texts
    ['the cat sat']

    References:
        - [Kumar and Byrne, 2004](https://aclanthology.org/N04-1022)
        - [Eikema and Aziz, 2020](https://arxiv.org/abs/2005.10283)
    """
    utilities = _utility_function(utility)
    rows = [np.zeros(len(c)) for c in hypotheses] if scores is None else [*scores]
    _check_candidates(hypotheses, rows)
    chosen = [
        _choose(candidates, np.asarray(row, "float64"), utilities)
        for candidates, row in zip(hypotheses, rows, strict=True)
    ]
    return BayesRiskResult(
        [text for text, _ in chosen], np.array([value for _, value in chosen])
    )


def _choose(
    candidates: Sequence[str],
    scores: np.ndarray,
    utilities: Callable[[list[str]], np.ndarray],
) -> tuple[str, float]:
    """Returns the best candidate and its expected utility."""
    weights = np.exp(scores - scores.max())
    mass = Counter[str]()
    for text, weight in zip(candidates, weights, strict=True):
        if weight:
            mass[text] += weight
    texts = list(mass)
    expected = utilities(texts) @ np.array([mass[t] for t in texts]) / weights.sum()
    best = expected.argmax()
    return texts[best], expected[best]


def _utility_function(utility: str | Utility) -> Callable[[list[str]], np.ndarray]:
    """Returns a function from n texts to the utilities of all pairs, `(n, n)`."""
    if callable(utility):
        return lambda texts: np.array([[utility(h, r) for r in texts] for h in texts])
    if utility not in _UTILITIES:
        raise ValueError(
            f"`utility` must be {' or '.join(map(repr, _UTILITIES))}, or a function of "
            f"a hypothesis and a reference; received `utility={utility!r}`."
        )
    return _UTILITIES[utility]


def _chrf(texts: list[str]) -> np.ndarray:
    """Computes the sentence-level chrF2 of all pairs, float `(n, n)`."""
    orders = [
        extract_all_char_ngrams(text, CHRF.CHAR_ORDER, include_whitespace=False)
        for text in texts
    ]
    precision = recall = effective = np.zeros((len(texts), len(texts)))
    for ngrams in zip(*orders, strict=True):
        matches, totals = _matches(ngrams)
        both = np.minimum.outer(totals, totals) > 0
        precision = precision + matches / np.maximum(totals, 1)[:, None]
        recall = recall + matches / np.maximum(totals, 1)
        effective = effective + both
    # The F-score of two means is that of the sums divided by their number.
    factor = CHRF.BETA**2
    weighted = np.maximum(factor * precision + recall, np.finfo("float64").tiny)
    scores = (1 + factor) * precision * recall / weighted
    return 100 * scores / np.maximum(effective, 1)


def _bleu(texts: list[str]) -> np.ndarray:
    """Computes the sentence-level BLEU of all pairs, float `(n, n)`."""
    metric = BLEU(effective_order=True)
    texts = [metric.tokenizer(text.rstrip()) for text in texts]
    lengths = [len(text.split()) for text in texts]
    orders = range(1, metric.max_ngram_order + 1)
    statistics = [
        _matches([extract_all_word_ngrams(text, n, n)[0] for text in texts])
        for n in orders
    ]
    correct = np.stack([matches for matches, _ in statistics], axis=-1).tolist()
    total = np.stack([totals for _, totals in statistics], axis=-1).tolist()
    return np.array(
        [
            [
                metric.compute_bleu(
                    correct[h][r],
                    total[h],
                    lengths[h],
                    lengths[r],
                    smooth_method=metric.smooth_method,
                    effective_order=True,
                ).score
                for r in range(len(texts))
            ]
            for h in range(len(texts))
        ]
    )


_UTILITIES = {"bleu": _bleu, "chrf": _chrf}


def _matches(ngrams: Sequence[Counter]) -> tuple[np.ndarray, np.ndarray]:
    """Counts the n-grams that texts have in common, and those of each text."""
    # The smaller of two counts is the number of levels that both reach, so the matches
    # of all pairs are the sum of a matrix product for each level.
    columns = {ngram: i for i, ngram in enumerate(set().union(*ngrams))}
    counts = np.zeros((len(ngrams), len(columns)), "float32")
    for row, text in enumerate(ngrams):
        counts[row, [columns[ngram] for ngram in text]] = list(text.values())
    totals = counts.sum(axis=1, dtype="float64")
    matches = np.zeros((len(ngrams), len(ngrams)))
    while counts.size:
        reached = (counts > 0).astype("float32")
        matches += reached @ reached.T
        counts = np.maximum(counts[:, counts.max(axis=0) > 1] - 1, 0)
    return matches, totals


def _check_candidates(
    hypotheses: Sequence[Sequence[str]], scores: Sequence[Sequence[float] | np.ndarray]
) -> None:
    if len(hypotheses) != len(scores):
        raise ValueError(
            "`scores` must have a row for each sentence; received "
            f"{len(scores)} rows and {len(hypotheses)} sentences."
        )
    for number, (candidates, row) in enumerate(zip(hypotheses, scores, strict=True)):
        if isinstance(candidates, str) or not len(candidates):
            raise ValueError(
                "`hypotheses` must be a list of at least one candidate for each "
                f"sentence; received `hypotheses[{number}]={candidates!r}`. Search "
                "with `num_hypotheses` above 1."
            )
        if len(row) != len(candidates) or not np.max(row) > -np.inf:
            raise ValueError(
                "`scores` must have a number for each candidate, of which at least one "
                f"is finite; received `scores[{number}]={row!r}` for "
                f"{len(candidates)} candidates."
            )
