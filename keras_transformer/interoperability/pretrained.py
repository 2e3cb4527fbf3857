"""Reads and writes folders in the form of Hugging Face's transformers."""

import os
import pathlib
import warnings
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.backend.keras_internals import check_not_quantized
from keras_transformer.export.checking import check_weights
from keras_transformer.interoperability.families import FAMILIES
from keras_transformer.interoperability.family import Family
from keras_transformer.interoperability.files import find_folder
from keras_transformer.interoperability.settings import (
    complete_arguments,
    differences,
    model_arguments,
)
from keras_transformer.interoperability.tensors import (
    INDEX,
    LOGIT_OF_ADDED_TOKENS,
    PICKLED_WEIGHTS,
    WEIGHTS_FILE,
    Tensors,
    open_checkpoint,
)
from keras_transformer.models import file_checks
from keras_transformer.types import Config
from keras_transformer_runtime.arguments import check_one_of
from keras_transformer_runtime.files import (
    checked_file,
    new_folder,
    read_json,
    write_json,
)
from keras_transformer_runtime.packages import require_extra

CONFIG = "config.json"
FILES = (
    CONFIG,
    "*.safetensors",
    INDEX.format(WEIGHTS_FILE),
    "tokenizer*.json",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.spm",
    "target_vocab.json",
)
FALLBACKS = {"pytorch_model*": (WEIGHTS_FILE, INDEX.format(WEIGHTS_FILE))}
# Bytes of a file of weights, as transformers writes them.
SHARD_SIZE = 5 * 10**9


def load_pretrained(
    folder: str | os.PathLike, revision: str | None = None, dtype: Any = None
) -> Any:
    """Loads a published model from a folder in the form of Hugging Face.
    """
    path = find_folder(folder, FILES, revision, FALLBACKS)
    raw = read_json(checked_file(path / CONFIG))
    kind = raw.get("model_type")
    remedy = "Other families cannot be loaded."
    check_one_of(FAMILIES, remedy=remedy, **{"model_type in config.json": kind})
    family = FAMILIES[kind]
    config = family.complete(raw)
    arguments = {**family.arguments(config), **family.vocabulary(config, None)}
    with open_checkpoint(path) as tensors:
        arguments |= family.options_of_tensors(tensors.names)
        _check_sizes(arguments, tensors)
        model = family.model_class(**arguments, dtype=dtype)
        _assign(model, family, config, tensors)
    return model


def _check_sizes(arguments: Config, tensors: Tensors) -> None:
    """Raises `ValueError` if the model would be larger than the file."""
    shapes = [tensors.info(name).shape for name in tensors.names]
    # A list of Python, as a shape can be of any size.
    sizes = file_checks.Sizes(sum(map(_product, shapes)), len(shapes))
    config = {
        name: keras.saving.serialize_keras_object(value)
        if isinstance(value, keras.layers.Layer)
        else value
        for name, value in arguments.items()
    }
    # Tokens that are added have no rows in the file.
    rows = max((shape[0] for shape in shapes if len(shape) == 2), default=0)
    if "vocabulary_size" in config:
        config["vocabulary_size"] = min(config["vocabulary_size"], rows)
    try:
        file_checks.check_weights(config, sizes)
    except ValueError as error:
        raise ValueError(f"{tensors.path}: {error}.") from error


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _assign(model: Any, family: Family, config: Config, tensors: Tensors) -> None:
    """Sets all weights; warns of tensors that belong to none."""
    parameters = list(family.parameters(model, config))
    own = {parameter.name for parameter in parameters}
    unread = set(tensors.names)
    for parameter in parameters:
        first, *others = family.names_of(parameter)
        names = [first, *(name for name in others if name not in own)]
        if first == family.bias and first not in tensors.names:
            continue
        tensor = tensors.read(names, parameter.stored_shape)
        _check_tied(names, tensor, tensors)
        parameter.assign(tensor)
        unread -= set(names)
    _exclude_added_tokens(model, config)
    unread = {name for name in unread if not family.is_unused(name)}
    if unread:
        names = ", ".join(map(repr, sorted(unread)[:3]))
        warnings.warn(
            f"{tensors.path.name} has {len(unread)} tensors that "
            f"`{type(model).__name__}` does not use, such as {names}.",
            stacklevel=3,
        )


def _check_tied(names: list[str], tensor: np.ndarray, tensors: Tensors) -> None:
    """Raises `ValueError` if two names of a tied matrix have different values."""
    first, *others = (name for name in names if name in tensors.names)
    for name in others:
        if not np.array_equal(tensor, tensors.read([name], tensor.shape)):
            raise ValueError(
                f"{name!r} in {tensors.path.name} must equal {first!r}, as config.json "
                "ties them; their values differ. Correct `tie_word_embeddings` in "
                "config.json, or remove the tensor."
            )


def _exclude_added_tokens(model: Any, config: Config) -> None:
    bias = getattr(model, "logits_bias", None)
    if bias is None or bias.shape[0] == config["vocab_size"]:
        return
    values = np.array(ops.convert_to_numpy(bias), "float32")
    values[config["vocab_size"] :] = LOGIT_OF_ADDED_TOKENS
    bias.assign(values)


def save_pretrained(
    model: Any,
    folder: str | os.PathLike,
    model_type: str | None = None,
    max_shard_size: int = SHARD_SIZE,
) -> None:
    """Writes a model as a folder that Hugging Face's transformers loads.
    """
    require_extra("hub", "`save_pretrained`")
    check_one_of(FAMILIES, optional=True, model_type=model_type)
    check_not_quantized(model)
    check_weights(model)
    family, config = _find_family(model, model_type)
    settings = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "dtype": keras.backend.standardize_dtype(model.variable_dtype),
    }
    with new_folder(folder) as new:
        new.mkdir()
        write_json(new / CONFIG, {**settings, **config})
        _write_weights(new, model, family, config, max_shard_size)


def _find_family(model: Any, model_type: str | None) -> tuple[Family, Config]:
    """Returns the first family with the design of a model, and the settings."""
    design = complete_arguments(type(model), model_arguments(model))
    nearest: tuple[Family, dict[str, tuple[Any, Any]]] | None = None
    for family in FAMILIES.values():
        if not isinstance(model, family.model_class):
            continue
        if model_type not in (None, family.model_type):
            continue
        config = {**family.config(design), **family.vocabulary_settings(model)}
        found = differences(design, family.complete_arguments(family.complete(config)))
        if not found:
            return family, config
        if nearest is None or len(found) < len(nearest[1]):
            nearest = family, found
    if nearest is None:
        kinds = sorted({each.model_class.__name__ for each in FAMILIES.values()})
        raise ValueError(
            f"`save_pretrained` writes a {' or a '.join(kinds)}"
            f"{f' as {model_type!r}' if model_type else ''}; received a "
            f"{type(model).__name__}."
        )
    family, found = nearest
    details = "; ".join(
        f"`{name}` must be {theirs!r}, received `{name}={ours!r}`"
        for name, (ours, theirs) in found.items()
    )
    raise ValueError(
        "The model must have the design of a family of transformers. The nearest one "
        f"is {family.model_type!r}: {details}."
    )


def _write_weights(
    folder: pathlib.Path, model: Any, family: Family, config: Config, most: int
) -> None:
    from safetensors.numpy import save_file

    shards: list[list[Any]] = [[]]
    total = size = 0
    for parameter in family.parameters(model, family.complete(config)):
        itemsize = parameter.variables[0].value.dtype.itemsize
        num_bytes = _product(parameter.stored_shape) * itemsize
        if shards[-1] and size + num_bytes > most:
            shards.append([])
            size = 0
        shards[-1].append(parameter)
        size += num_bytes
        total += num_bytes
    files: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = WEIGHTS_FILE
        if len(shards) > 1:
            name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {parameter.name: parameter.tensor() for parameter in shard}
        save_file(tensors, folder / name, metadata={"format": "pt"})
        files |= dict.fromkeys(tensors, name)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": files}
        write_json(folder / INDEX.format(WEIGHTS_FILE), index)
