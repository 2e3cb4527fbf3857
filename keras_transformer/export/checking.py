"""Checks a SavedModel before it takes its place."""

import json
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.export.writing import run_python
from keras_transformer.inference.generation import Request

SCORE_TOLERANCE = 1e-4
ROUNDING_TOLERANCE = 0.5
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


def check_texts(
    model: Any, folder: pathlib.Path, request: Request, texts: Sequence[str]
) -> None:
    """Compares a fresh process's texts with those of `generate`.

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
    result = rounded.generate(
        rows, search, max_length, min_length=min_length, seed=SEED
    )
    best = zip(result.token_ids[:, 0], result.lengths[:, 0], strict=True)
    targets = [token_ids[:length].tolist() for token_ids, length in best]
    scores, lengths, _ = rounded.score(rows, targets)
    differences = np.abs(scores - model.score(rows, targets).scores)
    differences = differences / np.maximum(lengths, 1)
    worst = float(np.max(differences))
    if not worst <= ROUNDING_TOLERANCE:
        raise RuntimeError(
            "`quantization` must change log-probabilities by at most "
            f"{ROUNDING_TOLERANCE} a token; received one that changes them by {worst}. "
            "Nothing was written. Store the weights in more bits."
        )
    return worst
