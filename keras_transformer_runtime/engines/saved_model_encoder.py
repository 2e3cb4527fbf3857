"""Classifies and tags texts, and computes their vectors, with a SavedModel."""

import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401 (registers its operations)

from keras_transformer_runtime.engines.encoder_description import EncoderDescription
from keras_transformer_runtime.engines.signature_call import call_signature
from keras_transformer_runtime.labels.predictions import (
    THRESHOLD,
    Classification,
    TaggedSentence,
    warn_of_cut_texts,
)

T = TypeVar("T")
U = TypeVar("U")


class SavedModelEncoder:
    """A `TextClassifier`, `TokenClassifier` or `TextEncoder` that was exported.

    It does not import `keras_transformer`.

    Args:
        path: folder of the SavedModel.
        description: content of its file `keras_transformer.json`.
    """

    def __init__(self, path: pathlib.Path, description: EncoderDescription):
        self.path = path
        self.description = description
        self._model = tf.saved_model.load(os.fspath(path))
        self.signatures = self._model.signatures

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Loads a SavedModel.

        Raises:
            ValueError: if the folder is not that of an exported encoder.

        Example:

        ```python
        classifier.export("saved_models/films/1")
        encoder = SavedModelEncoder.load("saved_models/films/1")
        print(encoder.classify(["a great film"])[0].label)
        ```
        """
        folder = pathlib.Path(path)
        description = EncoderDescription.read(folder)
        if description is None:
            raise ValueError(
                f"{folder} must be the SavedModel of a `TextClassifier`, a "
                "`TokenClassifier` or a `TextEncoder`; it is another model."
            )
        return cls(folder, description)

    def classify(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        threshold: float = THRESHOLD,
        batch_size: int = 64,
    ) -> list[Classification]:
        """Returns the classes of texts, or of pairs, as `TextClassifier.classify`."""
        names, several = self.description.class_names, self.description.multi_label

        def compute(part: Sequence[Sequence[str]]) -> list[Classification]:
            if isinstance(part[0], str):
                found = self.call("serving_default", text=part)
            else:
                first, second = zip(*part, strict=True)
                found = self.call("pairs", text=first, second_text=second)
            rows = found["probabilities"]
            return [Classification.of(row, names, several, threshold) for row in rows]

        return self._in_batches(compute, texts, batch_size)

    def tag(
        self, sentences: Sequence[Sequence[str]], batch_size: int = 64
    ) -> list[TaggedSentence]:
        """Returns the tags of lists of words, as `TokenClassifier.tag`."""

        def compute(part: Sequence[Sequence[str]]) -> list[TaggedSentence]:
            longest = max(1, *map(len, part))
            padded = [[*words, *[""] * (longest - len(words))] for words in part]
            found = self.call("words", words=padded)
            counts = (found["tag"] != b"").sum(axis=1)
            return [
                TaggedSentence.of(words, row[:count], self.description.class_names)
                for words, row, count in zip(
                    part, found["probabilities"], counts, strict=True
                )
            ]

        return self._in_batches(compute, sentences, batch_size)

    def embed(self, texts: Sequence[str], batch_size: int = 64) -> np.ndarray:
        """Returns the vectors of texts, float32 `(texts, hidden_dim)`."""

        def compute(part: Sequence[str]) -> list[np.ndarray]:
            return [*self.call("serving_default", text=part)["vector"]]

        width = self.signatures["serving_default"].structured_outputs["vector"].shape[1]
        found = self._in_batches(compute, texts, batch_size)
        return np.reshape(np.array(found, "float32"), (len(texts), width))

    def call(self, signature: str, **inputs: Sequence[object]) -> dict[str, np.ndarray]:
        """Calls a signature with lists, and warns of texts that are cut.

        Raises:
            ValueError: if the SavedModel has no such signature: its tokenizer is not
                part of it, or the model has another task.
        """
        if signature not in self.signatures:
            raise ValueError(
                f"{self.path} must have the signature {signature!r}; it has "
                f"{', '.join(self.signatures)}."
            )
        outputs = call_signature(self.signatures[signature], inputs)
        kind = "sentences" if self.description.task == "tag" else "texts"
        is_cut = outputs.get("truncated", np.zeros(0, bool))
        warn_of_cut_texts(is_cut, self.description.max_length, kind)
        return outputs

    def _in_batches(
        self,
        compute: Callable[[Sequence[T]], list[U]],
        entries: Sequence[T],
        batch_size: int,
    ) -> list[U]:
        starts = range(0, len(entries), batch_size)
        return [each for i in starts for each in compute(entries[i : i + batch_size])]
