"""Reads Marian's own files as OPUS publishes them: decoder.yml, npz, vocab.yml, spm."""

import math
import pathlib
import re
import zipfile
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from keras_transformer.interoperability.files import file_named, with_padding
from keras_transformer.interoperability.marian_vocabulary import (
    marian_tokenizer,
    read_vocabulary_file,
)
from keras_transformer.interoperability.settings import ACTIVATIONS
from keras_transformer.interoperability.tensors import (
    LOGIT_OF_ADDED_TOKENS,
    ArrayTensors,
    padded_rows,
)
from keras_transformer.layers import PositionalEncoding
from keras_transformer.text import MarianTokenizer
from keras_transformer.types import Config
from keras_transformer_runtime.arguments import check_ints, check_one_of
from keras_transformer_runtime.files import (
    check_zip_members,
    checked_file,
    read_file,
)
from keras_transformer_runtime.packages import require_extra

# Names of transformers.
SHARED = "model.shared.weight"
SOURCE = "model.encoder.embed_tokens.weight"
TARGET = "model.decoder.embed_tokens.weight"
OUTPUT = "lm_head.weight"
BIAS = "final_logits_bias"

DECODER_FILE = "decoder.yml"
SETTINGS = "special:model.yml"
# Options of Marian whose other values this library does not support, with defaults.
OPTIONS: dict[str, tuple[object, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-no-projection": (False,),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-train-position-embeddings": (False,),
    "transformer-ffn-depth": (2,),
    "transformer-pool": (False,),
    "transformer-tied-layers": ([], None),
    "right-left": (False,),
    "lemma-dim-emb": (0,),
    "input-types": ([], ["sequence"], None),
}
# The supported values of three options: post-norm and pre-norm.
NORMALIZATION = {("", "dan", ""): False, ("n", "da", "n"): True}
GREATEST_RATIO = 10  # of the size of arrays to the size of a compressed file

# The names of tensors in Marian and in transformers.
_NORM = {"scale": "weight", "bias": "bias"}
LAYER_NAMES = {
    **{
        f"{part}_{kind}{letter}": f"{name}.{projection}.{role}"
        for part, name in {"self": "self_attn", "context": "encoder_attn"}.items()
        for letter, projection in zip(
            "qkvo", ("q_proj", "k_proj", "v_proj", "out_proj"), strict=True
        )
        for kind, role in {"W": "weight", "b": "bias"}.items()
    },
    **{
        f"ffn_{kind}{number}": f"fc{number}.{role}"
        for number in (1, 2)
        for kind, role in {"W": "weight", "b": "bias"}.items()
    },
    **{
        f"{part}_ln_{kind}": f"{name}.{role}"
        for part, name in {
            "self_Wo": "self_attn_layer_norm",
            "context_Wo": "encoder_attn_layer_norm",
            "ffn_ffn": "final_layer_norm",
        }.items()
        for kind, role in _NORM.items()
    },
}
OTHER_NAMES = {
    "Wemb": SHARED,
    "encoder_Wemb": SOURCE,
    "decoder_Wemb": TARGET,
    "decoder_ff_logit_out_W": OUTPUT,
    "decoder_ff_logit_out_Wt": OUTPUT,
    "decoder_ff_logit_out_b": BIAS,
    **{
        f"{side}_top_ln_{kind}": f"model.{side}.layer_norm.{role}"
        for side in ("encoder", "decoder")
        for kind, role in _NORM.items()
    },
}
# Matrices that have a row for each token already. Marian's kernels are transposed.
WITH_ROWS = {"Wemb", "encoder_Wemb", "decoder_Wemb", "decoder_ff_logit_out_Wt"}


class OwnFiles(NamedTuple):
    """The content of a folder."""

    arguments: Config  # Of a `Seq2Seq`.
    sizes: Config  # Of the model, by their names in `config.json`.
    tensors: ArrayTensors  # By their names in transformers, with padding.


def read_own_files(folder: pathlib.Path) -> OwnFiles:
    """Reads a folder with Marian's own files."""
    path = folder / DECODER_FILE
    decoder = _read_yaml(read_file(path), str(path))
    models, vocabularies = (
        _files(folder, decoder, name) for name in ("models", "vocabs")
    )
    if len(models) != 1:
        raise ValueError(
            f"`models` in {DECODER_FILE} must name one file; it names {len(models)}. "
            "Load each model of an ensemble from its own folder."
        )
    (model,) = models
    arrays = _read_arrays(model)
    settings = _read_yaml(_settings(arrays, model), f"{SETTINGS} in {model}")
    pre_norm = _check_options(settings, model)
    tensors = _renamed(arrays, model, pre_norm)
    _check_depths(settings, tensors, model)
    rows = {
        "source": len(_matrix(tensors, model, SOURCE, SHARED)),
        "target": len(_matrix(tensors, model, TARGET, SHARED)),
    }
    pad = max(rows.values())
    tokens = [
        _vocabulary(file, count, pad)
        for file, count in zip(
            (vocabularies[0], vocabularies[-1]), rows.values(), strict=True
        )
    ]
    target_rows = rows["target"]
    _add_padding(tensors, target_rows, pad + 1)
    config = _sizes(tensors, model, pad + 1)
    arguments = {
        **_architecture(settings, config, pre_norm),
        **_tying(tensors, pad + 1),
        **_tokenizers(folder, *tokens),
    }
    return OwnFiles(arguments, config, ArrayTensors(model, tensors))


def _read_yaml(content: bytes, name: str) -> Config:
    require_extra("hub", name)
    import yaml

    try:
        text = content.decode("utf-8")
        # Aliases of aliases take a few bytes, and their values any memory.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise ValueError("it has an alias")
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{name} must be a YAML file; it is not ({error!s:.200})."
        ) from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} must hold settings; it holds {found!r:.80}.")
    return found


def _files(folder: pathlib.Path, decoder: Config, name: str) -> list[pathlib.Path]:
    """Returns the files of the folder that a setting of `decoder.yml` names."""
    found = decoder.get(name)
    if not isinstance(found, list) or not found:
        raise ValueError(
            f"`{name}` in {DECODER_FILE} must be a list of files; received "
            f"`{name}={found!r:.80}`."
        )
    for file in found:
        # A downloaded file must not choose other files of the disk.
        parts = pathlib.PurePath(file).parts if isinstance(file, str) else ("..",)
        if ".." in parts or pathlib.PurePath(*parts).is_absolute():
            raise ValueError(
                f"`{name}` in {DECODER_FILE} must name files in its folder; received "
                f"{file!r:.80}."
            )
    return [checked_file(folder / file) for file in found]


def _read_arrays(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads all arrays of an npz file, which is a zip archive of npy files."""
    arrays = {}
    with file_named(path, "an npz file of Marian"), zipfile.ZipFile(path) as archive:
        check_zip_members(archive, GREATEST_RATIO * path.stat().st_size)
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name in arrays:
                raise ValueError(f"it has {name!r:.80} twice")
            arrays[name] = _read_array(archive, info)
    return arrays


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """Reads a npy file; its shape is compared with its size before it is used."""
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            header = np.lib.format.read_array_header_1_0(file)
        else:
            header = np.lib.format.read_array_header_2_0(file)
        content = file.read()
    shape, in_columns, dtype = header
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{info.filename!r:.80} has another size than its shape")
    array = np.frombuffer(content, dtype)
    return array.reshape(shape, order="F" if in_columns else "C")


def _settings(arrays: dict[str, np.ndarray], path: pathlib.Path) -> bytes:
    if SETTINGS not in arrays:
        raise ValueError(
            f"{path} must hold {SETTINGS!r}, the settings of the model; it does not. "
            "Use the npz file that Marian has written."
        )
    return arrays.pop(SETTINGS).tobytes().rstrip(b"\0")


def _check_options(settings: Config, path: pathlib.Path) -> bool:
    """Raises `ValueError` for an unsupported option; returns whether it is pre-norm."""
    remedy = f"This library does not support other settings, as those of {path.name}."

    def option(name: str, default: object = None) -> Config:
        return {name: settings.get(name, default)}

    for name, supported in OPTIONS.items():
        check_one_of(supported, remedy=remedy, **option(name, supported[0]))
    names = ("preprocess", "postprocess", "postprocess-top")
    found = tuple(settings.get(f"transformer-{name}", "") for name in names)
    steps: Config = {"transformer-preprocess, -postprocess and -postprocess-top": found}
    check_one_of(NORMALIZATION, remedy=remedy, **steps)
    check_ints(1, remedy=remedy, **option("transformer-heads"))
    # Marian's gelu is an approximation, x * sigmoid(1.702 x).
    activation = option("transformer-ffn-activation", "swish")
    check_one_of(("relu", "swish"), remedy=remedy, **activation)
    return NORMALIZATION[found]


def _renamed(
    arrays: dict[str, np.ndarray], path: pathlib.Path, pre_norm: bool
) -> dict[str, np.ndarray]:
    """Gives tensors the names and shapes of transformers."""
    tensors: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            raise ValueError(
                f"{name!r:.80} in {path} must hold floats; it holds {array.dtype}. "
                "Quantized models are not supported."
            )
        new = _new_name(name.removesuffix("_pre") if pre_norm else name)
        if new is None or new in tensors:
            raise ValueError(
                f"{path} must hold only tensors of a Transformer; it holds "
                f"{name!r:.80}, which this library does not support."
            )
        if re.search(r"_W[qkvo12]?$", name):
            array = array.T
        elif name not in WITH_ROWS:
            array = array.reshape((1, -1) if new == BIAS else -1)
        tensors[new] = array.astype("float32")
    return tensors


def _new_name(name: str) -> str | None:
    layer = re.fullmatch(r"(encoder|decoder)_l([1-9][0-9]{0,5})_(\w+)", name)
    if layer is None:
        return OTHER_NAMES.get(name)
    side, number, part = layer.groups()
    if part not in LAYER_NAMES:
        return None
    return f"model.{side}.layers.{int(number) - 1}.{LAYER_NAMES[part]}"


def _check_depths(
    settings: Config, tensors: dict[str, np.ndarray], path: pathlib.Path
) -> None:
    for side, name in {"encoder": "enc-depth", "decoder": "dec-depth"}.items():
        count = count_layers(tensors, side)
        if settings.get(name) != count:
            raise ValueError(
                f"`{name}` in the settings of {path.name} must be {count}, the number "
                f"of its layers; received `{name}={settings.get(name)!r:.80}`."
            )


def count_layers(names: Iterable[str], side: str) -> int:
    """Counts the layers of a side by the names of their tensors."""
    prefix = f"model.{side}.layers."
    numbers = (name[len(prefix) :].split(".")[0] for name in names if prefix in name)
    return len(set(numbers))


def _matrix(
    tensors: dict[str, np.ndarray], path: pathlib.Path, *names: str
) -> np.ndarray:
    """Returns the first matrix of `names` that exists."""
    found = next((tensors[name] for name in names if name in tensors), None)
    if found is None or found.ndim != 2 or not found.size:
        raise ValueError(
            f"{path} must hold a matrix that transformers calls {names[0]!r}; it does "
            "not."
        )
    return found


def _vocabulary(path: pathlib.Path, rows: int, pad: int) -> list[str]:
    tokens = read_vocabulary_file(path)
    if len(tokens) > rows:
        raise ValueError(
            f"{path} must have at most {rows} tokens, the rows of the embedding; it "
            f"has {len(tokens)}. Use the vocabulary that was written with the model."
        )
    return with_padding(tokens, pad)


def _add_padding(tensors: dict[str, np.ndarray], rows: int, size: int) -> None:
    """Adds rows and logits of the tokens that the stored model does not have."""
    for name in (SHARED, SOURCE, TARGET, OUTPUT):
        if name in tensors and tensors[name].ndim == 2:
            tensors[name] = padded_rows(tensors[name], size)
    bias = np.full((1, size), LOGIT_OF_ADDED_TOKENS, "float32")
    bias[:, :rows] = 0
    if BIAS in tensors:
        bias[:, :rows] = tensors[BIAS][:, :rows]
    tensors[BIAS] = bias


def _sizes(tensors: dict[str, np.ndarray], path: pathlib.Path, size: int) -> Config:
    first = "model.encoder.layers.0.fc1.weight"
    return {
        "d_model": _matrix(tensors, path, SOURCE, SHARED).shape[1],
        "encoder_ffn_dim": len(_matrix(tensors, path, first)),
        "encoder_layers": count_layers(tensors, "encoder"),
        "decoder_layers": count_layers(tensors, "decoder"),
        "vocab_size": size,
        "decoder_vocab_size": size,
    }


def _architecture(settings: Config, sizes: Config, pre_norm: bool) -> Config:
    heads, width = settings["transformer-heads"], sizes["d_model"]
    if width % heads:
        raise ValueError(
            f"`transformer-heads` must divide {width}, the width of the model; "
            f"received `transformer-heads={heads}`."
        )
    return {
        "num_layers": sizes["encoder_layers"],
        "num_decoder_layers": sizes["decoder_layers"],
        "hidden_dim": width,
        "intermediate_dim": sizes["encoder_ffn_dim"],
        "num_heads": heads,
        "normalize_first": pre_norm,
        "activation": ACTIVATIONS[settings.get("transformer-ffn-activation", "swish")],
        "layer_norm_epsilon": 1e-5,
        "positions": PositionalEncoding(interleaved=False),
        "output_bias": True,
    }


def _tying(tensors: dict[str, np.ndarray], size: int) -> Config:
    shared = SHARED in tensors
    if shared:
        tying = "inputs" if OUTPUT in tensors else "all"
        return {"tie_embeddings": tying, "vocabulary_size": size}
    tying = "none" if OUTPUT in tensors else "target"
    sizes = {"source_vocabulary_size": size, "target_vocabulary_size": size}
    return {"tie_embeddings": tying, **sizes}


def _tokenizers(
    folder: pathlib.Path, source: list[str], target: list[str]
) -> dict[str, MarianTokenizer]:
    """Reads the pieces. Outputs are joined in the same way with the source's pieces."""
    file = checked_file(folder / "source.spm")
    other = folder / "target.spm"
    return {
        "source_tokenizer": marian_tokenizer(file, source),
        "target_tokenizer": marian_tokenizer(
            other if other.is_file() else file, target
        ),
    }
