"""Log-probabilities of targets, given their sources."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.backend.compiling import compile_function
from keras_transformer.inference.sequence_model import SequenceInputs, SequenceModel
from keras_transformer.inference.sources import pair_batches, token_pairs
from keras_transformer.inference.token_ids import Sequences
from keras_transformer.layers import padding_mask
from keras_transformer.types import Tensor, TokenIds


class ScoreResult(NamedTuple):
    """The scores of the targets of a corpus.

    Attributes:
        scores: float32 array `(batch,)`, sum of the log-probabilities (natural
            logarithm) of the tokens of each target.
        lengths: int32 array `(batch,)`, number of these tokens.
        token_scores: list of float32 arrays `(target_length,)`, the log-probability of
            each token.
    """

    scores: np.ndarray
    lengths: np.ndarray
    token_scores: list[np.ndarray]

    @property
    def perplexity(self) -> float:
        """`exp` of the mean negative log-probability of all tokens; 1 without any."""
        tokens = max(int(self.lengths.sum()), 1)
        with np.errstate(over="ignore"):  # an untrained model may have infinity
            return float(np.exp(-self.scores.sum(dtype="float64") / tokens))


class Scorer:
    """Scores pairs with one model, and caches the compiled function."""

    def __init__(self, model: SequenceModel):
        self._model = model

        def score(inputs: SequenceInputs, target_token_ids: TokenIds) -> Tensor:
            return token_log_probabilities(model, inputs, target_token_ids)

        self._compiled: Callable[..., Tensor] = compile_function(score, model)

    def score(
        self,
        sources: Sequences,
        targets: Sequences,
        batch_size: int,
        add_end: bool = True,  # whether targets that are texts end with the end token
    ) -> ScoreResult:
        """Scores pairs; see `GenerativeModel.score`."""
        pairs = token_pairs(self._model, sources, targets, add_end)
        found: dict[int, np.ndarray] = {}
        for batch in pair_batches(self._model, pairs, batch_size):
            scores = self._compiled(batch.inputs, batch.target_token_ids)
            rows = ops.convert_to_numpy(scores)
            for index, row in zip(batch.indices, rows, strict=False):
                found[index] = row[: len(pairs.targets[index])].copy()
        token_scores = [found[index] for index in range(len(pairs.targets))]
        return ScoreResult(
            scores=np.array([scores.sum() for scores in token_scores], "float32"),
            lengths=np.array([len(row) for row in pairs.targets], "int32"),
            token_scores=token_scores,
        )


def token_log_probabilities(
    model: SequenceModel, inputs: SequenceInputs, target_token_ids: TokenIds
) -> Tensor:
    """Computes the log-probability of each target token, 0 for padding; can be traced.

    Padded targets `(batch, target_length)` have float32 results of the same shape.
    """
    logits = ops.cast(model(inputs, training=False), "float32")
    chosen = ops.take_along_axis(logits, target_token_ids[:, :, None], axis=-1)
    log_probabilities = chosen[:, :, 0] - ops.logsumexp(logits, axis=-1)
    real = padding_mask(target_token_ids, model.pad_token_id)
    return ops.where(real, log_probabilities, 0.0)
