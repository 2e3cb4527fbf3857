"""Trains in processes of its own that kill themselves; `test_kill.py` starts it.

Each life of a run is a fork of this process, which has only imported things, so that
the imports are paid for once.

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

from keras_transformer import Checkpoints, files
from keras_transformer.training.checkpoints import storage

SEED = 3


def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


class DieAfter(keras.callbacks.Callback):
    """Kills the process when it has made so many steps."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps

    def on_train_batch_end(self, batch, logs=None):
        self.steps -= 1
        if self.steps == 0:
            die()


class WrittenLog(LossLog):
    """Writes each line at once, so that it outlives the process."""

    def __init__(self, path):
        super().__init__()
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        (position, values), *_ = reversed(self.logs.items())
        os.write(self.file, f"{json.dumps([*position, *values])}\n".encode())


def save_half(file, *arrays):
    """`numpy.savez`, killed half-way."""
    np.savez(file, *arrays[: len(arrays) // 2])
    file.flush()
    die()


def at_call(number, where, module, name, instead):
    """Lets code find something else in a module, at one of its calls."""
    usual = getattr(where, module)
    calls = itertools.count(1)

    def function(*args, **kwargs):
        return (instead if next(calls) == number else getattr(usual, name))(
            *args, **kwargs
        )

    setattr(where, module, types.SimpleNamespace(**vars(usual) | {name: function}))


def in_a_step():
    return [DieAfter(4)]


def half_way_through_a_write():
    at_call(2, storage, "np", "savez", save_half)
    return []


def before_renaming():
    at_call(3, files, "os", "replace", die)
    return []


def after_renaming():
    storage.remove_superseded = die
    return []


KILLINGS = [in_a_step, half_way_through_a_write, before_renaming, after_renaming]


def start(folder, life=0, killing=None):
    """Starts one life of a run; returns the number of its process."""
    if process := os.fork():
        return process
    keras.utils.set_random_seed(SEED + life)
    data, model = make_data(), make_model()
    model.fit(
        data.dataset,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[
            WrittenLog(folder / f"{life}.jsonl"),
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
    for life, killing in enumerate(KILLINGS):
        process = start(folder / "killed", life, killing)
        ends[killing.__name__] = end_of(process)
    ends["last"] = end_of(start(folder / "killed", len(KILLINGS)))
    ends["whole"] = end_of(whole)
    print(json.dumps(ends))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
