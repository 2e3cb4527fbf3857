"""Trains in processes that kill themselves, for `test_kill.py`.

Each process is a fork of this one, so that the package is imported once.

    python killed_runs.py FOLDER
"""

import itertools
import json
import os
import pathlib
import signal
import sys
import types

import keras
import numpy as np
from small_run import EPOCHS, LossLog, make_data, make_model

from keras_transformer import Checkpoints
from keras_transformer.training.checkpoints import storage
from keras_transformer_runtime import files

SEED = 3


def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


class DieAfter(keras.callbacks.Callback):
    """Kills the process after a number of steps."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, batch, logs=None):
        self.steps -= 1
        if self.steps == 0:
            die()


class WrittenLog(LossLog):
    """Writes each line immediately, before the process can be killed."""

    def __init__(self, path):
        super().__init__()
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        (position, values), *_ = reversed(self.logs.items())
        os.write(self.file, f"{json.dumps([*position, *values])}\n".encode())


def save_half(file, *arrays):
    """Writes half of the arrays of `numpy.savez`, then kills the process."""
    np.savez(file, *arrays[: len(arrays) // 2])
    file.flush()
    die()


def at_call(number, user, module, name, replacement):
    """Replaces one call of a function of a module that `user` imports."""
    original = getattr(user, module)
    calls = itertools.count(1)

    def function(*args, **kwargs):
        is_replaced = next(calls) == number
        called = replacement if is_replaced else getattr(original, name)
        return called(*args, **kwargs)

    setattr(user, module, types.SimpleNamespace(**vars(original) | {name: function}))


def in_a_step():
    return [DieAfter(4)]


def during_a_write():
    at_call(2, storage, "np", "savez", save_half)
    return []


def before_renaming():
    at_call(3, files, "os", "replace", die)
    return []


def after_renaming():
    storage.remove_superseded = die
    return []


KILLINGS = [in_a_step, during_a_write, before_renaming, after_renaming]


def start(folder, number=0, killing=None):
    """Starts a process that trains; returns its id."""
    if process := os.fork():
        return process
    keras.utils.set_random_seed(SEED + number)
    data, model = make_data(), make_model()
    model.fit(
        data.dataset,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[
            WrittenLog(folder / f"{number}.jsonl"),
            *(killing() if killing else []),
            Checkpoints(folder / "checkpoints", data=data, save_every=2),
        ],
    )
    np.savez(folder / "weights.npz", *model.get_weights())
    os._exit(0)


def end_of(process):
    """Waits for a process; returns its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main(folder):
    for name in ("whole", "killed"):
        (folder / name).mkdir()
    whole = start(folder / "whole")
    ends = {}
    for number, killing in enumerate(KILLINGS):
        process = start(folder / "killed", number, killing)
        ends[killing.__name__] = end_of(process)
    ends["last"] = end_of(start(folder / "killed", len(KILLINGS)))
    ends["whole"] = end_of(whole)
    print(json.dumps(ends))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
