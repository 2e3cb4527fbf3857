"""A trained model in a folder of files that a person, or another program, can open."""

import datetime
import pathlib
from typing import Any

import keras

from keras_transformer import hub
from keras_transformer.files import checked_file, new_folder, read_json, write_json
from keras_transformer.layers.block_arguments import deserialize_objects
from keras_transformer.models.saving import check_not_quantized

HUB = "hf://"
CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
SEQ2SEQ = "keras_transformer>Seq2Seq"
# The tokenizers' files and the arguments that they are.
TOKENIZERS = {
    "tokenizer.json": "source_tokenizer",
    "source_tokenizer.json": "source_tokenizer",
    "target_tokenizer.json": "target_tokenizer",
}


def save_to_preset(model: Any, preset_dir: Any) -> None:
    """Writes the model to a folder for `Seq2Seq.from_preset`, whole or not at all.

    The folder has `config.json` (the design), `model.weights.h5`, `metadata.json`
    (versions, date, number of parameters, names of the tokenizers' files) and the
    tokenizers: `tokenizer.json`, or `source_tokenizer.json` and
    `target_tokenizer.json`, and beside each the SentencePiece model in `.model`, if it
    is one. The optimizer is left out.

    Args:
        model: the `Seq2Seq`.
        preset_dir: path of the folder; it must not exist or be empty.

    Raises:
        FileExistsError: if the folder is there and not empty.
        TypeError: if the model is an `Ensemble`.
        ValueError: if it is quantized.
    """
    serialized = keras.saving.serialize_keras_object(model)
    if serialized["registered_name"] != SEQ2SEQ:
        raise TypeError(
            "`save_to_preset` is for a Seq2Seq; received one of the class "
            f"{type(model).__name__}. Save each of its `models`, or all by `save`."
        )
    check_not_quantized(model)
    config = serialized["config"]
    with new_folder(preset_dir, "preset_dir") as folder:
        folder.mkdir()
        for name, tokenizer in _tokenizers(model).items():
            tokenizer.save_assets(folder / name)
        config.pop("source_tokenizer", None)
        config.pop("target_tokenizer", None)
        write_json(folder / CONFIG, {"registered_name": SEQ2SEQ, "config": config})
        # Read and written again, Keras's file is without optimizer and LoRA.
        model.save_weights(folder / WEIGHTS)
        alone = type(model).from_config(config)
        write_json(folder / METADATA, _metadata(model, alone.count_params()))
        alone.load_weights(folder / WEIGHTS)
        alone.save_weights(folder / WEIGHTS, overwrite=True)


def read_preset(
    cls: Any, folder: pathlib.Path, load_weights: bool, overrides: dict[str, Any]
) -> Any:
    """Builds the model that a folder describes.

    Args:
        cls: `Seq2Seq`.
        folder: the folder.
        load_weights: whether it gets the weights in the folder.
        overrides: dictionary of constructor arguments that replace those there.

    Returns:
        A `Seq2Seq`.

    Raises:
        ValueError: if a file is damaged, of a newer version, or does not fit the
            others, or if an override needs other weights.
        FileNotFoundError: if a file is missing.
    """
    metadata = read_json(checked_file(folder / METADATA, "preset"))
    _check_version(metadata, folder)
    _check_tokenizers(metadata, folder)
    versions = _keras_versions(metadata)
    arguments = _arguments(folder, versions)
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
    """Gets a folder from the Hugging Face Hub, or what is there of it already.

    Args:
        handle: `"hf://user/name"`.

    Returns:
        The folder, which has a preset's files and no others.

    Raises:
        ValueError: if there can be no such name on the Hub.
        ImportError: if the package `huggingface_hub` is missing.
    """
    patterns = [CONFIG, METADATA, WEIGHTS, "*tokenizer.json", "*tokenizer.model"]
    return hub.download(handle.removeprefix(HUB), patterns, f"`preset={handle!r}`")


def _tokenizers(model: Any) -> dict[str, Any]:
    """The tokenizers by the names of their files."""
    own = model._own_tokenizers()
    if len(own) == 1:
        return {"tokenizer.json": model.source_tokenizer}
    return {f"{name}.json": tokenizer for name, tokenizer in own.items()}


def _metadata(model: Any, parameter_count: int) -> dict[str, Any]:
    from keras_transformer import __version__

    return {
        "keras_transformer_version": __version__,
        "keras_version": keras.__version__,
        "parameter_count": parameter_count,
        "tokenizers": [*_tokenizers(model)],
        "date_saved": datetime.datetime.now(datetime.UTC).isoformat("T", "seconds"),
    }


def _check_version(metadata: dict[str, Any], folder: pathlib.Path) -> None:
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
            f"{__version__}, which does not know its format. Upgrade keras_transformer."
        )


def _major_and_minor(version: Any) -> tuple[int, int]:
    major, minor, *_ = str(version).split(".")
    return int(major), int(minor)


def _keras_versions(metadata: dict[str, Any]) -> str:
    """What to add where Keras could not read what Keras wrote."""
    saved = metadata.get("keras_version", "an unknown version")
    return f"(Saved with Keras {saved}; this is Keras {keras.__version__}.)"


def _check_tokenizers(metadata: dict[str, Any], folder: pathlib.Path) -> None:
    """Makes sure that all tokenizers are there; older folders do not list them."""
    names = metadata.get("tokenizers", [])
    if not isinstance(names, list) or any(name not in [*TOKENIZERS] for name in names):
        raise ValueError(
            f"`tokenizers` in {folder / METADATA} must be a list of names out of "
            f"{', '.join(TOKENIZERS)}; received {names!r:.80}."
        )
    for name in names:
        checked_file(folder / name, "preset")


def _arguments(folder: pathlib.Path, versions: str) -> dict[str, Any]:
    """The constructor's arguments, tokenizers included."""
    path = checked_file(folder / CONFIG, "preset")
    content = read_json(path)
    config = content.get("config")
    if content.get("registered_name") != SEQ2SEQ or not isinstance(config, dict):
        raise ValueError(
            f"{path} must describe a Seq2Seq; received "
            f"`registered_name={content.get('registered_name')!r}`."
        )
    try:
        design = deserialize_objects(config)
    except Exception as error:  # a damaged configuration can raise almost anything
        raise ValueError(f"{path} is damaged: {error} {versions}") from error
    return {**design, **_read_tokenizers(folder)}


def _read_tokenizers(folder: pathlib.Path) -> dict[str, Any]:
    tokenizers = {}
    for name, argument in TOKENIZERS.items():
        if (file := folder / name).is_file():
            from keras_transformer.text import Tokenizer

            tokenizers[argument] = Tokenizer.load(file)
    return tokenizers


def _build(
    cls: Any, arguments: dict[str, Any], folder: pathlib.Path, versions: str
) -> Any:
    try:
        return cls(**arguments)
    except Exception as error:
        raise ValueError(
            f"{folder / CONFIG} must describe a Seq2Seq that can be built, and it does "
            f"not: {error} {versions}"
        ) from error


def _load_weights(
    model: Any, folder: pathlib.Path, parameter_count: Any, versions: str
) -> None:
    path = folder / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(
            f"`preset` must have the file {WEIGHTS}; there is none in {folder}. "
            "`load_weights=False` does without."
        )
    if model.count_params() != parameter_count:
        raise ValueError(
            f"{folder} must have files of one model; {METADATA} says that it has "
            f"{parameter_count} parameters, {CONFIG} that it has "
            f"{model.count_params()}."
        )
    try:
        _check_size(path, parameter_count)  # Keras passes over what it has no use for
        model.load_weights(path)
    except Exception as error:  # a damaged HDF5 file can raise almost anything
        raise ValueError(
            f"{path} must have the weights of the model in {CONFIG}, and is of "
            f"another one or damaged: {error} {versions}"
        ) from error


def _check_size(path: pathlib.Path, parameter_count: int) -> None:
    import h5py

    sizes: list[int] = []
    with h5py.File(path) as file:
        file.visititems(lambda name, item: sizes.append(getattr(item, "size", 0)))
    if sum(sizes) != parameter_count:
        raise ValueError(
            f"it has {sum(sizes)} numbers in the place of {parameter_count}"
        )


def _check_same_weights(model: Any, changed: Any, overrides: dict[str, Any]) -> None:
    ours, theirs = ([w.shape for w in each.weights] for each in (model, changed))
    if ours != theirs:
        raise ValueError(
            "`overrides` must leave the shapes of trained weights as they are; "
            f"received `overrides` of {', '.join(overrides)}. With "
            "`load_weights=False` they may be anything."
        )
