"""Optimizer that skips updates whose loss or gradients are not finite."""

import math

import keras
from keras import ops

from keras_transformer.backend.distribution import (
    all_replicas,
    apply_if_finite,
    count_replicas,
)
from keras_transformer.types import Config, Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class SkipNonFinite(keras.optimizers.Optimizer):
    """Optimizer that skips updates whose loss or gradients are not finite.

    A skipped update does not change the weights, their moving averages, the learning
    rate or the number of iterations.

    `keras.optimizers.LossScaleOptimizer`, which float16 requires, checks the gradients
    only. It must be the inner optimizer; `compile` of a `mixed_float16` `Seq2Seq`
    ensures this. It also halves its scale at a skipped update.

    `NonFiniteLoss("skip")` reports the number of skipped updates, stops after too many
    and excludes their losses from the metrics. Without it, updates are skipped without
    a warning.

    Args:
        inner_optimizer: the Keras optimizer that makes the updates.
        name: str, name of the optimizer.

    Example:

    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> model.compile(SkipNonFinite(keras.optimizers.SGD()), loss="mse")
    >>> before = model.get_weights()
    >>> loss = model.train_on_batch(np.array([[np.nan]]), np.array([[1.0]]))
    >>> np.array_equal(model.get_weights()[0], before[0])
    True
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        name: str = "skip_non_finite",
    ) -> None:
        super().__init__(learning_rate=0.0, name=name)
        self._optimizer = inner_optimizer

    @property
    def inner_optimizer(self) -> keras.optimizers.Optimizer:
        """The optimizer that makes the updates, inside any `LossScaleOptimizer`.

        The callbacks of Keras read the moving averages from it.
        """
        inner = self._optimizer
        return inner.inner_optimizer if self.has_loss_scaling else inner

    def with_loss_scaling(self) -> "SkipNonFinite":
        """Returns an optimizer with a `LossScaleOptimizer` inside.

        Outside, the `LossScaleOptimizer` would hide `inner_optimizer` from Keras.

        Returns:
            A `SkipNonFinite`; itself if it already has loss scaling.
        """
        if self.has_loss_scaling:
            return self
        scaling = keras.optimizers.LossScaleOptimizer(self._optimizer)
        return SkipNonFinite(scaling, self.name)

    @property
    def has_loss_scaling(self) -> bool:
        """Whether there is a `LossScaleOptimizer` inside."""
        return isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer)

    def build(self, variables: list[keras.Variable]) -> None:
        self._optimizer.build(variables)
        super().build(variables)

    @property
    def variables(self) -> list[keras.Variable]:
        return self._optimizer.variables

    def scale_loss(self, loss: Tensor) -> Tensor:
        # If the loss is not finite, all gradients become NaN.
        factor = ops.where(ops.isfinite(loss), 1.0, math.nan)
        return self._optimizer.scale_loss(loss) * ops.cast(factor, loss.dtype)

    def apply(
        self,
        grads: list[Tensor | None],
        trainable_variables: list[keras.Variable] | None = None,
    ) -> None:
        if not self.built and trainable_variables is not None:
            self.build(trainable_variables)
        if count_replicas() > 1:
            self._apply_on_replicas(grads, trainable_variables)
            return
        if self.has_loss_scaling:  # It skips non-finite gradients itself.
            self._optimizer.apply(grads, trainable_variables)
            return
        ops.cond(
            _all_finite(grads),
            lambda: self._optimizer.apply(grads, trainable_variables),
            lambda: None,
        )

    def _apply_on_replicas(
        self,
        grads: list[Tensor | None],
        trainable_variables: list[keras.Variable] | None,
    ) -> None:
        """Applies the gradients on all replicas, or on none."""
        finite = _all_finite(grads)
        if not self.has_loss_scaling:
            apply_if_finite(finite, self._optimizer.apply, grads, trainable_variables)
            return
        # `LossScaleOptimizer` looks at the gradients of a single replica.
        factor = ops.where(all_replicas(finite), 1.0, math.nan)
        grads = [g if g is None else g * ops.cast(factor, g.dtype) for g in grads]
        self._optimizer.apply(grads, trainable_variables)

    def stateless_apply(
        self,
        optimizer_variables: list[Tensor],
        grads: list[Tensor | None],
        trainable_variables: list[Tensor],
    ) -> tuple[list[Tensor], list[Tensor]]:
        # On PyTorch, the inner optimizer may write into the values that it receives.
        before = keras.tree.map_structure(
            ops.copy, (trainable_variables, optimizer_variables)
        )
        after = self._optimizer.stateless_apply(
            optimizer_variables, grads, trainable_variables
        )
        if self.has_loss_scaling:  # It skips non-finite gradients itself.
            return after
        finite = _all_finite(grads)
        return keras.tree.map_structure(
            lambda new, old: ops.where(finite, new, old), after, before
        )

    @property
    def learning_rate(self) -> Tensor:
        return self._optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Tensor | float) -> None:
        self._optimizer.learning_rate = learning_rate

    @property
    def iterations(self) -> keras.Variable:
        return self._optimizer.iterations

    def finalize_variable_values(self, var_list: list[keras.Variable]) -> None:
        self._optimizer.finalize_variable_values(var_list)

    def get_config(self) -> Config:
        inner = keras.saving.serialize_keras_object(self._optimizer)
        return {"inner_optimizer": inner, "name": self.name}

    @classmethod
    def from_config(
        cls, config: Config, custom_objects: Config | None = None
    ) -> "SkipNonFinite":
        inner = keras.saving.deserialize_keras_object(
            config["inner_optimizer"], custom_objects
        )
        return cls(**{**config, "inner_optimizer": inner})


def _all_finite(tensors: list[Tensor | None]) -> Tensor:
    """Returns a bool scalar tensor, whether all tensors are finite."""
    finite = [ops.all(ops.isfinite(t)) for t in tensors if t is not None]
    return ops.all(ops.stack(finite))
