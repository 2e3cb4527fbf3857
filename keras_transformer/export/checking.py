"""Checks of a model before its export, and of what was written."""

import json
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.decoding import Search
from keras_transformer.export.writing import run_python
from keras_transformer.inference.generation import Request
from keras_transformer.models import Seq2Seq

# How far apart log-probabilities may be, a token; the second, of rounded weights.
SCORE_TOLERANCE = 1e-4
ROUNDING_TOLERANCE = 0.5
LONGEST_CHECKED = 64
SEED = 1

_LOAD_AND_TRANSLATE = """
import json, sys
import numpy as np
import tensorflow as tf
import tensorflow_text
folder, texts, seed = json.load(sys.stdin)
nbest = tf.saved_model.load(folder).signatures["nbest"]
prefix, seeds = tf.constant([""] * len(texts)), tf.constant([seed] * len(texts))
outputs = nbest(text=tf.constant(texts), prefix=prefix, seed=seeds)
assert "keras_transformer" not in sys.modules
print(json.dumps([
    [text.decode("utf-8") for text in outputs["text"].numpy()[:, 0]],
    outputs["score"].numpy()[:, 0].tolist(),
]))
"""


def check_has_tokenizers(model: Seq2Seq) -> None:
    """Makes sure that a model takes texts.

    Args:
        model: a `Seq2Seq`.

    Raises:
        ValueError: if it has no tokenizers.
    """
    if model.source_tokenizer is None:
        raise ValueError(
            "`model` must have tokenizers to be exported; received a model without "
            "`source_tokenizer`. Give it tokenizers when you build it."
        )


def sample_texts(model: Seq2Seq) -> list[str]:
    """Makes texts of tokens from all over the source vocabulary, and an empty one.

    Args:
        model: a `Seq2Seq` with tokenizers.

    Returns:
        Nine texts, short enough for the model.
    """
    tokenizer = model.source_tokenizer
    longest = max(1, min(6, (model.max_source_length or 12) // 2))
    ids = np.linspace(4, tokenizer.vocabulary_size - 1, 8 * 6).astype("int32")
    texts = tokenizer.detokenize(ids.reshape(8, 6)[:, :longest])
    return [text.decode("utf-8") for text in texts.numpy()] + [""]


def longest_checked(model: Seq2Seq) -> int:
    """Limits the hypotheses that a model is checked with.

    Args:
        model: a `Seq2Seq`.

    Returns:
        The greatest length in tokens: 64, or the model's own limit if that is less.
    """
    return min(model.max_target_length or LONGEST_CHECKED, LONGEST_CHECKED)


def best_hypotheses(
    model: Any, rows: list[list[int]], search: Search, max_length: Any, **options: Any
) -> list[list[int]]:
    """Finds the best hypothesis of each source.

    Args:
        model: a `Seq2Seq` or an `Ensemble`.
        rows: the sources' token ids.
        search: how to search.
        max_length: int or `RelativeLength`, greatest length in tokens.
        **options: further arguments of `generate`.

    Returns:
        Token ids, with the end token.
    """
    result = model.generate(rows, search, max_length, **options)
    best = zip(result.token_ids[:, 0], result.lengths[:, 0], strict=True)
    return [token_ids[:length].tolist() for token_ids, length in best]


def check_log_probabilities(
    engine: str,
    model: Seq2Seq,
    rows: list[list[int]],
    targets: list[list[int]],
    found: Any,
    tolerance: float,
) -> None:
    """Compares the log-probabilities that an engine finds with those of `score`.

    Args:
        engine: its name.
        model: what was exported.
        rows: the sources' token ids.
        targets: the targets' token ids.
        found: float array `(len(targets),)`.
        tolerance: how far apart they may be, a token.

    Raises:
        RuntimeError: if they are farther apart.
    """
    wanted, lengths, _ = model.score(rows, targets)
    errors = _errors_a_token(found, wanted, lengths)
    if not np.all(errors <= tolerance):
        worst = int(np.argmax(errors))
        raise RuntimeError(
            f"{engine} gives the token ids {targets[worst]} a log-probability of "
            f"{found[worst]} after {rows[worst]}, but `score` gives {wanted[worst]}; "
            "nothing was written."
        )


def check_texts(
    model: Any, folder: pathlib.Path, request: Request, texts: Sequence[str]
) -> None:
    """Compares a SavedModel's texts, in a fresh process, with those of `generate`.

    Args:
        model: a `Seq2Seq` or an `Ensemble`.
        folder: the SavedModel.
        request: how it decodes.
        texts: sources.

    Raises:
        RuntimeError: if a text differs, and its score by more than 1e-4.
    """
    settings = [str(folder), list(texts), SEED]
    output = run_python(_LOAD_AND_TRANSLATE, settings)
    served_texts, served_scores = json.loads(output.splitlines()[-1])
    expected, scores = model.generate(
        list(texts),
        request.search,
        request.max_length,
        min_length=request.min_length,
        return_scores=True,
        seed=SEED,
    )
    if np.ndim(scores) == 2:
        expected, scores = [best for best, *_ in expected], scores[:, 0]
    ties = 0
    for text, served, wanted, score, other in zip(
        texts, served_texts, expected, served_scores, scores, strict=True
    ):
        if served != wanted and abs(score - other) > SCORE_TOLERANCE:
            raise RuntimeError(
                f"the SavedModel gives {served!r} (score {score}) for {text!r}, but "
                f"`generate` gives {wanted!r} (score {other}); nothing was written."
            )
        ties += served != wanted
    if ties:
        warnings.warn(
            f"{ties} of {len(texts)} texts differ from those of `generate`, with "
            f"scores closer than {SCORE_TOLERANCE}.",
            stacklevel=3,
        )


def rounding_error(
    model: Any, rounded: Any, request: Request, texts: Sequence[str]
) -> float:
    """Compares log-probabilities after the weights were rounded with those before.

    Args:
        model: a `Seq2Seq` or an `Ensemble`.
        rounded: the same with the weights that are stored.
        request: how to find the hypotheses to compare.
        texts: sources.

    Returns:
        The greatest difference a token among the best hypotheses of `rounded`.

    Raises:
        RuntimeError: if it is greater than 0.5.
    """
    rows = model.source_tokenizer.tokenize(list(texts), add_end=True).to_list()
    search, max_length, min_length = request
    targets = best_hypotheses(
        rounded, rows, search, max_length, min_length=min_length, seed=SEED
    )
    scores, lengths, _ = rounded.score(rows, targets)
    wanted = model.score(rows, targets).scores
    worst = float(np.max(_errors_a_token(scores, wanted, lengths)))
    if not worst <= ROUNDING_TOLERANCE:
        raise RuntimeError(
            "`quantization` must change log-probabilities by at most "
            f"{ROUNDING_TOLERANCE} a token; received one that changes them by {worst}. "
            "Nothing was written. Store the weights in more bits."
        )
    return worst


def _errors_a_token(found: Any, wanted: Any, lengths: Any) -> np.ndarray:
    return np.abs(found - wanted) / np.maximum(lengths, 1)
