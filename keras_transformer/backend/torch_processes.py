"""Processes of PyTorch that train one model together, one process for each device."""

import atexit
import contextlib
import os
from collections.abc import Iterator, Sequence

import keras

from keras_transformer.types import Data, Tensor

# Distance of the seeds of two processes, larger than the number of draws in a run.
_SEED_DISTANCE = 100_000_007


def join_processes() -> None:
    """Connects the processes that `torchrun` has started, each with its own GPU.

    `RANK`, `LOCAL_RANK` and `WORLD_SIZE` are in the environment. The processes stay
    connected until they end: they write files together, and each keeps its GPU.
    """
    import torch
    from torch import distributed

    is_launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if torch.cuda.is_available() and "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if is_launched and not distributed.is_initialized():
        # Numbers are on the CPU, gradients on the GPU.
        kinds = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(kinds)
        atexit.register(_leave_processes)


def _leave_processes() -> None:
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


def device_kind() -> str:
    """Returns the kind of the devices of PyTorch, `"cuda"` or `"cpu"`."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def greatest(values: list[int]) -> list[int]:
    """Returns the largest int32 numbers of all processes."""
    import torch
    from torch import distributed

    numbers = torch.tensor(values, dtype=torch.int32)
    distributed.all_reduce(numbers, distributed.ReduceOp.MAX)
    return [int(number) for number in numbers]


def broadcast_floats(values: list[float]) -> list[float]:
    """Returns the float32 numbers of the first process."""
    import torch
    from torch import distributed

    numbers = torch.tensor(values, dtype=torch.float32)
    distributed.broadcast(numbers, 0)
    return [float(number) for number in numbers]


def broadcast_variables(variables: Sequence[keras.Variable]) -> None:
    """Gives variables the values that they have in the first process."""
    import torch
    from torch import distributed

    with torch.no_grad():
        for variable in variables:
            value: Data = variable.value
            distributed.broadcast(value.data, 0)


def sum_of_processes(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Adds tensors of all processes in float32, with one message.

    Args:
        tensors: tensors of the same shapes in every process.

    Returns:
        The sums, with the shapes and dtypes of `tensors`.
    """
    import torch
    from torch import distributed

    values: list[Data] = [tensor.detach() for tensor in tensors]  # type: ignore[attr-defined]
    flat = torch.cat([value.reshape(-1).float() for value in values])
    distributed.all_reduce(flat)
    parts = flat.split([value.numel() for value in values])
    return [
        part.view(value.shape).to(value.dtype)
        for part, value in zip(parts, values, strict=True)
    ]


@contextlib.contextmanager
def own_masks(model: keras.Model, process: int) -> Iterator[None]:
    """Gives each process other masks of dropout, and leaves equal random states.

    The order of the data depends on the same generators, and must be equal.
    """
    import torch

    generators: list[Data] = [torch.default_generator]
    if torch.cuda.is_initialized():
        generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
    seed = int(torch.randint(2**62, ())) + process
    states = [generator.get_state() for generator in generators]
    counters = [
        variable
        for variable in model.non_trainable_variables
        if variable.name == "seed_generator_state"
    ]
    for generator in generators:
        generator.manual_seed(seed)
    distance = process * _SEED_DISTANCE
    _add(counters, distance)
    try:
        yield
    finally:
        _add(counters, -distance)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _add(variables: Sequence[keras.Variable], number: int) -> None:
    for variable in variables:
        variable.assign(variable.value + number)
