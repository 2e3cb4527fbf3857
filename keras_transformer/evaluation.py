"""Scores a corpus of hypotheses against its references.

Every function takes `hypotheses`, one string an item, and `references`, one entry
an item: a string, or a list of strings where several answers are right. BLEU and
chrF are sacreBLEU's, on its scale of 0 to 100, higher is better; error rates are
fractions, 0 when all is right.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from rapidfuzz.distance import Levenshtein
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.utils import SACREBLEU_DIR

References: TypeAlias = Sequence[str | Sequence[str]]


class CorpusScore(NamedTuple):
    """A score and what is needed to compare it with others.

    Attributes:
        score: float, from 0 to 100, higher is better.
        signature: str, sacreBLEU's account of how the score was computed.
    """

    score: float
    signature: str


def bleu(
    hypotheses: Sequence[str],
    references: References,
    lowercase: bool = False,
    tokenize: str = "13a",
) -> CorpusScore:
    """Corpus BLEU over detokenized text.

    Args:
        hypotheses: list of str, one an item.
        references: list of str, or of lists of str, one entry an item.
        lowercase: bool, whether letter case is ignored (sacreBLEU's `-lc`).
        tokenize: str, how sacreBLEU splits text into words: `"13a"` at spaces and
            punctuation; `"zh"` for Chinese, `"ja-mecab"` for Japanese, `"ko-mecab"`
            for Korean; `"char"` for any text without spaces; sacreBLEU documents the
            others.

    Returns:
        A `CorpusScore`.

    Raises:
        ValueError: if `hypotheses` is empty, or an item has no reference, or the
            counts differ, or sacreBLEU has no such `tokenize`.
        TypeError: if a string is given in place of a list, or bytes in that of one.
        ModuleNotFoundError: if `tokenize` needs a package that is missing.
        OSError: if `tokenize` needs a file that sacreBLEU fails to download.

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
    return _sacrebleu_score(_bleu_metric(lowercase, tokenize), hypotheses, references)


def check_tokenize(tokenize: str) -> None:
    """Checks that `bleu` can use a tokenizer of sacreBLEU, before hours of work.

    Args:
        tokenize: str, its name.

    Raises:
        ValueError: if sacreBLEU has no tokenizer of this name.
        ModuleNotFoundError: if it needs a package that is missing.
        OSError: if it needs a file that sacreBLEU fails to download.

    Example:

    >>> from keras_transformer import evaluation
    >>> evaluation.check_tokenize("zh")
    """
    _bleu_metric(False, tokenize)


def chrf(
    hypotheses: Sequence[str], references: References, lowercase: bool = False
) -> CorpusScore:
    """Corpus chrF2: the F-score, β = 2, over character 1- to 6-grams.

    Args:
        hypotheses: list of str, one an item.
        references: list of str, or of lists of str, one entry an item.
        lowercase: bool, whether letter case is ignored.

    Returns:
        A `CorpusScore`.

    Raises:
        ValueError: if `hypotheses` is empty, or an item has no reference, or the
            counts differ.
        TypeError: if a string is given in place of a list, or bytes in that of one.

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
    """BLEU and chrF of one corpus.

    Args:
        hypotheses: list of str, one an item.
        references: list of str, or of lists of str, one entry an item.
        lowercase: bool, whether letter case is ignored.
        tokenize: str, how `bleu` splits text into words. chrF needs no words.

    Returns:
        A dictionary of a `CorpusScore` each: `"bleu"` and `"chrf"`.

    Raises:
        ValueError, TypeError, ModuleNotFoundError, OSError: as `bleu`.

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


def sequence_error_rate(hypotheses: Sequence[str], references: References) -> float:
    """The fraction of items whose hypothesis equals none of its references.

    In grapheme-to-phoneme conversion, where an item is a word, this is the word
    error rate.

    Args:
        hypotheses: list of str, one an item.
        references: list of str, or of lists of str, one entry an item.

    Returns:
        A float from 0 (all items right) to 1 (none).

    Raises:
        ValueError: if `hypotheses` is empty, or an item has no reference, or the
            counts differ.
        TypeError: if a string is given in place of a list, or bytes in that of one.

    Example:

    >>> from keras_transformer import evaluation
    >>> pronunciations = [["R EH D", "R IY D"], "K AE T"]
    >>> evaluation.sequence_error_rate(["R IY D", "K AH T"], pronunciations)
    0.5
    """
    alternatives = _alternatives(hypotheses, references)
    wrong = sum(
        hypothesis not in options
        for hypothesis, options in zip(hypotheses, alternatives, strict=True)
    )
    return wrong / len(hypotheses)


def token_error_rate(hypotheses: Sequence[str], references: References) -> float:
    """The edits a token that lead from the references to the hypotheses.

    Tokens are separated by white space; an edit inserts, deletes or replaces one. Each
    hypothesis is compared with its nearest reference, the first listed of several
    equally near; all edits are divided by all tokens of these references. Over
    phonemes this is the phoneme error rate, over words of a text the word error
    rate.

    Args:
        hypotheses: list of str, one an item.
        references: list of str, or of lists of str, one entry an item.

    Returns:
        A float, 0 when all tokens are right, above 1 when there are more edits
        than tokens in the references.

    Raises:
        ValueError: if `hypotheses` is empty, or an item has no reference, or the
            counts differ, or the nearest references hold no token at all.
        TypeError: if a string is given in place of a list, or bytes in that of one.

    Example:

    >>> from keras_transformer import evaluation
    >>> pronunciations = [["R EH D", "R IY D"], "K AE T S AH"]
    >>> evaluation.token_error_rate(["R IY D", "K AH T S"], pronunciations)
    0.25
    """
    alternatives = _alternatives(hypotheses, references)
    pairs = [
        _edits_and_length(hypothesis, options)
        for hypothesis, options in zip(hypotheses, alternatives, strict=True)
    ]
    edits, length = (sum(column) for column in zip(*pairs, strict=True))
    if length == 0:
        raise ValueError(
            "`references` must hold at least one token; received "
            f"`references={references!r}`. Give the right answers as text."
        )
    return edits / length


def _sacrebleu_score(
    metric: BLEU | CHRF, hypotheses: Sequence[str], references: References
) -> CorpusScore:
    alternatives = _alternatives(hypotheses, references)
    streams = list(zip_longest(*alternatives))  # sacreBLEU fills gaps with None
    score = metric.corpus_score(list(hypotheses), streams).score
    return CorpusScore(score, str(metric.get_signature()))


def _bleu_metric(lowercase: bool, tokenize: str) -> BLEU:
    if tokenize not in list(BLEU.TOKENIZERS):
        raise ValueError(
            f"`tokenize` must be one of sacreBLEU's {sorted(BLEU.TOKENIZERS)}; "
            f"received `tokenize={tokenize!r}`."
        )
    try:
        return BLEU(lowercase=lowercase, tokenize=tokenize)
    except (ImportError, RuntimeError) as error:  # a RuntimeError if MeCab is missing
        raise ModuleNotFoundError(
            f"`tokenize={tokenize!r}` needs a package that is missing. sacreBLEU "
            f"says: {' '.join(str(error).split())}"
        ) from error
    except OSError as error:
        raise OSError(
            f"`tokenize={tokenize!r}` needs a file that sacreBLEU downloads when first "
            f"used, to `{SACREBLEU_DIR}`; it failed: {error}. Use it once where there "
            "is a connection, and copy that folder."
        ) from error


def _edits_and_length(hypothesis: str, options: Sequence[str]) -> tuple[int, int]:
    tokens = hypothesis.split()
    candidates = [option.split() for option in options]
    distances = [Levenshtein.distance(tokens, candidate) for candidate in candidates]
    nearest = distances.index(min(distances))
    return distances[nearest], len(candidates[nearest])


def _alternatives(
    hypotheses: Sequence[str], references: References
) -> list[Sequence[str]]:
    """Checks a corpus; returns the list of right answers of each item."""
    for name, value in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(value, str):
            raise TypeError(
                f"`{name}` must be a list with one entry an item; received "
                f"`{name}={value!r}`, a string. Put it in a list."
            )
    if len(hypotheses) == 0:
        raise ValueError(
            "`hypotheses` must hold at least one item; received "
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
            "`references` must give every item at least one reference; received "
            f"`references[{index}]={references[index]!r}`. Leave out items without one."
        )
    entries = enumerate(zip(hypotheses, alternatives, strict=True))
    for index, (hypothesis, options) in entries:
        for name, text in [
            ("hypotheses", hypothesis),
            *(("references", option) for option in options),
        ]:
            if not isinstance(text, str):
                raise TypeError(
                    f"`{name}` must hold str; received {text!r} in entry {index}. Call "
                    "`.decode()` on bytes."
                )
    return alternatives
