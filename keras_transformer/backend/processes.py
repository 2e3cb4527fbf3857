"""Processes that train one model together, on JAX and PyTorch."""

import contextlib
import contextvars
import functools
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import keras
import numpy as np

from keras_transformer.backend import torch_processes
from keras_transformer.types import Tensor

# Whether the first process runs a method that writes files, without the others.
_is_writing: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "is_writing", default=False
)

P = ParamSpec("P")
T = TypeVar("T")
Model = TypeVar("Model")


def count_processes() -> int:
    """Returns the number of processes that train together on JAX or PyTorch."""
    if keras.backend.backend() == "jax":
        import jax

        return int(jax.process_count())
    torch = sys.modules.get("torch")
    distributed = torch and torch.distributed
    if keras.backend.backend() == "torch" and (
        distributed and distributed.is_available() and distributed.is_initialized()
    ):
        return int(distributed.get_world_size())
    return 1


def is_first_process() -> bool:
    """Returns whether this process writes the files of a run."""
    return index_of_process() == 0


def index_of_process() -> int:
    """Returns the index of this process among those that train together."""
    if keras.backend.backend() == "jax":
        import jax

        return int(jax.process_index())
    if count_processes() == 1:
        return 0
    import torch.distributed

    return int(torch.distributed.get_rank())


def on_cpu() -> contextlib.AbstractContextManager[object]:
    """Returns a context in which new tensors are on the CPU.

    `keras.device("cpu")` is the CPU of the first process.
    """
    if keras.backend.backend() != "jax":
        return keras.device("cpu")
    import jax

    return jax.default_device(jax.local_devices(backend="cpu")[0])


def greatest(values: list[int]) -> list[int]:
    """Returns the largest int32 numbers of all processes, each of which calls it."""
    if count_processes() == 1:
        return values
    if keras.backend.backend() == "torch":
        return torch_processes.greatest(values)
    from jax.experimental import multihost_utils

    gathered = multihost_utils.process_allgather(np.array(values, "int32"))
    return [int(value) for value in gathered.max(axis=0)]


def of_first_process(values: list[float]) -> list[float]:
    """Returns the float32 numbers of the first process; each process calls it."""
    if count_processes() == 1:
        return values
    if keras.backend.backend() == "torch":
        return torch_processes.broadcast_floats(values)
    from jax.experimental import multihost_utils

    found = multihost_utils.broadcast_one_to_all(np.array(values, "float32"))
    return [float(value) for value in found]


def fail_together(function: Callable[P, T]) -> Callable[P, T]:
    """Makes a function fail in all processes if it fails in one.

    The others would wait for that process. Each process calls the function.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        error: Exception | None = None
        try:
            result = function(*args, **kwargs)
        except Exception as caught:
            error = caught
        (failed,) = greatest([error is not None])
        if error is not None:
            raise error
        if failed:
            raise RuntimeError("Another process has failed. See its error.")
        return result

    return call


def whole_value(variable: keras.Variable) -> np.ndarray:
    """Returns the value of a variable, whose parts may be on several devices.

    If the parts of this process are not all, each process must call it.
    """
    if count_processes() == 1 or keras.backend.backend() != "jax":
        return np.asarray(keras.ops.convert_to_numpy(variable))
    return _whole(variable.value)


def _whole(value: Any) -> np.ndarray:
    if value.is_fully_replicated or value.is_fully_addressable:
        return np.asarray(value)
    parts = {str(part.index): part for part in value.addressable_shards}
    if sum(part.data.size for part in parts.values()) == value.size:
        whole = np.empty(value.shape, value.dtype)
        for part in parts.values():
            whole[part.index] = part.data
        return whole
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(value, tiled=True))


def values_here(variables: Iterable[keras.Variable]) -> list[Tensor]:
    """Returns the values of variables, for computations of this process alone.

    If there are several processes of JAX, they are copies on its first device.
    """
    values = [variable.value for variable in variables]
    if count_processes() == 1 or keras.backend.backend() != "jax":
        return values
    import jax

    device = jax.local_devices()[0]
    return [jax.device_put(_whole(value), device) for value in values]


def written_by_first_process(
    method: Callable[Concatenate[Model, P], None],
) -> Callable[Concatenate[Model, P], None]:
    """Makes a method of a model that writes files do so in the first process only.

    Each process calls the method, as the weights may be distributed over processes.
    """

    @functools.wraps(method)
    def write(model: Model, *args: P.args, **kwargs: P.kwargs) -> None:
        if count_processes() == 1 or _is_writing.get():
            return method(model, *args, **kwargs)
        variables: list[keras.Variable] = []
        if keras.backend.backend() == "jax":  # elsewhere, each process has them whole
            variables += model.variables  # type: ignore[attr-defined]
            if (optimizer := getattr(model, "optimizer", None)) is not None:
                variables += optimizer.variables
        values = values_here(variables)

        @fail_together  # The others wait, and can read the files afterwards.
        def write_in_first() -> None:
            if not is_first_process():
                return
            token = _is_writing.set(True)
            try:
                with _replaced_values(variables, values):
                    method(model, *args, **kwargs)
            finally:
                _is_writing.reset(token)

        write_in_first()
        return None

    return write


@contextlib.contextmanager
def _replaced_values(
    variables: Sequence[keras.Variable], values: Sequence[Tensor]
) -> Iterator[None]:
    """Gives variables other values for a while, which may be on other devices."""
    # `Variable.assign` moves a value to the devices of the variable, and in a
    # `keras.StatelessScope` Keras cannot save an optimizer, as it creates another one.
    if not all(hasattr(variable, "_value") for variable in variables):
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            yield
        return
    before = [variable._value for variable in variables]
    try:
        for variable, value in zip(variables, values, strict=True):
            variable._value = value  # type: ignore[attr-defined]
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable._value = value  # type: ignore[attr-defined]


def with_equal_batches(train_function: Callable[..., T]) -> Callable[..., T]:
    """Checks that all processes train on equal batches.

    Each process has a copy of the whole batch. If the copies differ, no backend raises
    an error, and the weights are those of no batch.

    Args:
        train_function: `train_function` of a Keras model. On JAX, it takes a state and
            an iterator of batches, on PyTorch a list of batches.
    """
    comparison = _Comparison()
    if keras.backend.backend() == "torch":

        @functools.wraps(train_function)
        def checked(batches: Sequence[object]) -> T:
            if count_processes() > 1:  # perhaps since the last call
                comparison.add(batches)
            return train_function(batches)

        return checked
    if count_processes() == 1:
        return train_function

    def compared(iterator: Iterator[object]) -> Iterator[object]:
        for batch in iterator:
            comparison.add(batch)
            yield batch

    return lambda state, iterator: train_function(state, compared(iterator))


class _Comparison:
    """Compares checksums after 1, 2, 4, … batches, and at least every 64."""

    def __init__(self) -> None:
        self._count, self._next, self._checksum = 0, 1, 0

    def add(self, batch: object) -> None:
        for tensor in keras.tree.flatten(batch):
            if tensor is not None:
                data = _copy_here(tensor)
                shape = repr(data.shape).encode()
                self._checksum = zlib.crc32(shape + data.tobytes(), self._checksum)
        self._count += 1
        if self._count < self._next:
            return
        self._next += min(self._next, 64)
        checksum = self._checksum & 0x7FFF_FFFF  # an int32
        highest, lowest = greatest([checksum, -checksum])
        if highest != -lowest:
            raise ValueError(
                "All processes must train on equal batches, whose rows their devices "
                f"share; received batches that differ, the first {self._count} of this "
                "`fit`. Use the same files, seed and arguments in every process, and "
                "no `shard`."
            )


def _copy_here(tensor: Any) -> np.ndarray:
    """Returns the copy of a tensor that this process has."""
    if keras.backend.backend() == "jax":
        return np.asarray(tensor.addressable_data(0))
    return np.asarray(keras.ops.convert_to_numpy(tensor))
