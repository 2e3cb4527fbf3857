"""Cross-entropy of logits with integer targets, averaged over the real tokens."""

import math
from collections.abc import Callable

import keras
from keras import ops

from keras_transformer.backend.cross_entropy import (
    cross_entropy_gradient,
    logsumexp,
)
from keras_transformer.backend.custom_gradient import with_gradient
from keras_transformer.types import Config, Mask, Shape, Tensor, TokenIds
from keras_transformer_runtime.arguments import check_numbers


@keras.saving.register_keras_serializable("keras_transformer")
class LabelSmoothedCrossEntropy(keras.losses.Loss):
    """Label-smoothed cross-entropy of integer targets, averaged over the real tokens.

    The target distribution assigns `1 - label_smoothing` to the true token and
    distributes `label_smoothing` evenly over the whole vocabulary, including the true
    token, as `keras.losses.CategoricalCrossentropy` does with one-hot targets. No
    one-hot tensor is created: the only tensor of the size of the logits is their
    gradient. The loss is computed in float32 for logits of any dtype.

    Positions whose target is `pad_token_id` are padding. The sum over the other
    positions, weighted with their sample weights, is divided by the sum of these
    weights. The amount of padding therefore does not change the loss, and the loss of a
    batch without real tokens is 0. A Keras mask on the logits is ignored, as the
    targets determine the padding.

    A target id outside the vocabulary makes the loss infinite, on every backend and
    device, as a compiled loss cannot raise an error. Its gradient is 0. Use
    `NonFiniteLoss` or `keras.callbacks.TerminateOnNaN` to stop training.

    The loss that `fit` and `evaluate` report is Keras's mean over batches, weighted by
    their number of rows. `Perplexity` is exact over batches of different lengths.

    Args:
        label_smoothing: float in [0, 1), the paper's ε_ls.
        pad_token_id: int, the target id of padding. It may be outside the vocabulary,
            for example -100.
        name: str, name of the loss.

    Call arguments:
        y_true: int tensor `(batch, target_length)`, the target ids.
        y_pred: float tensor `(batch, target_length, vocabulary_size)`, the logits.
        sample_weight: `None`, or float tensor `(batch, target_length)` or `(batch,)`.

    Returns:
        float32 scalar tensor, in nats per token.

    Raises:
        ValueError: if `label_smoothing` is out of its range, or if the shapes of
            `y_true` and `y_pred` do not match.

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
        remedy = "The paper uses 0.1."
        check_numbers(0, below=1, remedy=remedy, label_smoothing=label_smoothing)
        super().__init__(name, reduction="mean_with_sample_weight", dtype="float32")
        self.label_smoothing = float(label_smoothing)
        self.pad_token_id = int(pad_token_id)

    def __call__(
        self, y_true: TokenIds, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        # The flattened logits are a new tensor without a Keras mask, which the
        # reduction would apply in addition to the weights.
        return super().__call__(
            *flatten_tokens(y_true, y_pred, sample_weight, self.pad_token_id)
        )

    def call(self, y_true: TokenIds, y_pred: Tensor) -> Tensor:
        return token_cross_entropy(
            ops.cast(y_true, "int32"), y_pred, self.label_smoothing
        )

    def get_config(self) -> Config:
        return {
            "label_smoothing": self.label_smoothing,
            "pad_token_id": self.pad_token_id,
            "name": self.name,
        }


def flatten_tokens(
    y_true: TokenIds, y_pred: Tensor, sample_weight: Tensor | None, pad_token_id: int
) -> tuple[TokenIds, Tensor, Tensor]:
    """Flattens the arguments of the loss into one axis of tokens.

    Returns the targets, int32 `(tokens,)`, 0 where their weight is 0; the logits
    `(tokens, vocabulary_size)`; and the weights, float32 `(tokens,)`, 0 at padding.
    """
    y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
    _check_shapes(tuple(y_true.shape), tuple(y_pred.shape))
    weights = token_weights(y_true, sample_weight, pad_token_id)
    weights = ops.reshape(weights, (-1,))
    targets = ops.reshape(ops.cast(y_true, "int32"), (-1,))
    logits = ops.reshape(y_pred, (-1, ops.shape(y_pred)[-1]))
    return ops.where(ops.equal(weights, 0.0), 0, targets), logits, weights


def token_weights(
    y_true: TokenIds, sample_weight: Tensor | None, pad_token_id: int
) -> Tensor:
    """Computes weights `(batch, target_length)`, float32, which are 0 at padding."""
    real = ops.cast(ops.not_equal(y_true, pad_token_id), "float32")
    if sample_weight is None:
        return real
    weights = ops.cast(sample_weight, "float32")
    return real * (weights[:, None] if len(weights.shape) == 1 else weights)


def token_cross_entropy(
    targets: TokenIds, logits: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """Computes the cross-entropy of each token, float32 `(tokens,)`, in nats.

    It is infinite for targets `(tokens,)` outside the vocabulary of the logits, float32
    `(tokens, vocabulary_size)`.
    """
    known = in_vocabulary(targets, logits)
    cross_entropy = _cross_entropy(label_smoothing)
    values = cross_entropy(logits, ops.where(known, targets, 0))
    return ops.where(known, values, math.inf)


def in_vocabulary(targets: TokenIds, logits: Tensor) -> Mask:
    """Returns which targets `(tokens,)` are in the vocabulary of the logits."""
    return ops.logical_and(targets >= 0, targets < ops.shape(logits)[-1])


def _cross_entropy(label_smoothing: float) -> Callable[[Tensor, TokenIds], Tensor]:
    """Returns the cross-entropy of logits and targets."""
    # With the target distribution q, the cross-entropy is logsumexp(logits) -
    # E_q[logits], and its gradient is softmax(logits) - q. Automatic differentiation
    # would add three tensors of the size of the logits.

    def value(logits: Tensor, targets: TokenIds) -> Tensor:
        expected = (1 - label_smoothing) * pick(logits, targets)
        if label_smoothing:  # For a masked logit, 0 * -inf would be NaN.
            expected += label_smoothing * ops.mean(logits, axis=-1)
        return logsumexp(logits) - expected

    def gradient(
        upstream: Tensor, logits: Tensor, targets: TokenIds
    ) -> tuple[Tensor, None]:
        return cross_entropy_gradient(logits, targets, label_smoothing, upstream), None

    return with_gradient(value, gradient)


def pick(values: Tensor, indices: Tensor) -> Tensor:
    """Returns one value of each row of `(rows, columns)`, at indices `(rows,)`."""
    return ops.take_along_axis(values, indices[:, None], axis=-1)[:, 0]


def _check_shapes(true: Shape, predicted: Shape) -> None:
    """Raises `ValueError` if targets and logits do not match."""
    sizes = zip(true, predicted, strict=False)
    ranks_match = len(true) == 2 and len(predicted) == 3
    if not ranks_match or any(a != b for a, b in sizes if None not in (a, b)):
        raise ValueError(
            "`y_true` must be token ids of shape (batch, target_length) and `y_pred` "
            "logits of shape (batch, target_length, vocabulary_size); received "
            f"`y_true.shape={true}` and `y_pred.shape={predicted}`. Pass integer ids, "
            "not one-hot vectors, and logits of the same length."
        )
