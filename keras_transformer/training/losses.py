"""Cross-entropy of logits with integer targets, averaged over the real tokens."""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.backend.cross_entropy import (
    cross_entropy_gradient,
    logsumexp,
)
from keras_transformer.types import Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class LabelSmoothedCrossEntropy(keras.losses.Loss):
    """Label-smoothed cross-entropy on integer targets, a mean over the real tokens.

    The target distribution gives `1 - label_smoothing` to the true token and spreads
    `label_smoothing` evenly over the whole vocabulary, the true token included, as
    `keras.losses.CategoricalCrossentropy` does on one-hot targets. No one-hot tensor
    is built, neither for the loss nor for its gradient: beside the logits there is
    their gradient alone. Everything is computed in float32, whatever the logits are.

    A position counts as padding where the target is `pad_token_id`. The sum over the
    other positions, times their sample weights, is divided by the sum of these
    weights, so more padding never changes the loss, and a batch of padding alone
    gives 0. A Keras mask on the logits is not used: the targets say it all.

    A compiled loss cannot raise an error on a target id outside the vocabulary, so
    such an id makes the loss infinite, on every backend and device alike (and
    `keras.callbacks.TerminateOnNaN` ends the training); its gradient is 0.

    The loss that `fit` and `evaluate` print is Keras's mean over batches, weighted by
    their rows; `Perplexity` is exact over batches of different lengths.

    Args:
        label_smoothing: float in [0, 1), the paper's ε_ls.
        pad_token_id: int, the target id that marks padding. It may lie outside the
            vocabulary (-100, say).
        name: str, the name of the loss.

    Call arguments:
        y_true: int tensor `(batch, target_length)`, the target ids.
        y_pred: float tensor `(batch, target_length, vocabulary_size)`, the logits.
        sample_weight: None, or a float tensor `(batch, target_length)` or `(batch,)`.

    Returns:
        A float32 scalar tensor, in nats a token.

    Raises:
        ValueError: if `label_smoothing` is out of its range, or the shapes of `y_true`
            and `y_pred` do not go together.

    Example:

    ```python
    import numpy as np
    from keras_transformer.training import LabelSmoothedCrossEntropy

    loss = LabelSmoothedCrossEntropy(label_smoothing=0.1, pad_token_id=0)
    target_token_ids = np.array([[5, 2, 0], [3, 6, 2]])
    logits = np.zeros((2, 3, 7), "float32")
    print(f"log(7) = {float(loss(target_token_ids, logits)):.4f}")  # log(7) = 1.9459
    ```

    References:
        - [Szegedy et al., 2016](https://arxiv.org/abs/1512.00567), section 7
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 5.4
    """

    def __init__(
        self,
        label_smoothing: float = 0.1,
        pad_token_id: int = 0,
        name: str = "label_smoothed_cross_entropy",
    ) -> None:
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                "`label_smoothing` must be at least 0 and below 1; received "
                f"`label_smoothing={label_smoothing}`. The paper uses 0.1."
            )
        super().__init__(name, reduction="mean_with_sample_weight", dtype="float32")
        self.label_smoothing = float(label_smoothing)
        self.pad_token_id = int(pad_token_id)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        # Keras's own reduction does the rest. The flattened logits are a new tensor,
        # without the Keras mask that it would apply on top of our weights.
        return super().__call__(
            *flatten_tokens(y_true, y_pred, sample_weight, self.pad_token_id)
        )

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return token_cross_entropy(
            ops.cast(y_true, "int32"), y_pred, self.label_smoothing
        )

    def get_config(self) -> dict[str, Any]:
        return {
            "label_smoothing": self.label_smoothing,
            "pad_token_id": self.pad_token_id,
            "name": self.name,
        }


def flatten_tokens(
    y_true: Any, y_pred: Any, sample_weight: Any, pad_token_id: int
) -> tuple[Any, Any, Any]:
    """Flattens the positions of a batch into one axis, each with its weight.

    Args:
        y_true: int tensor `(batch, target_length)`, the target ids.
        y_pred: float tensor `(batch, target_length, vocabulary_size)`, the logits.
        sample_weight: None, or a float tensor `(batch, target_length)` or `(batch,)`.
        pad_token_id: int, the target id that marks padding.

    Returns:
        `(targets, logits, weights)`: int32 `(batch * target_length,)`, the type of
        `y_pred` `(batch * target_length, vocabulary_size)`, and float32
        `(batch * target_length,)`, 0 at padding. Where the weight is 0, so is the
        target, whatever id stood there.

    Raises:
        ValueError: if the shapes of `y_true` and `y_pred` do not go together.
    """
    y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
    _check_shapes(tuple(y_true.shape), tuple(y_pred.shape))
    weights = token_weights(y_true, sample_weight, pad_token_id)
    weights = ops.reshape(weights, (-1,))
    targets = ops.reshape(ops.cast(y_true, "int32"), (-1,))
    logits = ops.reshape(y_pred, (-1, ops.shape(y_pred)[-1]))
    return ops.where(ops.equal(weights, 0.0), 0, targets), logits, weights


def token_weights(y_true: Any, sample_weight: Any, pad_token_id: int) -> Any:
    """Returns what each token counts for, 0 at padding.

    Args:
        y_true: int tensor `(batch, target_length)`, the target ids.
        sample_weight: `None`, or a tensor `(batch, target_length)` or `(batch,)`.
        pad_token_id: int, the target id that marks padding.

    Returns:
        Float32 tensor `(batch, target_length)`.
    """
    real = ops.cast(ops.not_equal(y_true, pad_token_id), "float32")
    if sample_weight is None:
        return real
    weights = ops.cast(sample_weight, "float32")
    return real * (weights[:, None] if len(weights.shape) == 1 else weights)


def token_cross_entropy(targets: Any, logits: Any, label_smoothing: float = 0.0) -> Any:
    """Computes each token's cross-entropy, infinite for ids outside the vocabulary.

    Args:
        targets: int32 tensor `(tokens,)`, the target ids.
        logits: float32 tensor `(tokens, vocabulary_size)`.
        label_smoothing: float in [0, 1).

    Returns:
        A float32 tensor `(tokens,)`, in nats.
    """
    known = in_vocabulary(targets, logits)
    cross_entropy = _cross_entropy_of(ops.where(known, targets, 0), label_smoothing)
    return ops.where(known, cross_entropy(logits), math.inf)


def in_vocabulary(targets: Any, logits: Any) -> Any:
    """Tells which targets are ids within the vocabulary of the logits.

    Args:
        targets: int32 tensor `(tokens,)`, the target ids.
        logits: float tensor `(tokens, vocabulary_size)`.

    Returns:
        A boolean tensor `(tokens,)`.
    """
    return ops.logical_and(targets >= 0, targets < ops.shape(logits)[-1])


def _cross_entropy_of(targets: Any, label_smoothing: float) -> Any:
    """Returns the cross-entropy as a function of the logits, with a custom gradient.

    With the target distribution q it is logsumexp(logits) - E_q[logits], and the
    gradient is softmax(logits) - q. Backends would find the latter as a sum of three
    tensors of the size of the logits (softmax, scattered targets, spread mean).
    """

    @ops.custom_gradient
    def cross_entropy(logits: Tensor) -> tuple[Tensor, Callable[..., Tensor]]:
        expected = (1 - label_smoothing) * pick(logits, targets)
        if label_smoothing:  # 0 * -inf, of a masked logit, would be NaN
            expected += label_smoothing * ops.mean(logits, axis=-1)

        # PyTorch passes the gradient by name, the other backends by position.
        def gradient(*args: Tensor, upstream: Tensor | None = None) -> Tensor:
            upstream = args[0] if upstream is None else upstream
            return cross_entropy_gradient(logits, targets, label_smoothing, upstream)

        return logsumexp(logits) - expected, gradient

    return cross_entropy


def pick(values: Any, indices: Any) -> Any:
    """Takes one value of each row.

    Args:
        values: tensor `(rows, columns)`.
        indices: int tensor `(rows,)`, a column for each row.

    Returns:
        Tensor `(rows,)` of the type of `values`.
    """
    return ops.take_along_axis(values, indices[:, None], axis=-1)[:, 0]


def _check_shapes(true: tuple, predicted: tuple) -> None:
    lengths = zip(true, predicted, strict=False)
    ranks_fit = len(true) == 2 and len(predicted) == 3
    if not ranks_fit or any(a != b for a, b in lengths if None not in (a, b)):
        raise ValueError(
            "`y_true` must be token ids of shape (batch, target_length) and `y_pred` "
            "logits of shape (batch, target_length, vocabulary_size); received "
            f"`y_true.shape={true}` and `y_pred.shape={predicted}`. Give the ids "
            "themselves, not one-hot rows, and as many of them as logits."
        )
