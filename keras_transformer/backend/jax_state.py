"""The variables of a model whose `fit` ends with an error, on JAX.

During an epoch on JAX, `fit` has the values of the variables, and the variables have
none. An error of the data would leave the model without weights.
"""

import contextlib
from collections.abc import Iterator

import keras

from keras_transformer.types import Data, Logs


class EpochState(keras.callbacks.Callback):
    """Remembers the values that the variables have at the start of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self._values: list[tuple[keras.Variable, Data]] = []

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        groups = (
            self.model.variables,
            self.model.optimizer.variables,
            self.model.metrics_variables,
        )
        self._values = [(each, each.value) for group in groups for each in group]

    def restore(self) -> None:
        """Gives the variables the values of the last step."""
        if not self._values:
            return
        if any(value.is_deleted() for _, value in self._values):
            # A step has replaced them.
            self.model.jax_state_sync()
            return
        for variable, value in self._values:
            variable.assign(value)


@contextlib.contextmanager
def kept_variables() -> Iterator[list[keras.callbacks.Callback]]:
    """Yields callbacks for `fit`. After an error, the variables have their values."""
    if keras.backend.backend() != "jax":
        yield []
        return
    state = EpochState()
    try:
        yield [state]
    except Exception:
        state.restore()
        raise


def with_callbacks(callbacks: object, own: list[keras.callbacks.Callback]) -> object:
    """Returns the argument `callbacks` of `fit` with further callbacks in front."""
    if not own or isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    given = [] if callbacks is None else keras.tree.flatten(callbacks)
    return [*own, *given]
