"""Checkpoints of a training run, which resumes exactly where it stopped.

`Checkpoints` is the callback; `list_checkpoints` and `load_checkpoint` read its files.
`run_state` and `callback_state` copy and restore the state of a run, `stop_signals`
handles SIGINT and SIGTERM, `best_epoch` compares epochs, and `run_files` and `storage`
read and write the files.
"""

from keras_transformer.training.checkpoints.checkpoints import Checkpoints
from keras_transformer.training.checkpoints.saved_checkpoints import (
    SavedCheckpoint,
    list_checkpoints,
    load_checkpoint,
)

__all__ = ["Checkpoints", "SavedCheckpoint", "list_checkpoints", "load_checkpoint"]
