"""A run that goes on where it was, whatever stopped it.

`Checkpoints` is the callback; `run_state` says what a run consists of, `storage` how
that is kept on disk.
"""

from keras_transformer.training.checkpoints.checkpoints import Checkpoints

__all__ = ["Checkpoints"]
