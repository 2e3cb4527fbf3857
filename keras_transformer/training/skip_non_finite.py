"""An optimizer that skips updates whose loss or gradients are not finite."""

import math
from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_transformer")
class SkipNonFinite(keras.optimizers.Optimizer):
    """An optimizer that skips updates whose loss or gradients are not finite.

    Such a step leaves weights, averages, learning rate and number of iterations
    unchanged. `keras.optimizers.LossScaleOptimizer`, which float16 needs, looks at the
    gradients alone: it must be the inner one, and compiling a `Seq2Seq` of
    `mixed_float16` makes it so. It halves its scale at such a step, too.

    `NonFiniteLoss("skip")` counts what is skipped, says so, stops if it is too much,
    and keeps such losses out of the metrics. Without it all this is silent.

    Args:
        inner_optimizer: the Keras optimizer that makes the updates.
        name: str, the name of the optimizer.

    Example:

    >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    >>> model.compile(SkipNonFinite(keras.optimizers.SGD()), loss="mse")
    >>> before = model.get_weights()
    >>> loss = model.train_on_batch(np.array([[np.nan]]), np.array([[1.0]]))
    >>> np.array_equal(model.get_weights()[0], before[0])
    True
    """

    def __init__(self, inner_optimizer: Any, name: str = "skip_non_finite"):
        super().__init__(learning_rate=0.0, name=name)
        self._optimizer = inner_optimizer

    @property
    def inner_optimizer(self) -> Any:
        """The optimizer that makes the updates, inside any `LossScaleOptimizer`.

        Keras's callbacks unwrap it to find the moving averages.
        """
        scaling = self._optimizer
        return scaling.inner_optimizer if self.is_scaling else scaling

    def scaling(self) -> "SkipNonFinite":
        """Returns one with loss scaling inside; around it, Keras would not see it."""
        if self.is_scaling:
            return self
        scaling = keras.optimizers.LossScaleOptimizer(self._optimizer)
        return SkipNonFinite(scaling, self.name)

    @property
    def is_scaling(self) -> bool:
        """Whether there is a `LossScaleOptimizer` inside."""
        return isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer)

    def build(self, variables: list[Any]) -> None:
        self._optimizer.build(variables)
        super().build(variables)

    @property
    def variables(self) -> list[Any]:
        return self._optimizer.variables

    def scale_loss(self, loss: Any) -> Any:
        # All gradients become NaN where the loss is not finite.
        finite = ops.where(ops.isfinite(loss), 1.0, math.nan)
        return self._optimizer.scale_loss(loss) * ops.cast(finite, loss.dtype)

    def apply(self, grads: list[Any], trainable_variables: Any = None) -> None:
        if not self.built:
            self.build(trainable_variables)
        if self.is_scaling:  # It leaves steps out itself, by what it sees.
            self._optimizer.apply(grads, trainable_variables)
            return
        ops.cond(
            _all_finite(grads),
            lambda: self._optimizer.apply(grads, trainable_variables),
            lambda: None,
        )

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        before = trainable_variables, optimizer_variables
        after = self._optimizer.stateless_apply(
            optimizer_variables, grads, trainable_variables
        )
        if self.is_scaling:  # It leaves steps out itself, by what it sees.
            return after
        finite = _all_finite(grads)
        return keras.tree.map_structure(
            lambda new, old: ops.where(finite, new, old), after, before
        )

    @property
    def learning_rate(self) -> Any:
        return self._optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self._optimizer.learning_rate = learning_rate

    @property
    def iterations(self) -> Any:
        return self._optimizer.iterations

    def finalize_variable_values(self, var_list: list[Any]) -> None:
        self._optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        inner = keras.saving.serialize_keras_object(self._optimizer)
        return {"inner_optimizer": inner, "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        inner = keras.saving.deserialize_keras_object(
            config["inner_optimizer"], custom_objects
        )
        return cls(**{**config, "inner_optimizer": inner})


def _all_finite(tensors: list[Any]) -> Any:
    finite = [ops.all(ops.isfinite(t)) for t in tensors if t is not None]
    return ops.all(ops.stack(finite))
