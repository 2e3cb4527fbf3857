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
)

from keras_transformer_runtime.engines.model_description import LANGUAGE
from keras_transformer_runtime.files import read_toml
from keras_transformer_runtime.model_paths import is_version

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"

MODEL_FILES = ("saved_model.pb", "model.bin")
HOST_NAME = r"[A-Za-z0-9:._-]+"
ORIGIN = r"https?://[a-z0-9.-]+(:[0-9]+)?|https?://\[[0-9a-f:.]+\](:[0-9]+)?"

Count = Annotated[int, Field(ge=1)]
Language = Annotated[str, Field(pattern=f"^{LANGUAGE}$")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelOptions(_Options):
    """The options of a model.

    Attributes:
        folder: path of a run, of a SavedModel, of a model for CTranslate2, or of a
            folder that contains one of the last two per version, in folders 1, 2, ….
        engine: `"ctranslate2"`, `"saved_model"` or `"auto"`, which is CTranslate2 for a
            run that has a folder for it, and otherwise what the folder contains. With a
            `dictionary`, `"auto"` is a SavedModel.
        versions: `"latest"`, `"all"`, or a list of version numbers.
        languages: tuple of the codes of the source and the target language, such as
            `("en", "de")`, for `/translate`. `None` = those that the model records.
        max_tokens: int, maximum number of tokens of a batch of several texts, padded to
            the longest.
        batch_sizes: ints, numbers of texts for which a SavedModel is compiled. A batch
            is padded to the next size. The batches of a classifier or an encoder, which
            is not compiled, have at most the largest of these numbers.
        max_waiting: int, maximum number of waiting texts. Further requests are
            refused with status 503.
        split_sentences: str, language (ISO 639-1, such as `"en"`) by whose rules texts
            are split into sentences. The sentences are decoded separately and joined
            again. `None` decodes each text as a whole.
        dictionary: path of a file of terms, lines of a source phrase, a tab and a
            target phrase. The output of a text that has a source phrase contains the
            target phrase. It requires SavedModels with the signature `constrained`, and
            applies to requests of `serving_default` and `/translate`.
        wait_for_versions: bool, whether the server may start when the folder has no
            version yet. Otherwise, such a folder is an error.
    """

    folder: pathlib.Path
    engine: Literal["auto", "ctranslate2", "saved_model"] = "auto"
    versions: Literal["latest", "all"] | list[Count] = "latest"
    languages: tuple[Language, Language] | None = None
    max_tokens: Count = 8192
    batch_sizes: Annotated[tuple[Count, ...], Field(min_length=1)] = (1, 4, 16)
    max_waiting: Count = 1024
    split_sentences: Annotated[str, Field(pattern="^[a-z]{2,3}$")] | None = None
    dictionary: FilePath | None = None
    wait_for_versions: bool = False

    @property
    def chosen_engine(self) -> str:
        """The engine; a dictionary requires a SavedModel."""
        is_open = self.engine == "auto"
        return "saved_model" if is_open and self.dictionary else self.engine

    @field_validator("folder")
    @classmethod
    def _check_folder(cls, folder: pathlib.Path) -> pathlib.Path:
        if not folder.is_dir():
            raise ValueError(
                "must be the folder of a run, of a model or of its versions; "
                f"{folder} is not a folder"
            )
        folder = folder.resolve()
        is_model = any((folder / name).exists() for name in MODEL_FILES)
        models = [inner for inner in sorted(folder.iterdir()) if _versions(inner)]
        is_run = any(model.name in ("ctranslate2", "saved_model") for model in models)
        if models and not (is_model or is_run or _versions(folder)):
            raise ValueError(
                f"must contain one folder per version, named 1, 2, …; {folder} has "
                f"folders of several models. Give one of them, such as {models[0]}"
            )
        return folder

    @field_validator("batch_sizes")
    @classmethod
    def _sort(cls, batch_sizes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(batch_sizes)))


class ServerOptions(_Options):
    """The options of a server.

    Attributes:
        models: dictionary of `ModelOptions` by the name of the model.
        host: str, address to listen on.
        port: int, port of HTTP; 0 for any free port.
        processes: int, number of processes that load all models and share the port.
            The system distributes connections, not requests, among them.
        threads: int, number of threads of each engine, which CTranslate2 uses for as
            many batches at a time; `None` = the cores of the machine or the container,
            divided by `processes`.
        api_key: str, the key that clients must send, as `Authorization: Bearer KEY`:
            ASCII characters without spaces; `None` = none.
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
        max_beams: int, maximum number of beams and of hypotheses of a request.
        max_output_tokens: int, maximum `max_length` of a request.
    """

    models: Annotated[dict[str, ModelOptions], Field(min_length=1)]
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8501
    processes: Count = 1
    threads: Count | None = None
    api_key: Annotated[str, Field(pattern="^[!-~]+$")] | None = None
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
    max_beams: Count = 16
    max_output_tokens: Count = 2_048

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
    """Returns the folders of models in a folder: versions, and those of a run."""
    if folder.name == "ctranslate2" and (folder / "model.bin").exists():
        return [folder]
    models = [path.parent for name in MODEL_FILES for path in folder.glob(f"*/{name}")]
    return [model for model in models if is_version(model.name)]


def _message(location: tuple[int | str, ...], kind: str, text: str) -> str:
    """Returns the message of an error of pydantic with the name of the option."""
    name = ".".join(map(str, location))
    if kind == "extra_forbidden":
        return f"there is no option `{name}`"
    text = text.removeprefix("Value error, ")
    return f"`{name}`: {text[0].lower()}{text[1:]}"
