"""How probable the targets of a corpus are, given their sources."""

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.backend.compiling import compile_function
from keras_transformer.inference.token_pairs import pair_batches, pair_rows
from keras_transformer.layers import padding_mask


class ScoreResult(NamedTuple):
    """The scores of the targets of a corpus.

    Attributes:
        scores: float32 array `(batch,)`, sum of the log-probabilities (natural
            logarithm) of each target's tokens, the end token included.
        lengths: int32 array `(batch,)`, the number of these tokens.
        token_scores: list of float32 arrays `(target_length,)`, the log-probabilities
            themselves.
    """

    scores: np.ndarray
    lengths: np.ndarray
    token_scores: list[np.ndarray]

    @property
    def perplexity(self) -> float:
        """`exp` of the mean negative log-probability of all tokens; 1 without any."""
        tokens = max(int(self.lengths.sum()), 1)
        with np.errstate(over="ignore"):  # infinite, of a model that knows nothing
            return float(np.exp(-self.scores.sum(dtype="float64") / tokens))


def score(model: Any, sources: Any, targets: Any, batch_size: int = 64) -> ScoreResult:
    """Computes how probable each target is, given its source.

    The score of one pair does not depend on the others. There is no label
    smoothing and no length penalty in it.

    Args:
        model: the `Seq2Seq`.
        sources: a text or a list of texts, if the model has tokenizers; or token
            ids, each with its end token: a list of lists of ints, or an int array
            `(batch, source_length)` with padding.
        targets: as many texts or lists of token ids, likewise; the start token is
            not one of them. `generate(ids).token_ids[:, 0]` is of this form.
        batch_size: int, pairs scored together.

    Returns:
        A `ScoreResult` of NumPy arrays, with the `perplexity` of the corpus.

    Raises:
        ValueError: if there are more sources or targets, a token id is not in the
            vocabulary, a row is longer than `max_source_length` or
            `max_target_length`, or texts come to a model without tokenizers.

    Example:

    ```python
    result = model.score(["A man sleeps."], ["Ein Mann schläft."])
    print(result.scores.shape, result.perplexity > 1)  # (1,) True
    print(len(result.token_scores[0]) == result.lengths[0])  # True
    ```
    """
    return model._scorer(sources, targets, batch_size)


class Scorer:
    """Scores with one model; keeps what it has compiled.

    Args:
        model: a `Seq2Seq`.
    """

    def __init__(self, model: Any):
        self._model = model
        self._compiled = compile_function(
            lambda *batch: token_log_probabilities(model, *batch), model
        )

    def __call__(self, sources: Any, targets: Any, batch_size: int) -> ScoreResult:
        """Scores; see `Seq2Seq.score`."""
        sources, targets = pair_rows(self._model, sources, targets)
        found = {}
        for chosen, batch in pair_batches(self._model, sources, targets, batch_size):
            result = ops.convert_to_numpy(self._compiled(*batch))
            for i, scores in zip(chosen, result, strict=False):
                found[i] = scores[: len(targets[i])].copy()
        token_scores = [found[i] for i in range(len(targets))]
        return ScoreResult(
            scores=np.array([scores.sum() for scores in token_scores], "float32"),
            lengths=np.array([len(row) for row in targets], "int32"),
            token_scores=token_scores,
        )


def token_log_probabilities(
    model: Any, encoder_token_ids: Any, decoder_token_ids: Any, target_token_ids: Any
) -> Any:
    """Scores the tokens of a batch; can be traced by every backend.

    Args:
        model: a `Seq2Seq` or an `Ensemble`.
        encoder_token_ids: int tensor `(batch, source_length)`, padded.
        decoder_token_ids: int tensor `(batch, target_length)`, the targets behind the
            start token.
        target_token_ids: int tensor `(batch, target_length)`, padded.

    Returns:
        float32 tensor `(batch, target_length)`, 0 for padding.
    """
    inputs = {
        "encoder_token_ids": encoder_token_ids,
        "decoder_token_ids": decoder_token_ids,
    }
    logits = ops.cast(model(inputs, training=False), "float32")
    chosen = ops.take_along_axis(logits, target_token_ids[:, :, None], axis=-1)
    log_probabilities = chosen[:, :, 0] - ops.logsumexp(logits, axis=-1)
    real = padding_mask(target_token_ids, model.pad_token_id)
    return ops.where(real, log_probabilities, 0.0)
