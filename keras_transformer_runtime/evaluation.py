"""Metrics of hypotheses against references: BLEU, chrF and error rates.

Each function takes `hypotheses`, one string per item, and `references`, one entry per
item: a string, or a list of strings if an item has several correct answers. BLEU and
chrF are computed by sacreBLEU, from 0 to 100, higher is better. Error rates are
fractions, 0 if all hypotheses are correct, lower is better. `text_scores` computes all
of them, in percent.
"""

import math
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from rapidfuzz.distance import Levenshtein
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from keras_transformer_runtime.bleu import bleu_metric

References: TypeAlias = Sequence[str | Sequence[str]]


class CorpusScore(NamedTuple):
    """A score of a corpus, and the settings with which it was computed.

    Attributes:
        score: float from 0 to 100, higher is better.
        signature: str, the signature of sacreBLEU. Scores are comparable if their
            signatures are equal.
    """

    score: float
    signature: str


def bleu(
    hypotheses: Sequence[str],
    references: References,
    lowercase: bool = False,
    tokenize: str = "13a",
) -> CorpusScore:
    """Computes the BLEU score of a corpus of detokenized text.

    Args:
        hypotheses: list of str, one per item.
        references: list of str, or of lists of str, one entry per item.
        lowercase: bool, whether letter case is ignored (`-lc` of sacreBLEU).
        tokenize: str, the tokenizer of sacreBLEU: `"13a"` splits at spaces and
            punctuation, `"zh"` is for Chinese, `"ja-mecab"` for Japanese, `"ko-mecab"`
            for Korean, and `"char"` for any text without spaces. The documentation of
            sacreBLEU describes the others.

    Returns:
        A `CorpusScore`.

    Raises:
        ValueError: if `hypotheses` is empty, if an item has no reference, if the
            numbers of hypotheses and references differ, or if sacreBLEU has no
            tokenizer `tokenize`.
        TypeError: if `hypotheses` or `references` is a string, or contains bytes.
        ModuleNotFoundError: if `tokenize` requires a package that is not installed.
        OSError: if `tokenize` requires a file that sacreBLEU fails to download.

    Example:

    >>> from keras_transformer import evaluation
    >>> hypotheses = ["the cat sat on the mat"]
    >>> references = [["a cat sat on a mat", "the cat sat on the mat"]]
    >>> result = evaluation.bleu(hypotheses, references)
    >>> f"{result.score:.2f}"
    '100.00'
    >>> result = evaluation.bleu(["猫坐在垫子上"], ["猫坐在垫子上"], tokenize="zh")
    >>> f"{result.score:.2f}"
    '100.00'

    References:
        - Papineni et al., 2002, "BLEU: a Method for Automatic Evaluation of
          Machine Translation".
        - Post, 2018, "A Call for Clarity in Reporting BLEU Scores".
    """
    return _sacrebleu_score(bleu_metric(lowercase, tokenize), hypotheses, references)


def check_tokenize(tokenize: str) -> None:
    """Checks that `bleu` can use a tokenizer of sacreBLEU.

    Call it before a long training, so that a missing tokenizer is reported at once.

    Args:
        tokenize: str, name of the tokenizer.

    Raises:
        ValueError: if sacreBLEU has no tokenizer of this name.
        ModuleNotFoundError: if it requires a package that is not installed.
        OSError: if it requires a file that sacreBLEU fails to download.

    Example:

    >>> from keras_transformer import evaluation
    >>> evaluation.check_tokenize("zh")
    """
    bleu_metric(False, tokenize)


def chrf(
    hypotheses: Sequence[str], references: References, lowercase: bool = False
) -> CorpusScore:
    """Computes the chrF2 score of a corpus.

    chrF2 is the F-score with β = 2 of character n-grams with n from 1 to 6.

    Args:
        hypotheses: list of str, one per item.
        references: list of str, or of lists of str, one entry per item.
        lowercase: bool, whether letter case is ignored.

    Returns:
        A `CorpusScore`.

    Raises:
        ValueError: if `hypotheses` is empty, if an item has no reference, or if the
            numbers of hypotheses and references differ.
        TypeError: if `hypotheses` or `references` is a string, or contains bytes.

    Example:

    >>> from keras_transformer import evaluation
    >>> result = evaluation.chrf(["the cat sat"], ["the cat sat"])
    >>> f"{result.score:.2f}"
    '100.00'

    References:
        - Popović, 2015, "chrF: character n-gram F-score for automatic MT
          evaluation".
    """
    return _sacrebleu_score(CHRF(lowercase=lowercase), hypotheses, references)


def translation_scores(
    hypotheses: Sequence[str],
    references: References,
    lowercase: bool = False,
    tokenize: str = "13a",
) -> dict[str, CorpusScore]:
    """Computes the BLEU and chrF scores of a corpus.

    Args:
        hypotheses: list of str, one per item.
        references: list of str, or of lists of str, one entry per item.
        lowercase: bool, whether letter case is ignored.
        tokenize: str, the tokenizer of `bleu`.

    Returns:
        A dictionary with the `CorpusScore` of `"bleu"` and `"chrf"`.

    Raises:
        ValueError, TypeError, ModuleNotFoundError, OSError: see `bleu`.

    Example:

    >>> from keras_transformer import evaluation
    >>> scores = evaluation.translation_scores(["the cat sat"], ["the cat sat"])
    >>> {name: f"{result.score:.2f}" for name, result in scores.items()}
    {'bleu': '0.00', 'chrf': '100.00'}
    """
    return {
        "bleu": bleu(hypotheses, references, lowercase, tokenize),
        "chrf": chrf(hypotheses, references, lowercase),
    }


class Metric(NamedTuple):
    """A metric of texts, as `METRICS` lists them.

    Attributes:
        description: str, what it measures.
        is_error: bool, whether lower values are better.
    """

    description: str
    is_error: bool


METRICS = {
    "bleu": Metric("BLEU of sacreBLEU", is_error=False),
    "chrf": Metric("chrF2 of sacreBLEU", is_error=False),
    "exact_match": Metric("outputs that equal a reference, in percent", is_error=False),
    "token_error_rate": Metric("edits per 100 words of the references", is_error=True),
    "character_error_rate": Metric(
        "edits per 100 characters of the references", is_error=True
    ),
}
"""The metrics of `text_scores`, all from 0 to 100 except error rates, which may be
greater."""


def text_scores(
    hypotheses: Sequence[str],
    references: References,
    lowercase: bool = False,
    tokenize: str = "13a",
) -> dict[str, CorpusScore]:
    """Computes all metrics of `METRICS`.

    Args:
        hypotheses: list of str, one per item.
        references: list of str, or of lists of str, one entry per item.
        lowercase: bool, whether letter case is ignored.
        tokenize: str, the tokenizer of `bleu`.

    Returns:
        A dictionary with a `CorpusScore` for each name in `METRICS`. Scores that
        sacreBLEU does not compute have an empty signature. Error rates are NaN if no
        reference contains text.

    Raises:
        ValueError, TypeError, ModuleNotFoundError, OSError: see `bleu`.

    Example:

    >>> from keras_transformer import evaluation
    >>> scores = evaluation.text_scores(["1999-05-04"], ["1999-05-05"])
    >>> for name in ("exact_match", "token_error_rate", "character_error_rate"):
    ...     print(name, scores[name].score)
    exact_match 0.0
    token_error_rate 100.0
    character_error_rate 10.0
    """
    scores = translation_scores(hypotheses, references, lowercase, tokenize)
    alternatives = _parse_corpus(hypotheses, references)
    if lowercase:
        hypotheses = [text.lower() for text in hypotheses]
        alternatives = [[text.lower() for text in texts] for texts in alternatives]
    fractions = {
        "exact_match": 1.0 - sequence_error_rate(hypotheses, alternatives),
        "token_error_rate": _error_rate(hypotheses, alternatives, str.split),
        "character_error_rate": _error_rate(hypotheses, alternatives, list),
    }
    scores |= {name: CorpusScore(100 * x, "") for name, x in fractions.items()}
    return scores


def sequence_error_rate(hypotheses: Sequence[str], references: References) -> float:
    """Computes the fraction of items whose hypothesis equals none of its references.

    In grapheme-to-phoneme conversion, this is the word error rate.

    Args:
        hypotheses: list of str, one per item.
        references: list of str, or of lists of str, one entry per item.

    Returns:
        A float from 0 (all items are correct) to 1 (no item is correct).

    Raises:
        ValueError: if `hypotheses` is empty, if an item has no reference, or if the
            numbers of hypotheses and references differ.
        TypeError: if `hypotheses` or `references` is a string, or contains bytes.

    Example:

    >>> from keras_transformer import evaluation
    >>> pronunciations = [["R EH D", "R IY D"], "K AE T"]
    >>> evaluation.sequence_error_rate(["R IY D", "K AH T"], pronunciations)
    0.5
    """
    alternatives = _parse_corpus(hypotheses, references)
    wrong = sum(
        hypothesis not in options
        for hypothesis, options in zip(hypotheses, alternatives, strict=True)
    )
    return wrong / len(hypotheses)


def token_error_rate(hypotheses: Sequence[str], references: References) -> float:
    """Computes the edit distance of the tokens, divided by their number.

    Tokens are separated by white space. An edit inserts, deletes or replaces a token.
    Each hypothesis is compared with its nearest reference, the first one if several are
    equally near. The sum of all edits is divided by the number of tokens in these
    references. If tokens are phonemes, this is the phoneme error rate; if tokens are
    words, this is the word error rate.

    Args:
        hypotheses: list of str, one per item.
        references: list of str, or of lists of str, one entry per item.

    Returns:
        A float, 0 if all tokens are correct, above 1 if there are more edits than
        tokens in the references.

    Raises:
        ValueError: if `hypotheses` is empty, if an item has no reference, if the
            numbers of hypotheses and references differ, or if the nearest references
            contain no tokens.
        TypeError: if `hypotheses` or `references` is a string, or contains bytes.

    Example:

    >>> from keras_transformer import evaluation
    >>> pronunciations = [["R EH D", "R IY D"], "K AE T S AH"]
    >>> evaluation.token_error_rate(["R IY D", "K AH T S"], pronunciations)
    0.25
    """
    rate = _error_rate(hypotheses, _parse_corpus(hypotheses, references), str.split)
    if math.isnan(rate):
        raise ValueError(
            "`references` must contain at least one token; received "
            f"`references={references!r}`. Pass the correct answers as text."
        )
    return rate


def character_error_rate(hypotheses: Sequence[str], references: References) -> float:
    """Computes the edit distance of the characters, divided by their number.

    This is `token_error_rate` with characters (Unicode code points, spaces included) as
    tokens.

    Args:
        hypotheses: list of str, one per item.
        references: list of str, or of lists of str, one entry per item.

    Returns:
        A float, 0 if all characters are correct, above 1 if there are more edits than
        characters in the references.

    Raises:
        ValueError: if `hypotheses` is empty, if an item has no reference, if the
            numbers of hypotheses and references differ, or if the nearest references
            are empty.
        TypeError: if `hypotheses` or `references` is a string, or contains bytes.

    Example:

    >>> from keras_transformer import evaluation
    >>> evaluation.character_error_rate(["1999-05-04"], ["1999-05-05"])
    0.1
    """
    rate = _error_rate(hypotheses, _parse_corpus(hypotheses, references), list)
    if math.isnan(rate):
        raise ValueError(
            "`references` must contain at least one character; received "
            f"`references={references!r}`. Pass the correct answers as text."
        )
    return rate


def _sacrebleu_score(
    metric: BLEU | CHRF, hypotheses: Sequence[str], references: References
) -> CorpusScore:
    """Computes a metric of sacreBLEU and its signature."""
    alternatives = _parse_corpus(hypotheses, references)
    # sacreBLEU takes one list per annotator, with `None` for missing references.
    streams = list(zip_longest(*alternatives))
    score = metric.corpus_score(list(hypotheses), streams).score
    return CorpusScore(score, str(metric.get_signature()))


class _EditDistance(NamedTuple):
    """Number of edits, and number of tokens of the reference."""

    edits: int
    length: int


def _error_rate(
    hypotheses: Sequence[str],
    alternatives: Sequence[Sequence[str]],
    split: Callable[[str], list[str]],
) -> float:
    """Returns the edits per token of the nearest references; NaN without tokens."""
    distances = [
        _nearest_distance(split(hypothesis), [split(option) for option in options])
        for hypothesis, options in zip(hypotheses, alternatives, strict=True)
    ]
    length = sum(distance.length for distance in distances)
    return sum(d.edits for d in distances) / length if length else math.nan


def _nearest_distance(
    tokens: list[str], candidates: Sequence[list[str]]
) -> _EditDistance:
    """Returns the edit distance to the nearest of the references of an item."""
    distances = [Levenshtein.distance(tokens, candidate) for candidate in candidates]
    nearest = distances.index(min(distances))
    return _EditDistance(distances[nearest], len(candidates[nearest]))


def _parse_corpus(
    hypotheses: Sequence[str], references: References
) -> list[Sequence[str]]:
    """Checks a corpus, and returns the list of references of each item."""
    for name, value in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(value, str):
            raise TypeError(
                f"`{name}` must be a list with one entry per item; received the string "
                f"`{name}={value!r}`. Put it in a list."
            )
    if len(hypotheses) == 0:
        raise ValueError(
            "`hypotheses` must contain at least one item; received "
            f"`hypotheses={hypotheses!r}`. Check that the test set is not empty."
        )
    if len(hypotheses) != len(references):
        raise ValueError(
            "`references` must have one entry for each of the "
            f"{len(hypotheses)} hypotheses; received `len(references)="
            f"{len(references)}`. Group the references by item, not by annotator."
        )
    alternatives = [
        [entry] if isinstance(entry, str) else entry for entry in references
    ]
    counts = list(map(len, alternatives))
    if 0 in counts:
        index = counts.index(0)
        raise ValueError(
            "`references` must contain at least one reference for each item; received "
            f"`references[{index}]={references[index]!r}`. Remove items without one."
        )
    entries = enumerate(zip(hypotheses, alternatives, strict=True))
    for index, (hypothesis, options) in entries:
        for name, text in [
            ("hypotheses", hypothesis),
            *(("references", option) for option in options),
        ]:
            if not isinstance(text, str):
                raise TypeError(
                    f"`{name}` must contain str; received {text!r} in entry {index}. "
                    "Call `.decode()` on bytes."
                )
    return alternatives
