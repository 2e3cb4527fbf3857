"""What a server serves, and its limits."""

import os
import pathlib
import re
import tomllib
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"

Count = Annotated[int, Field(ge=1)]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelOptions(_Options):
    """One model.

    Attributes:
        folder: holds a SavedModel in a folder for each version, named 1, 2, ….
        versions: `"latest"`, `"all"`, or a list of them.
        replicas: processes that each hold the model.
        max_replicas: with more than `replicas`, Ray Serve starts up to so many under
            load, and stops them again.
        cpus: cores that each replica computes with.
        batch_sizes: numbers of texts that are decoded together; a batch of any other
            number is filled up to the next one. Each is compiled before requests
            come, for the lengths that the SavedModel wants to be warmed up with.
        max_waiting: texts that wait at most; beyond, requests are refused with 503.
        split_sentences: the language (ISO 639-1, such as `"en"`) by whose rules texts
            are split into sentences, which are decoded one by one and joined again;
            `None` = texts are decoded as they come.
    """

    folder: pathlib.Path
    versions: Literal["latest", "all"] | list[Count] = "latest"
    replicas: Count = 2
    max_replicas: Count | None = None
    cpus: Count = 1
    batch_sizes: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 4, 8, 16)
    max_waiting: Count = 1024
    split_sentences: Annotated[str, Field(pattern="^[a-z]{2,3}$")] | None = None

    @field_validator("folder")
    @classmethod
    def _is_folder(cls, folder: pathlib.Path) -> pathlib.Path:
        if not folder.is_dir():
            raise ValueError(f"must be a folder of versions; there is none at {folder}")
        folder = folder.resolve()
        if (folder / "saved_model.pb").exists():
            advice = (
                f"Give the folder above it, {folder.parent}"
                if folder.name.isdecimal()
                else f"Move it to {folder / '1'}"
            )
            raise ValueError(
                f"must hold a folder for each version, named 1, 2, …; {folder} is a "
                f"version itself. {advice}"
            )
        models = [inner for inner in sorted(folder.iterdir()) if _versions(inner)]
        if models and not _versions(folder):
            raise ValueError(
                f"must hold a folder for each version, named 1, 2, …; {folder} holds "
                f"folders of versions. Give one, such as {models[0]}"
            )
        return folder

    @field_validator("batch_sizes")
    @classmethod
    def _ascending(cls, batch_sizes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(batch_sizes)))

    @model_validator(mode="after")
    def _in_order(self) -> "ModelOptions":
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(
                f"max_replicas must be at least replicas={self.replicas}; received "
                f"max_replicas={self.max_replicas}"
            )
        return self


class ServerOptions(_Options):
    """A server.

    Attributes:
        models: by their names.
        host: address to listen at.
        port: int, of HTTP; 0 = any that is free.
        address: of a Ray cluster, such as `"auto"`; `None` = one on this machine, for
            as long as the server runs.
        cache: folder where what XLA compiles is kept, so that the next start on a
            machine of this kind takes less time; `None` = one for as long as the
            server runs. What is in it is executed: let nobody else write there.
        poll_seconds: how often the folders are looked through for new versions.
        timeout_seconds: after which a request is given up with 504.
        max_body_bytes: of one request.
        max_texts: of one request.
        max_characters: of one text.
    """

    models: Annotated[dict[str, ModelOptions], Field(min_length=1)]
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8501
    address: str | None = None
    cache: pathlib.Path | None = None
    poll_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    max_body_bytes: Count = 1_000_000
    max_texts: Count = 256
    max_characters: Count = 5_000

    @field_validator("cache")
    @classmethod
    def _quotable(cls, cache: pathlib.Path | None) -> pathlib.Path | None:
        if cache is not None and "'" in str(cache):
            raise ValueError(
                "the path must be without apostrophes, for XLA; received "
                f"{str(cache)!r}"
            )
        return cache

    @field_validator("models")
    @classmethod
    def _named(cls, models: dict[str, ModelOptions]) -> dict[str, ModelOptions]:
        for name in models:
            if not re.fullmatch(NAME, name):
                raise ValueError(
                    "a model's name must be of letters, digits, '_', '.' and '-', and "
                    f"begin with a letter or digit; received {name!r}"
                )
        return models


def read_options(path: str | os.PathLike, **overrides: Any) -> ServerOptions:
    """Reads a server's options from a TOML file.

    Folders in it are relative to the file.

    Args:
        path: the file.
        **overrides: options that take the place of those in the file.

    Returns:
        `ServerOptions`.

    Raises:
        ValueError: if the file is no TOML, or an option is unknown or out of range.

    Example:

    ```python
    options = read_options("serving.toml", port=8080)
    print(options.port, list(options.models))  # 8080 ['pronounce']
    ```
    """
    path = pathlib.Path(path)
    try:
        found = tomllib.loads(path.read_text("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be a TOML file: {error}") from error
    models = found.get("models")
    for model in models.values() if isinstance(models, dict) else ():
        if isinstance(model, dict) and isinstance(model.get("folder"), str):
            model["folder"] = path.parent / model["folder"]
    if isinstance(found.get("cache"), str):
        found["cache"] = path.parent / found["cache"]
    return make_options(**{**found, **overrides})


def make_options(**options: Any) -> ServerOptions:
    """Makes a server's options; what is wrong with them is said in a line each.

    Args:
        **options: those of `ServerOptions`.

    Returns:
        `ServerOptions`.

    Raises:
        ValueError: if an option is unknown or out of range.
    """
    try:
        return ServerOptions(**options)
    except ValidationError as error:
        lines = [_say(found) for found in error.errors()]
        raise ValueError("; ".join(lines)) from None


def _versions(folder: pathlib.Path) -> list[pathlib.Path]:
    """The SavedModels in a folder that have numbers for names."""
    found = [path.parent for path in folder.glob("*/saved_model.pb")]
    return [version for version in found if version.name.isdecimal()]


def _say(found: Any) -> str:
    name = ".".join(str(part) for part in found["loc"])
    if found["type"] == "extra_forbidden":
        return f"there is no option `{name}`"
    message = found["msg"].removeprefix("Value error, ")
    return f"`{name}`: {message[0].lower()}{message[1:]}"
