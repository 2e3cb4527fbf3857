"""The options of a server: its models, address and limits."""

import os
import pathlib
import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FilePath,
    ValidationError,
    field_validator,
    model_validator,
)

from keras_transformer_runtime.files import read_toml
from keras_transformer_runtime.model_paths import is_version

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"

HOST_NAME = r"[A-Za-z0-9:._-]+"
ORIGIN = r"https?://[a-z0-9.-]+(:[0-9]+)?|https?://\[[0-9a-f:.]+\](:[0-9]+)?"

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelOptions(_Options):
    """The options of a model.

    Attributes:
        folder: path. It contains one SavedModel per version, in folders 1, 2, ….
        versions: `"latest"`, `"all"`, or a list of version numbers.
        replicas: int, number of processes that load the model.
        max_replicas: int, number of replicas that Ray Serve may start under load. It
            stops them when the load falls. `None` for a constant number of replicas.
        cpus: int, number of cores per replica.
        batch_sizes: ints, numbers of texts that are decoded together. A smaller batch
            is padded to the next size. Each size is compiled for the lengths of the
            warm-up requests of the SavedModel, the smallest before the version receives
            requests.
        max_waiting: int, maximum number of waiting texts. Further requests are
            refused with status 503.
        split_sentences: str, language (ISO 639-1, such as `"en"`) by whose rules texts
            are split into sentences. The sentences are decoded separately and joined
            again. `None` decodes each text as a whole.
        dictionary: path of a file of terms, lines of a source phrase, a tab and a
            target phrase. The output of a text that has a source phrase contains the
            target phrase. It requires SavedModels with the signature `constrained`, and
            applies to requests of `serving_default`.
        wait_for_versions: bool, whether the server may start when the folder has no
            version yet. Otherwise, such a folder is an error.
    """

    folder: pathlib.Path
    versions: Literal["latest", "all"] | list[Count] = "latest"
    replicas: Count = 2
    max_replicas: Count | None = None
    cpus: Count = 1
    batch_sizes: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 4, 8, 16)
    max_waiting: Count = 1024
    split_sentences: Annotated[str, Field(pattern="^[a-z]{2,3}$")] | None = None
    dictionary: FilePath | None = None
    wait_for_versions: bool = False

    @field_validator("folder")
    @classmethod
    def _check_folder(cls, folder: pathlib.Path) -> pathlib.Path:
        if not folder.is_dir():
            raise ValueError(f"must be a folder of versions; {folder} is not a folder")
        folder = folder.resolve()
        if (folder / "saved_model.pb").exists():
            advice = (
                f"Give the folder above it, {folder.parent}"
                if is_version(folder.name)
                else f"Move it to {folder / '1'}"
            )
            raise ValueError(
                f"must contain one folder per version, named 1, 2, …; {folder} is a "
                f"version itself. {advice}"
            )
        models = [inner for inner in sorted(folder.iterdir()) if _versions(inner)]
        if models and not _versions(folder):
            raise ValueError(
                f"must contain one folder per version, named 1, 2, …; {folder} has "
                f"folders of several models. Give one of them, such as {models[0]}"
            )
        return folder

    @field_validator("batch_sizes")
    @classmethod
    def _sort(cls, batch_sizes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(batch_sizes)))

    @model_validator(mode="after")
    def _check_replicas(self) -> "ModelOptions":
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(
                f"max_replicas must be at least replicas={self.replicas}; received "
                f"max_replicas={self.max_replicas}"
            )
        return self


class ServerOptions(_Options):
    """The options of a server.

    Attributes:
        models: dictionary of `ModelOptions` by the name of the model.
        host: str, address to listen on.
        port: int, port of HTTP; 0 for any free port.
        address: str, address of a Ray cluster, such as `"auto"`. `None` starts a
            cluster on this machine, which ends with the server.
        poll_seconds: float, seconds between searches for new versions.
        timeout_seconds: float, seconds after which a request is answered with status
            504.
        keep_alive_seconds: float, seconds after which an idle connection is closed. It
            must exceed the idle timeout of a load balancer, which is often 60 s.
        header_seconds: float, seconds within which a client must send the header
            section of a request. A connection that sends no request is closed as well.
        max_connections_per_client: int, maximum number of connections from one
            address. Further connections get status 503.
        behind_proxy: bool, whether all connections come from a reverse proxy, which
            is responsible for authentication and TLS. The number of connections per
            address is then not limited.
        allowed_hosts: strs, names that the `Host` header of a request may have in
            addition to `host` and the names of this machine (`localhost`, 127.0.0.1,
            `::1`), such as the public name of a reverse proxy. Other names get status
            421. If the tuple is empty and `host` is not an address of this machine
            alone, every name is allowed.
        allowed_origins: strs, origins such as `"https://example.com"` whose pages may
            use the server from a browser (CORS).
        max_body_bytes: int, maximum size of the body of a request, also after a gzip
            body is unpacked.
        max_texts: int, maximum number of texts in a request.
        max_characters: int, maximum length of a text.
    """

    models: Annotated[dict[str, ModelOptions], Field(min_length=1)]
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8501
    address: str | None = None
    poll_seconds: Seconds = 2.0
    timeout_seconds: Seconds = 60.0
    keep_alive_seconds: Seconds = 90.0
    header_seconds: Seconds = 10.0
    max_connections_per_client: Count = 256
    behind_proxy: bool = False
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: Count = 1_000_000
    max_texts: Count = 256
    max_characters: Count = 5_000

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        for host in hosts:
            if not re.fullmatch(HOST_NAME, host):
                raise ValueError(
                    "must be names such as 'models.example.com', without scheme and "
                    f"path; received {host!r}"
                )
        return hosts

    @field_validator("allowed_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not re.fullmatch(ORIGIN, origin):
                raise ValueError(
                    "must be origins such as 'https://example.com', in lower case and "
                    f"without a path or '*'; received {origin!r}"
                )
        return origins

    @field_validator("models")
    @classmethod
    def _check_names(cls, models: dict[str, ModelOptions]) -> dict[str, ModelOptions]:
        for name in models:
            if not re.fullmatch(NAME, name):
                raise ValueError(
                    "the name of a model must consist of letters, digits, '_', '.' and "
                    f"'-', and start with a letter or digit; received {name!r}"
                )
        return models


def read_server_options(
    path: str | os.PathLike[str], **overrides: Any
) -> ServerOptions:
    """Reads the options of a server from a TOML file.

    Args:
        path: the file. Folders in it are relative to the folder of the file.
        **overrides: options that replace those in the file.

    Returns:
        `ServerOptions`.

    Raises:
        ValueError: if the file is not TOML, or an option is unknown or invalid.

    Example:

    ```python
    options = read_server_options("serving.toml", port=8080)
    print(options.port, list(options.models))  # 8080 ['pronounce']
    ```
    """
    path = pathlib.Path(path)
    found = read_toml(path)
    models = found.get("models")
    for model in models.values() if isinstance(models, dict) else ():
        for name in ("folder", "dictionary") if isinstance(model, dict) else ():
            if isinstance(model.get(name), str):
                model[name] = path.parent / model[name]
    return make_server_options(**{**found, **overrides})


def make_server_options(**options: Any) -> ServerOptions:
    """Returns the options of a server.

    Args:
        **options: the attributes of `ServerOptions`.

    Returns:
        `ServerOptions`.

    Raises:
        ValueError: if an option is unknown or invalid. The message names each.
    """
    try:
        return ServerOptions(**options)
    except ValidationError as error:
        messages = [
            _message(details["loc"], details["type"], details["msg"])
            for details in error.errors()
        ]
        raise ValueError("; ".join(messages)) from None


def _versions(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the folders of SavedModels in a folder whose names are numbers."""
    saved_models = [path.parent for path in folder.glob("*/saved_model.pb")]
    return [version for version in saved_models if is_version(version.name)]


def _message(location: tuple[int | str, ...], kind: str, text: str) -> str:
    """Returns the message of an error of pydantic with the name of the option."""
    name = ".".join(map(str, location))
    if kind == "extra_forbidden":
        return f"there is no option `{name}`"
    text = text.removeprefix("Value error, ")
    return f"`{name}`: {text[0].lower()}{text[1:]}"
