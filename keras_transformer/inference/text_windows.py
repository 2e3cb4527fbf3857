"""Log-probabilities of texts of any length, in windows."""

from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from keras_transformer.inference.scoring import ScoreResult
from keras_transformer.inference.token_ids import Rows, Sequences, token_rows

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


class LanguageModel(Protocol):
    """What the scores of texts need of a decoder-only model, such as `CausalLM`."""

    target_tokenizer: "Tokenizer | None"
    max_target_length: int | None
    pad_token_id: int
    start_token_id: int
    end_token_id: int
    add_start_token: bool  # whether texts begin with the start token

    def score(self, sources: Any, targets: Any, batch_size: int = 64) -> ScoreResult:
        """Scores continuations; see `GenerativeModel.score`."""


class Windows(NamedTuple):
    """The windows of texts, in order."""

    contexts: Rows  # not scored
    continuations: Rows  # scored after their contexts
    texts: list[int]  # the number of each window's text


def text_windows(rows: Rows, context: int, stride: int) -> Windows:
    """Splits texts into windows that score each token but the first once.

    The input of a window, which lacks the last token of the continuation, has at most
    `context` tokens. The first window of a text scores `context` tokens, and the others
    score `stride` tokens each.
    """
    windows = Windows([], [], [])
    for index, row in enumerate(rows):
        start, end = 1, 1 + context
        while start < len(row):
            begin = max(0, min(start - 1, start + stride - 1 - context))
            windows.contexts.append(row[begin:start])
            windows.continuations.append(row[start:end])
            windows.texts.append(index)
            start, end = end, end + stride
    return windows


def score_texts(
    model: LanguageModel,
    texts: Sequences,
    context: int | None,
    stride: int | None,
    batch_size: int,
) -> ScoreResult:
    """Scores texts; see `CausalLM.score_texts`."""
    limit = model.max_target_length
    context = limit if context is None else context
    is_int = isinstance(context, Integral)
    if context is None or not is_int or not 1 <= context <= (limit or context):
        raise ValueError(
            "`context` must be an int of at least 1"
            + (f" and at most `max_length={limit}`" if limit else "")
            + f"; received `context={context}`. For a model without `max_length`, pass "
            "the length of the windows that it was trained on."
        )
    stride = max(context // 2, 1) if stride is None else stride
    if not (isinstance(stride, Integral) and 1 <= stride <= context):
        raise ValueError(
            f"`stride` must be an int from 1 to {context}, the context of the model; "
            f"received `stride={stride}`."
        )
    tokenizer, pad = model.target_tokenizer, model.pad_token_id
    rows = token_rows(texts, "texts", tokenizer, pad, add_end=False)
    if model.add_start_token:
        rows = [[model.start_token_id, *row, model.end_token_id] for row in rows]
    contexts, continuations, indices = text_windows(rows, context, stride)
    found = model.score(contexts, continuations, batch_size).token_scores
    parts: list[list[np.ndarray]] = [[np.zeros(0, "float32")] for _ in rows]
    for index, scores in zip(indices, found, strict=True):
        parts[index].append(scores)
    token_scores = [np.concatenate(part) for part in parts]
    return ScoreResult(
        scores=np.array([scores.sum() for scores in token_scores], "float32"),
        lengths=np.array([len(scores) for scores in token_scores], "int32"),
        token_scores=token_scores,
    )
