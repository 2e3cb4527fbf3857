"""The JSON file of an exported model: its tokenizers, its search and its limits."""

import dataclasses
import math
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from keras_transformer_runtime.engines.generation_options import GenerationOptions
from keras_transformer_runtime.files import read_json, write_json

FILE = "keras_transformer.json"
FORMAT_VERSION = 1
LANGUAGE = r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*"
NEW_TOKENS = 256  # of a language model, without `max_length`
MORE_TOKENS = 50  # than the source, without `max_length`


def language_pair(languages: Sequence[str] | None) -> tuple[str, str] | None:
    """Returns the codes of the source and the target language.

    Raises `ValueError` unless there are two codes such as `en`, `pt-BR` and `eng_Latn`.
    """
    if languages is None:
        return None
    codes = [languages] if isinstance(languages, str) else [*languages]
    if len(codes) != 2 or not all(re.fullmatch(LANGUAGE, code) for code in codes):
        raise ValueError(
            "`languages` must be the codes of the source and the target language, "
            f"such as en and de; received `languages={languages!r}`."
        )
    return codes[0], codes[1]


def read_content(path: pathlib.Path) -> dict[str, Any]:
    """Reads the JSON file of an exported model.

    Raises `ValueError` if it is no JSON, or has another version.
    """
    content = read_json(path)
    version = content.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path} must have the version {FORMAT_VERSION}; received version "
            f"{version!r}. Export the model again, or install a newer version of this "
            "library."
        )
    return dict(content)


@dataclasses.dataclass(frozen=True)
class LengthLimits:
    """The numbers of tokens that the texts of a model can have.

    Attributes:
        source: int, of a source or a prompt, the end token of a source included;
            `None` = any.
        target: int, of an output, the end token included; for a language model of
            prompt and output; `None` = any.
        output_ratio: float, length of the longest outputs by the length of the source.
    """

    source: int | None
    target: int | None
    output_ratio: float


@dataclasses.dataclass(frozen=True)
class ModelDescription:
    """The content of the file `keras_transformer.json`.

    Attributes:
        is_language_model: bool, whether the model continues texts.
        options: the `GenerationOptions` of the model.
        limits: the `LengthLimits`.
        add_start_token: bool, whether each prompt of a language model begins with the
            start token.
        tokenizers: the configurations of the tokenizers by side, `"source"` and
            `"target"`, for CTranslate2; a SavedModel contains them.
        scores: scores of the validation text by name, those of this engine.
        languages: tuple of the codes of the source and the target language, such as
            `("en", "de")`; `None` = unknown.
    """

    is_language_model: bool
    options: GenerationOptions
    limits: LengthLimits
    add_start_token: bool = False
    tokenizers: Mapping[str, Mapping[str, object]] = dataclasses.field(
        default_factory=dict
    )
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)
    languages: tuple[str, str] | None = None

    def write(self, folder: pathlib.Path) -> None:
        """Writes the file."""
        content = {"format_version": FORMAT_VERSION, **dataclasses.asdict(self)}
        write_json(folder / FILE, content)

    @classmethod
    def read(cls, folder: pathlib.Path) -> Self:
        """Reads the file.

        Raises `ValueError` if it is missing or damaged, or has another version.
        """
        path = folder / FILE
        if not path.is_file():
            raise ValueError(
                f"{folder} must contain {FILE}, which describes the search and the "
                "limits of the model. To write it, export the model with "
                "`keras-transformer export`."
            )
        content = read_content(path)
        if "task" in content:
            raise ValueError(
                f"{folder} must be a model that generates text; it is a classifier or "
                "an encoder. Use the command predict, embed or evaluate."
            )
        try:
            options, limits = content.pop("options"), content.pop("limits")
            options["stop"] = tuple(options["stop"])
            languages = content.pop("languages", None)
            return cls(
                **content,
                options=GenerationOptions(**options),
                limits=LengthLimits(**limits),
                languages=language_pair(languages),
            )
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{path} is damaged ({error}). Export the model again."
            ) from error

    def max_length(self, source_length: int, max_length: int | None) -> int:
        """Returns the maximum length of the output of a source.

        Args:
            source_length: int, tokens of the source with its end token, or of a prompt.
            max_length: int, option of the request.

        Returns:
            int, tokens with the end token.
        """
        limit = self.limits.target
        if max_length is None:
            least = MORE_TOKENS + source_length
            if self.is_language_model:
                least = NEW_TOKENS
            # In float32, as the limits of the library.
            wanted = np.float32(source_length) * np.float32(self.limits.output_ratio)
            max_length = max(least, math.floor(wanted))
        if limit is None:
            return max_length
        if self.is_language_model:
            limit += 1 - source_length
        return min(max_length, limit)
