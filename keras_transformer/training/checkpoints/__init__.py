"""Checkpoints of a training run, which resumes exactly where it stopped.

`Checkpoints` is the callback. `run_state` and `callback_state` copy and restore the
state of a run; `storage` reads and writes the files.
"""

from keras_transformer.training.checkpoints.checkpoints import Checkpoints

__all__ = ["Checkpoints"]
