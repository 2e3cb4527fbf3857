"""Checks of model files before memory is allocated: sizes that a file declares."""

import io
import json
import math
import os
import pathlib
import zipfile
from typing import Any, BinaryIO, NamedTuple

from keras_transformer.types import Config
from keras_transformer_runtime.files import check_is_file, check_zip_members

CONFIG, WEIGHTS = "config.json", "model.weights.h5"
# Keras compresses neither the members of a `.keras` file nor its arrays. Files that
# were compressed later are smaller by a few percent, those of zeros by a factor of
# 1000.
MAX_EXPANSION = 20
SMALL = 1 << 24  # bytes, of a file whose expansion does not matter
# Arguments of layers. A layer has at least as many weights as each of them.
SIZE_ARGUMENTS = (
    *("input_dim", "units", "filters", "num_buckets"),
    *("num_layers", "intermediate_dim", "vocabulary_size"),
)
# Kernels of an attention and a feed-forward network.
ARRAYS_PER_BLOCK = 6
# Less than the Python objects of a block take.
BYTES_PER_BLOCK = 50_000


class Sizes(NamedTuple):
    """Sizes of a model or of its weights."""

    numbers: int  # number of parameters
    arrays: int  # number of arrays that hold them


def least_sizes(config: Config) -> Sizes:
    """Returns sizes that a model has at least, without building it.

    They are close to the true sizes. An invalid setting counts as 0, and so does a
    model of another library.
    """
    models = config.get("models")
    if isinstance(models, list):
        each = [
            least_sizes(_mapping(_mapping(model).get("config"))) for model in models
        ]
        return Sizes(sum(s.numbers for s in each), sum(s.arrays for s in each))
    width, num_heads = _size(config, "hidden_dim"), _size(config, "num_heads")
    num_blocks = _size(config, "num_layers") + _size(config, "num_decoder_layers")
    options = _mapping(config.get("attention_options"))
    key_dim = _size(options, "key_dim") or width // max(num_heads, 1)
    value_dim = _size(options, "value_dim") or key_dim
    block = num_heads * (key_dim + value_dim) + 2 * _size(config, "intermediate_dim")
    rows = _size(config, "vocabulary_size") or sum(
        _size(config, f"{side}_vocabulary_size") for side in ("source", "target")
    )
    layers = _least_sizes_of_layers(
        [config.get("positions"), config.get("source_embedding")], width
    )
    return Sizes(
        width * (num_blocks * block + rows) + layers.numbers,
        ARRAYS_PER_BLOCK * num_blocks + layers.arrays,
    )


def _least_sizes_of_layers(value: Any, width: int) -> Sizes:
    """Returns the least sizes of the serialized layers in a part of a configuration."""
    if not isinstance(value, dict | list | tuple):
        return Sizes(0, 0)
    parts = value.values() if isinstance(value, dict) else value
    inner = [_least_sizes_of_layers(part, width) for part in parts]
    numbers, arrays = sum(s.numbers for s in inner), sum(s.arrays for s in inner)
    layer = _mapping(value)
    config = _mapping(layer.get("config"))
    sizes = [_size(config, name) for name in SIZE_ARGUMENTS]
    sizes.append(_size(config, "input_dim") * _size(config, "output_dim"))
    if layer.get("class_name") == "LearnedPositionalEncoding":
        sizes.append(_size(config, "max_length") * width)
    shape = _mapping(layer.get("build_config")).get("input_shape")
    if isinstance(shape, list | tuple) and shape:
        sizes.append(_size(config, "units") * _size({"last": shape[-1]}, "last"))
    numbers += max(sizes)
    return Sizes(numbers, arrays + _size(config, "num_layers"))


def _size(config: Config, name: str) -> int:
    value = config.get(name)
    return value if type(value) is int and value > 0 else 0


def _mapping(value: Any) -> Config:
    return value if isinstance(value, dict) else {}


def stored_sizes(file: str | os.PathLike | BinaryIO, size: int) -> Sizes:
    """Returns the sizes of the arrays in an HDF5 file, without reading them.

    It raises `ValueError` if an array is compressed or not in the file, or if the
    arrays have more bytes than the file can have.
    """
    import h5py

    sizes: list[int] = []
    num_bytes = 0
    with h5py.File(file) as weights:

        def visit(name: str, item: Any) -> None:
            nonlocal num_bytes
            if not isinstance(item, h5py.Dataset):
                return
            if item.external or item.is_virtual:
                raise ValueError(f"the array {name!r} is in another file")
            if item.id.get_create_plist().get_nfilters():
                raise ValueError(f"the array {name!r} is compressed")
            sizes.append(math.prod(item.shape or ()))
            num_bytes += sizes[-1] * item.dtype.itemsize

        weights.visititems(visit)
    if num_bytes > MAX_EXPANSION * size:
        raise ValueError(
            f"its arrays claim to have {num_bytes} bytes, and the file has {size}"
        )
    return Sizes(sum(sizes), len(sizes))


def check_weights(config: Config, stored: Sizes) -> None:
    """Raises `ValueError` if a model would be larger than its stored weights."""
    least = least_sizes(config)
    if least.numbers > stored.numbers or least.arrays > stored.arrays:
        raise ValueError(
            f"{CONFIG} describes a model of at least {least.numbers} parameters in "
            f"{least.arrays} arrays; the weights have {stored.numbers} numbers in "
            f"{stored.arrays} arrays"
        )


def check_fits_memory(config: Config) -> None:
    """Raises `ValueError` if a model needs more memory than the machine has.

    Nothing is checked where the size of the memory is unknown, as on Windows.
    """
    least, memory = least_sizes(config), _memory()
    num_blocks = least.arrays // ARRAYS_PER_BLOCK
    needed = 2 * least.numbers + BYTES_PER_BLOCK * num_blocks  # of 16 bits or more
    if memory is not None and needed > memory:
        raise ValueError(
            f"The model of a configuration must fit in memory, {memory} bytes; "
            f"received one of {num_blocks} blocks and at least {least.numbers} "
            "parameters. It is damaged, or requires a machine with more memory."
        )


def _memory() -> int | None:
    """Returns the size of the memory in bytes, or `None` if it is unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def check_keras_file(path: pathlib.Path) -> Config:
    """Checks the sizes in a `.keras` file, and returns its `config.json`.

    It raises `ValueError` for another file, for one that would expand to a multiple of
    its size, and for one whose weights belong to a smaller model than it describes.
    """
    check_is_file(path)
    most = max(MAX_EXPANSION * path.stat().st_size, SMALL)
    with zipfile.ZipFile(path) as archive:
        check_zip_members(archive, most)
        for name in (CONFIG, WEIGHTS):
            if name not in archive.namelist():
                raise ValueError(f"it has no {name}")
        content = json.loads(archive.read(CONFIG))
        if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
            raise ValueError(f"{CONFIG} does not describe a model")
        with archive.open(WEIGHTS) as member:
            is_stored = archive.getinfo(WEIGHTS).compress_type == zipfile.ZIP_STORED
            file: Any = member if is_stored else io.BytesIO(member.read())
            check_weights(
                content["config"],
                stored_sizes(file, archive.getinfo(WEIGHTS).file_size),
            )
    return content
