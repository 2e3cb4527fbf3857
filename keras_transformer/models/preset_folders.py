"""Folders of trained models, in files that other software can read."""

import datetime
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras

from keras_transformer.backend.keras_internals import check_not_quantized
from keras_transformer.layers.transformer_layer import (
    MODEL_OBJECTS,
    deserialize_objects,
)
from keras_transformer.models.file_checks import (
    CONFIG,
    WEIGHTS,
    check_fits_memory,
    check_weights,
    stored_sizes,
)
from keras_transformer.types import Config
from keras_transformer_runtime import hub
from keras_transformer_runtime.files import (
    checked_file,
    new_folder,
    read_json,
    write_json,
)

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer

HUB = "hf://"
METADATA = "metadata.json"
# The files of tokenizers.
TOKENIZERS = ("tokenizer.json", "source_tokenizer.json", "target_tokenizer.json")


def save_preset(model: Any, preset_dir: Any) -> None:
    """Writes a model to a folder; see `GenerativeModel.save_to_preset`."""
    if not hasattr(model, "own_tokenizers"):
        raise TypeError(
            "`save_to_preset` requires a single model, such as a `Seq2Seq`; received "
            f"a model of the class {type(model).__name__}. Save each of its "
            "`models`, or use `save`."
        )
    serialized = keras.saving.serialize_keras_object(model)
    check_not_quantized(model)
    config = serialized["config"]
    name = serialized["registered_name"]
    with new_folder(preset_dir, "preset_dir") as folder:
        folder.mkdir()
        for file, tokenizer in _tokenizers(model).items():
            tokenizer.save_files(folder / file)
        for argument in model.own_tokenizers():
            config.pop(argument)
        write_json(folder / CONFIG, {"registered_name": name, "config": config})
        # The file of a compiled model or one with LoRA has more weights than a new
        # model, so a new model reads and writes it again.
        model.save_weights(folder / WEIGHTS)
        plain = type(model).from_config(config)
        write_json(folder / METADATA, _metadata(model, plain.count_params()))
        plain.load_weights(folder / WEIGHTS)
        plain.save_weights(folder / WEIGHTS, overwrite=True)


def load_preset(cls: Any, preset: str, load_weights: bool, overrides: Config) -> Any:
    """Builds the model that a folder describes; see `GenerativeModel.from_preset`."""
    is_handle = str(preset).startswith(HUB)
    folder = download_preset(preset) if is_handle else pathlib.Path(preset)
    if not folder.is_dir():
        sizes = ", ".join(map(repr, cls.presets))
        names = f"one of {sizes}, " if sizes else ""
        raise ValueError(
            f"`preset` must be {names}a folder that `save_to_preset` wrote, or "
            f"'hf://user/name'; received `preset={preset!r}`."
        )
    metadata = read_json(checked_file(folder / METADATA, "preset"))
    _check_version(metadata, folder)
    _check_tokenizers(metadata, folder)
    versions = _keras_versions(metadata)
    config = _read_config(cls, folder)
    if load_weights:
        _check_weights(folder, config, metadata.get("parameter_count"), versions)
    arguments = _arguments(cls, config, folder, versions)
    if not load_weights and overrides:
        return cls(**{**arguments, **overrides})
    model = _build(cls, arguments, folder, versions)
    if not load_weights:
        return model
    _load_weights(model, folder, metadata.get("parameter_count"), versions)
    if not overrides:
        return model
    changed = cls(**{**arguments, **overrides})
    _check_same_weights(model, changed, overrides)
    changed.set_weights(model.get_weights())
    return changed


def download_preset(handle: str) -> pathlib.Path:
    """Downloads a preset from the Hugging Face Hub, unless it is in the cache."""
    patterns = [CONFIG, METADATA, WEIGHTS, "*tokenizer.json", "*tokenizer.model"]
    return hub.download(handle.removeprefix(HUB), patterns, f"`preset={handle!r}`")


def _tokenizers(model: Any) -> "dict[str, Tokenizer]":
    """Returns the tokenizers by the names of their files."""
    tokenizers = model.own_tokenizers()
    if len(tokenizers) == 1 and "target_tokenizer" not in tokenizers:
        (tokenizer,) = tokenizers.values()
        return {"tokenizer.json": tokenizer}
    return {f"{name}.json": tokenizer for name, tokenizer in tokenizers.items()}


def _metadata(model: Any, parameter_count: int) -> Config:
    from keras_transformer import __version__

    return {
        "keras_transformer_version": __version__,
        "keras_version": keras.__version__,
        "parameter_count": parameter_count,
        "tokenizers": [*_tokenizers(model)],
        "date_saved": datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"),
    }


def _check_version(metadata: Config, folder: pathlib.Path) -> None:
    from keras_transformer import __version__

    version = metadata.get("keras_transformer_version")
    try:
        newer = _major_and_minor(version) > _major_and_minor(__version__)
    except ValueError as error:
        raise ValueError(
            f"{folder / METADATA} must have a `keras_transformer_version` such as "
            f"{__version__}; received {version!r}."
        ) from error
    if newer:
        raise ValueError(
            f"{folder} was saved by keras_transformer {version}, and this is "
            f"{__version__}, which cannot read its format. Upgrade keras_transformer."
        )


def _major_and_minor(version: Any) -> tuple[int, int]:
    major, minor, *_ = str(version).split(".")
    return int(major), int(minor)


def _keras_versions(metadata: Config) -> str:
    """Returns the versions of Keras, for errors of reading files of Keras."""
    saved = metadata.get("keras_version", "an unknown version")
    return f"(Saved with Keras {saved}; this is Keras {keras.__version__}.)"


def _check_tokenizers(metadata: Config, folder: pathlib.Path) -> None:
    """Checks that all tokenizers exist."""
    names = metadata.get("tokenizers")
    if not isinstance(names, list) or any(name not in TOKENIZERS for name in names):
        raise ValueError(
            f"`tokenizers` in {folder / METADATA} must be a list of names from "
            f"{', '.join(TOKENIZERS)}; received {names!r:.80}."
        )
    for name in names:
        checked_file(folder / name, "preset")


def _read_config(cls: Any, folder: pathlib.Path) -> Config:
    """Returns the configuration of the model, not deserialized."""
    path = checked_file(folder / CONFIG, "preset")
    content = read_json(path)
    config = content.get("config")
    expected = keras.saving.get_registered_name(cls)
    if content.get("registered_name") != expected or not isinstance(config, dict):
        raise ValueError(
            f"{path} must describe a {cls.__name__}; received "
            f"`registered_name={content.get('registered_name')!r}`."
        )
    return config


def _arguments(cls: Any, config: Config, folder: pathlib.Path, versions: str) -> Config:
    """Returns the constructor's arguments, tokenizers included."""
    try:
        check_fits_memory(config)
        design = deserialize_objects(config, MODEL_OBJECTS)
    except Exception as error:  # a damaged configuration can raise almost anything
        path = folder / CONFIG
        raise ValueError(f"{path} is damaged: {error} {versions}") from error
    return {**design, **_read_tokenizers(cls.tokenizer_arguments, folder)}


def _read_tokenizers(
    arguments: Mapping[str, str], folder: pathlib.Path
) -> "dict[str, Tokenizer]":
    tokenizers = {}
    for name, argument in arguments.items():
        if (file := folder / name).is_file():
            from keras_transformer.text import Tokenizer

            tokenizers[argument] = Tokenizer.load(file)
    return tokenizers


def _build(cls: Any, arguments: Config, folder: pathlib.Path, versions: str) -> Any:
    try:
        return cls(**arguments)
    except Exception as error:
        raise ValueError(
            f"{folder / CONFIG} must describe a {cls.__name__}, which cannot be built: "
            f"{error} {versions}"
        ) from error


def _load_weights(
    model: Any, folder: pathlib.Path, parameter_count: Any, versions: str
) -> None:
    path = folder / WEIGHTS
    if model.count_params() != parameter_count:
        raise ValueError(
            f"{folder} must have files of one model; received {parameter_count} "
            f"parameters in {METADATA}, {model.count_params()} in {CONFIG}."
        )
    try:
        model.load_weights(path)
    except Exception as error:  # a damaged HDF5 file can raise almost anything
        raise _damaged_weights(path, error, versions) from error


def _check_weights(
    folder: pathlib.Path, config: Config, parameter_count: Any, versions: str
) -> None:
    """Checks the sizes of the weights before the model is built."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(
            f"`preset` must have the file {WEIGHTS}, which {folder} lacks. Pass "
            "`load_weights=False` for a model without its weights."
        )
    try:
        stored = stored_sizes(path, path.stat().st_size)
        if stored.numbers != parameter_count:  # Keras ignores excess weights
            raise ValueError(
                f"it has {stored.numbers} numbers instead of {parameter_count}"
            )
        check_weights(config, stored)
    except Exception as error:  # a damaged HDF5 file can raise almost anything
        raise _damaged_weights(path, error, versions) from error


def _damaged_weights(path: pathlib.Path, error: Exception, versions: str) -> ValueError:
    return ValueError(
        f"{path} must have the weights of the model in {CONFIG}; it belongs to another "
        f"model or is damaged: {error} {versions}"
    )


def _check_same_weights(model: Any, changed: Any, overrides: Config) -> None:
    ours, theirs = ([w.shape for w in each.weights] for each in (model, changed))
    if ours != theirs:
        raise ValueError(
            "`overrides` must keep the shapes of trained weights; received "
            f"`overrides` of {', '.join(overrides)}. Pass `load_weights=False` to "
            "change the shapes."
        )
