"""States of the global random generators: Python, NumPy and, if imported, PyTorch.

The seed generators of layers are variables of a model. Keras shuffles arrays with the
global generators, and on PyTorch its `Dropout` without a seed uses that of PyTorch.
"""

import random
import sys
from typing import Any, NotRequired, TypedDict

import keras
import numpy as np


class RandomState(TypedDict):
    """States of the generators. Those of PyTorch are arrays of bytes."""

    python: tuple[int, tuple[int, ...], float | None]
    numpy: dict[str, Any]
    torch: NotRequired[np.ndarray]
    cuda: NotRequired[list[np.ndarray]]


def save_random_state() -> RandomState:
    """Returns the states of the generators."""
    numpy: dict[str, Any] = np.random.get_state(legacy=False)
    state: RandomState = {"python": random.getstate(), "numpy": numpy}
    if torch := sys.modules.get("torch"):
        state["torch"] = torch.get_rng_state().numpy()
        on_devices = torch.cuda.is_initialized() and torch.cuda.get_rng_state_all()
        state["cuda"] = [each.numpy() for each in on_devices or ()]
    return state


def restore_random_state(state: RandomState) -> None:
    """Restores the states of the generators."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(state["numpy"])
    if (torch := sys.modules.get("torch")) and "torch" in state:
        torch.set_rng_state(torch.from_numpy(state["torch"]))
        torch.cuda.set_rng_state_all([torch.from_numpy(s) for s in state["cuda"]])


def check_random_state(state: RandomState) -> None:
    """Raises an error if a value, which may have any type, is no such state."""
    version, words, gauss = state["python"]
    random.Random().setstate((version, tuple(words), gauss))
    np.random.RandomState().set_state(state["numpy"])
    of_torch = [state.get("torch", []), state.get("cuda", [])]
    for value in keras.tree.flatten(of_torch):
        if not isinstance(value, np.ndarray) or value.dtype != "uint8":
            raise TypeError("a random state of PyTorch is not of bytes")


def initial_seed() -> int | None:
    """Returns the seed of the global generator of PyTorch; `None` on other backends."""
    if keras.backend.backend() != "torch":
        return None
    return int(sys.modules["torch"].initial_seed())


def seed_epoch(seed: int | None, epoch: int) -> None:
    """Seeds the global generator of PyTorch with `initial_seed` and the epoch.

    The iterators of the data draw from it as well, but not at the end of an epoch that
    is resumed.
    """
    if seed is not None:
        sys.modules["torch"].manual_seed((seed + epoch) % 2**63)
