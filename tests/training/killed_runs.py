"""Trains in a process that is killed in a certain place, for `test_kill.py`.

python killed_runs.py FOLDER NUMBER PLACE
"""

import json
import os
import pathlib
import resource
import signal
import sys

import keras
import numpy as np
from small_run import EPOCHS, LossLog, make_data, make_model

from keras_transformer import Checkpoints


class AfterSteps(keras.callbacks.Callback):
    """Calls a function after a number of steps."""

    def __init__(self, steps, function):
        super().__init__()
        self.steps, self.function = steps, function

    def on_train_batch_end(self, batch, logs=None):
        self.steps -= 1
        if self.steps == 0:
            self.function()


class WrittenLog(LossLog):
    """Writes each line immediately, before the process is killed."""

    def __init__(self, path):
        super().__init__()
        self.file = path.open("w", buffering=1)

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        position = self.epoch, batch + self.params.get("first_batch", 0)
        self.file.write(f"{json.dumps([*position, *self.logs[position]])}\n")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(event, number):
    """Kills the process before Python's n-th call of this kind with a checkpoint."""
    paths = []

    def hook(name, arguments):
        if name == event and str(arguments[0]).endswith(".npz"):
            # The paths of unfinished files, which are removed first, are relative.
            paths.extend(each for each in arguments[:1] if os.path.isabs(each))
            if len(paths) == number:
                die()

    sys.addaudithook(hook)


def limit_files():
    """Files have at most 1000 bytes from now on; the system kills the process."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def in_a_step():
    return [AfterSteps(4, die)]


def during_a_write():
    return [AfterSteps(3, limit_files)]


def before_renaming():
    die_at("os.rename", 3)
    return []


def after_renaming():
    die_at("os.remove", 1)
    return []


def nowhere():
    return []


def main(folder, number, place):
    keras.utils.set_random_seed(3 + number)
    data, model = make_data(), make_model()
    model.fit(
        data.dataset,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[
            WrittenLog(folder / f"{number}.jsonl"),
            *place(),
            Checkpoints(folder / "checkpoints", data=data, save_every=2),
        ],
    )
    np.savez(folder / "weights.npz", *model.get_weights())


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), globals()[sys.argv[3]])
