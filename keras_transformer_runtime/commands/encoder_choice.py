"""Opens the encoder or the classifier of a command."""

import json
import pathlib
import zipfile
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from keras_transformer_runtime.engines.encoder_description import EncoderDescription
from keras_transformer_runtime.files import read_json
from keras_transformer_runtime.model_paths import find_model, saved_model_of
from keras_transformer_runtime.tensorflow_import import import_tensorflow_quietly

if TYPE_CHECKING:
    from keras_transformer.models import TextClassifier, TextEncoder, TokenClassifier
    from keras_transformer_runtime.engines.saved_model_encoder import (
        SavedModelEncoder,
    )

    # Each has the method of its task, `classify`, `tag` or `embed`.
    Model: TypeAlias = (
        TextClassifier | TextEncoder | TokenClassifier | SavedModelEncoder
    )

CLASSES = ("TextClassifier", "TextEncoder", "TokenClassifier")
_METHODS = {"classify": "classes of texts", "tag": "tags of words", "embed": "vectors"}


class OpenedEncoder(NamedTuple):
    """A model, and what it computes."""

    model: "Model"
    description: EncoderDescription

    def check_task(self, path: pathlib.Path, *tasks: str) -> None:
        """Raises `ValueError` if the model does not compute what a command shows."""
        task = self.description.task
        if task not in tasks:
            command = "embed" if task == "embed" else "predict"
            raise ValueError(
                f"{path} must compute {' or '.join(_METHODS[each] for each in tasks)}; "
                f"it computes {_METHODS[task]}. Use the command {command}."
            )


def is_encoder(path: pathlib.Path) -> bool:
    """Returns whether a file or a folder is that of an encoder or a classifier.

    It reads a configuration, not the model. The answer is `False` for a damaged file.
    """
    saved_model = saved_model_of(path)
    try:
        if saved_model is not None:
            return EncoderDescription.read(saved_model) is not None
        return _class_name(find_model(path)) in CLASSES
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def _class_name(path: pathlib.Path) -> str:
    if path.is_dir():
        config = read_json(path / "config.json")
    else:
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
    return str(config["registered_name"]).partition(">")[2]


def open_encoder(path: pathlib.Path) -> OpenedEncoder:
    """Opens a run, a `.keras` file, a preset, a SavedModel or a published encoder.

    Raises:
        ValueError: if it is a model that generates text.
    """
    saved_model = saved_model_of(path)
    if saved_model is not None:
        import_tensorflow_quietly()
        from keras_transformer_runtime.engines.saved_model_encoder import (
            SavedModelEncoder,
        )

        loaded = SavedModelEncoder.load(saved_model)
        return OpenedEncoder(loaded, loaded.description)
    from keras_transformer_runtime.commands.startup import import_keras_quietly

    import_keras_quietly()
    from keras_transformer.export.encoder_checks import Output
    from keras_transformer.recipe.loading import load_encoder_model

    model = load_encoder_model(path)
    return OpenedEncoder(model, Output(model).description())
