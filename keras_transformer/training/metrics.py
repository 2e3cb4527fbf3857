"""Metrics of tokens, without padding and exact over batches of different lengths."""

import abc

import keras
from keras import ops

from keras_transformer.training.losses import (
    flatten_tokens,
    in_vocabulary,
    pick,
    token_cross_entropy,
)
from keras_transformer.types import Config, Tensor, TokenIds


class TokenMean(keras.metrics.Mean):
    """Mean of a value of each real token, over the tokens of all batches."""

    def __init__(
        self, pad_token_id: int, name: str, dtype: str | keras.DTypePolicy
    ) -> None:
        super().__init__(name, dtype)
        self.pad_token_id = int(pad_token_id)

    @abc.abstractmethod
    def _values(self, targets: TokenIds, logits: Tensor) -> Tensor:
        """Computes `(tokens,)` from targets and logits `(tokens, vocabulary_size)`."""

    def update_state(
        self, y_true: TokenIds, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        targets, logits, weights = flatten_tokens(
            y_true, y_pred, sample_weight, self.pad_token_id
        )
        values = self._values(targets, ops.stop_gradient(logits))
        super().update_state(values, weights)

    def get_config(self) -> Config:
        return {"pad_token_id": self.pad_token_id, **super().get_config()}


@keras.saving.register_keras_serializable("keras_transformer")
class MaskedTokenAccuracy(TokenMean):
    """Fraction of the real target tokens that have the highest logit.

    Positions whose target is `pad_token_id` are ignored, and so is a Keras mask on the
    logits. The metric sums over the tokens of all batches, so it is exact for batches
    of different lengths. Without real tokens the result is 0.

    Args:
        pad_token_id: int, the target id of padding.
        name: str, name of the metric.
        dtype: str, dtype of the sums.

    Call arguments:
        y_true: int tensor `(batch, target_length)`, the target ids.
        y_pred: float tensor `(batch, target_length, vocabulary_size)`, the logits.
        sample_weight: `None`, or float tensor `(batch, target_length)` or `(batch,)`.
            Keras passes it to the `weighted_metrics` of `compile`.

    Returns:
        float32 scalar tensor in [0, 1].

    Raises:
        ValueError: if the shapes of `y_true` and `y_pred` do not match.

    Example:

    ```python
    import numpy as np
    from keras_transformer.training import MaskedTokenAccuracy

    accuracy = MaskedTokenAccuracy(pad_token_id=0)
    logits = np.eye(4, dtype="float32")[[[3, 1, 2]]]
    print(float(accuracy(np.array([[3, 2, 0]]), logits)))  # 0.5
    ```
    """

    def __init__(
        self,
        pad_token_id: int = 0,
        name: str = "token_accuracy",
        dtype: str | keras.DTypePolicy = "float32",
    ) -> None:
        super().__init__(pad_token_id, name, dtype)
        self._direction = "up"  # Higher is better, for the callbacks of Keras.

    def _values(self, targets: TokenIds, logits: Tensor) -> Tensor:
        known = in_vocabulary(targets, logits)
        # The loss computes the maximum as well, but not the argmax.
        target_logits = pick(logits, ops.where(known, targets, 0))
        return ops.logical_and(known, target_logits >= ops.max(logits, axis=-1))


@keras.saving.register_keras_serializable("keras_transformer")
class Perplexity(TokenMean):
    """Perplexity of the real target tokens: exp of their mean negative log-likelihood.

    There is no label smoothing, so models trained with different values are comparable.
    Positions whose target is `pad_token_id` are ignored, and so is a Keras mask on the
    logits. The metric sums over the tokens of all batches, so it is exact for batches
    of different lengths, unlike the mean of the losses of batches. Without real tokens
    the result is 1. A target id outside the vocabulary makes it infinite.

    Args:
        pad_token_id: int, the target id of padding.
        name: str, name of the metric.
        dtype: str, dtype of the sums.

    Call arguments:
        y_true: int tensor `(batch, target_length)`, the target ids.
        y_pred: float tensor `(batch, target_length, vocabulary_size)`, the logits.
        sample_weight: `None`, or float tensor `(batch, target_length)` or `(batch,)`.
            Keras passes it to the `weighted_metrics` of `compile`.

    Returns:
        float32 scalar tensor, at least 1.

    Raises:
        ValueError: if the shapes of `y_true` and `y_pred` do not match.

    Example:

    ```python
    import numpy as np
    from keras_transformer.training import Perplexity

    perplexity = Perplexity(pad_token_id=0)
    result = perplexity(np.array([[3, 2, 0]]), np.zeros((1, 3, 7)))
    print(f"{float(result):.4f}")  # 7.0000
    ```
    """

    def __init__(
        self,
        pad_token_id: int = 0,
        name: str = "perplexity",
        dtype: str | keras.DTypePolicy = "float32",
    ) -> None:
        super().__init__(pad_token_id, name, dtype)
        self._direction = "down"  # Lower is better.

    def _values(self, targets: TokenIds, logits: Tensor) -> Tensor:
        return token_cross_entropy(targets, ops.cast(logits, "float32"))

    def result(self) -> Tensor:
        return ops.exp(super().result())
