"""The JSON file of an exported encoder: its task and its classes."""

import dataclasses
import pathlib
from typing import Self

from keras_transformer_runtime.engines.model_description import (
    FILE,
    FORMAT_VERSION,
    read_content,
)
from keras_transformer_runtime.files import write_json

TASKS = ("classify", "tag", "embed")


@dataclasses.dataclass(frozen=True)
class EncoderDescription:
    """The content of the file `keras_transformer.json` of an exported encoder.

    Attributes:
        task: str, `"classify"`, `"tag"` or `"embed"`: what the model computes.
        class_names: tuple of str, the names of the classes; `()` without classes.
        multi_label: bool, whether a text can have several classes.
        max_length: int, maximum number of tokens of a text; `None` = any.
    """

    task: str
    class_names: tuple[str, ...] = ()
    multi_label: bool = False
    max_length: int | None = None

    def write(self, folder: pathlib.Path) -> None:
        """Writes the file."""
        content = {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}
        write_json(folder / FILE, content)

    @classmethod
    def read(cls, folder: pathlib.Path) -> Self | None:
        """Reads the file; returns `None` if the model is no encoder.

        Raises `ValueError` if the file is damaged, or has another version.
        """
        path = folder / FILE
        content = read_content(path) if path.is_file() else {}
        if "task" not in content:
            return None
        try:
            content["class_names"] = tuple(map(str, content["class_names"]))
            description = cls(**content)
            if description.task not in TASKS:
                raise ValueError(f"`task` is {description.task!r:.80}")
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(
                f"{path} is damaged ({error}). Export the model again."
            ) from error
        return description
