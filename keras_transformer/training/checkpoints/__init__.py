"""Saves a training run and resumes it exactly where it stopped.

`Checkpoints` is the callback; `run_state` defines what a run consists of, `storage` how
it is kept on disk.
"""

from keras_transformer.training.checkpoints.checkpoints import Checkpoints

__all__ = ["Checkpoints"]
