"""Opens the encoder or the classifier of a command."""

import json
import pathlib
import zipfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, cast

from keras_transformer_runtime.engines.encoder_description import EncoderDescription
from keras_transformer_runtime.files import read_json
from keras_transformer_runtime.model_paths import find_model, saved_model_of
from keras_transformer_runtime.tensorflow_import import import_tensorflow_quietly

if TYPE_CHECKING:
    import numpy as np

    from keras_transformer_runtime.labels.predictions import (
        Classification,
        TaggedSentence,
    )

# A text, or a pair of texts.
Text: TypeAlias = str | tuple[str, ...]

CLASSES = ("TextClassifier", "TextEncoder", "TokenClassifier")
_METHODS = {"classify": "classes of texts", "tag": "tags of words", "embed": "vectors"}


class _Classifier(Protocol):
    def classify(
        self, texts: Sequence[Text], threshold: float, batch_size: int
    ) -> "list[Classification]":
        """See `TextClassifier.classify`."""


class _Tagger(Protocol):
    def tag(
        self, sentences: Sequence[list[str]], batch_size: int
    ) -> "list[TaggedSentence]":
        """See `TokenClassifier.tag`."""


class Embedder(Protocol):
    """Computes vectors; see `TextEncoder.embed`."""

    def embed(self, texts: Sequence[Text], **options: object) -> "np.ndarray":
        """Returns vectors `(texts, hidden_dim)`."""


class OpenedEncoder(NamedTuple):
    """A model, and what it computes.

    The model is a `TextClassifier`, a `TokenClassifier`, a `TextEncoder` or a
    `SavedModelEncoder`. It has the method of its task.
    """

    model: object
    description: EncoderDescription

    def classify(
        self, texts: Sequence[Text], threshold: float, batch_size: int
    ) -> "list[Classification]":
        """Returns the classes of texts."""
        model = cast(_Classifier, self.model)
        return model.classify(texts, threshold=threshold, batch_size=batch_size)

    def tag(
        self, sentences: Sequence[list[str]], batch_size: int
    ) -> "list[TaggedSentence]":
        """Returns the tags of the words of sentences."""
        return cast(_Tagger, self.model).tag(sentences, batch_size=batch_size)

    def embedder(self, path: pathlib.Path) -> Embedder:
        """Returns the model, or the encoder of a Keras classifier.

        Raises `ValueError` for the SavedModel of a classifier, which has no vectors.
        """
        if self.description.task != "embed" and not hasattr(self.model, "encoder"):
            self.check_task(path, "embed")
        return cast(Embedder, getattr(self.model, "encoder", self.model))

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
