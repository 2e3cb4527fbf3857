"""Adapters of LoRA, in files of the form of PEFT."""

import math
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import keras
import numpy as np
from keras import ops

from keras_transformer.interoperability.pretrained import Module, modules_of
from keras_transformer.interoperability.tensors import SafeTensors, Tensors
from keras_transformer.models import Seq2Seq, TextEncoder
from keras_transformer.training.lora import (
    DenseLayer,
    adapted_layers,
    add_matrices,
    dense_layers,
    freeze_all_but_matrices,
    matrices,
)
from keras_transformer.types import Config
from keras_transformer_runtime.files import (
    checked_file,
    new_folder,
    read_json,
    write_json,
)
from keras_transformer_runtime.packages import require_extra

T = TypeVar("T")

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
# Settings of PEFT that change what an adapter computes, with the values that the
# layers of this library can have.
_SUPPORTED: Config = {
    "alora_invocation_tokens": (None,),
    "bias": ("none",),
    "layer_replication": (None,),
    "lora_bias": (False,),
    "modules_to_save": (None, []),
    "peft_type": ("LORA",),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, {}, []),
    "use_dora": (False,),
}
# The modules whose weights transformers stores as `(inputs, outputs)`.
_CONV1D = "transformer.h."


class _Part(NamedTuple):
    """A dense layer of this library, which is a module of transformers or a part."""

    path: str
    layer: DenseLayer
    outputs: int  # the number of rows of the module's weight that it has
    factor: float  # of the kernel here, in which that of the module is multiplied


class _Adapter(NamedTuple):
    """The matrices of a module, as PEFT stores them, and their factor."""

    down: np.ndarray  # (rank, inputs)
    up: np.ndarray  # (outputs, rank)
    scale: float


def save_adapter(
    model: keras.Model,
    folder: str | os.PathLike[str],
    base_model: str | os.PathLike[str] = "",
    module_names: Mapping[str, str] | None = None,
) -> None:
    """Writes the matrices of LoRA to a folder in the form of PEFT.

    `adapter_model.safetensors` has the matrices and `adapter_config.json` the settings.
    With the names of a family of transformers, `PeftModel.from_pretrained` of PEFT adds
    them to the model of transformers, whose logits are then those of `model`.

    One module of transformers can be several layers here: `c_attn` of GPT-2 is the
    query, the key and the value. Its adapter has the matrices of all of them, one below
    the other, so its rank is the sum of their ranks, and computes the same numbers.

    Args:
        model: a model that `enable_lora` has changed.
        folder: path of a new or empty folder.
        base_model: name or path of the model without the adapter, which PEFT reads from
            the settings.
        module_names: mapping of str, the modules of transformers by the paths of
            layers, such as `"model.decoder.layers.0.self_attn.q_proj"` by
            `"decoder.blocks.0.self_attention.query_dense"`. Layers with the same module
            are its parts, in their order. `None` = those of the model, as
            `module_names_of` finds them.

    Raises:
        FileExistsError: if the folder has files.
        ValueError: if the model has no LoRA, or a layer with it has no module.

    Example:

    ```python
    model = load_pretrained("Helsinki-NLP/opus-mt-en-de")
    enable_lora(model, rank=8)
    model.compile(keras.optimizers.Adam(1e-3), LabelSmoothedCrossEntropy())
    model.fit(train.dataset)
    save_adapter(model, "adapter", "Helsinki-NLP/opus-mt-en-de")
    ```

    References:
        - [PEFT: the format of checkpoints](https://huggingface.co/docs/peft/developer_guides/checkpoint)
    """
    require_extra("hub", "`save_adapter`")
    from safetensors.numpy import save_file

    names = _modules_of(model, module_names)
    adapted = adapted_layers(model)
    if not adapted:
        raise ValueError(
            "`model` must have LoRA; received a model without. Call `enable_lora` "
            "before training."
        )
    for path in adapted:
        if path not in names:
            raise ValueError(
                f"`module_names` must have a module for {path!r}, which has LoRA; "
                f"received names of {len(names)} layers."
            )
    adapters = {
        module: _joined(parts)
        for module, parts in _modules(model, names)
        if any(part.layer.lora_enabled for part in parts)
    }
    tensors = {
        f"{PREFIX}{module}{suffix}": np.ascontiguousarray(matrix)
        for module, adapter in adapters.items()
        for suffix, matrix in ((DOWN, adapter.down), (UP, adapter.up))
    }
    with new_folder(folder, "folder") as written:
        written.mkdir()
        write_json(written / CONFIG, _config(model, adapters, os.fspath(base_model)))
        save_file(tensors, written / WEIGHTS, metadata={"format": "pt"})


def load_adapter(
    model: keras.Model,
    folder: str | os.PathLike[str],
    module_names: Mapping[str, str] | None = None,
) -> list[str]:
    """Adds the matrices of LoRA in a folder of PEFT to a model.

    The layers of the adapter get matrices and compute what they compute in PEFT; all
    other weights are frozen, as `enable_lora` does. Call `compile` to train the adapter
    further, or `merge_lora` for a model with merged kernels.

    Args:
        model: a model without LoRA.
        folder: path of a folder with `adapter_config.json` and
            `adapter_model.safetensors`, which `save_adapter` or PEFT has written.
        module_names: as in `save_adapter`.

    Returns:
        List of str, the paths of the adapted layers.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the model has LoRA, if the adapter is not one of LoRA or has a
            setting that the layers do not support, such as `use_dora`, or if a matrix
            belongs to no layer or has another shape.

    Example:

    ```python
    model = load_pretrained("Helsinki-NLP/opus-mt-en-de")
    load_adapter(model, "adapter")
    print(merge_lora(model).generate(texts))
    ```
    """
    if adapted_layers(model):
        raise ValueError(
            "`model` must have no LoRA yet; received a model with it. `merge_lora` "
            "returns a model without."
        )
    path = pathlib.Path(folder)
    config = _read_config(checked_file(path / CONFIG))
    names = _modules_of(model, module_names)
    found: dict[str, tuple[DenseLayer, _Adapter]] = {}
    tensors = SafeTensors(checked_file(path / WEIGHTS))
    unread = set(tensors.names)
    for module, parts in _modules(model, names):
        if f"{PREFIX}{module}{DOWN}" in tensors.names:
            adapter = _read(tensors, config, module, parts)
            found |= _split(adapter, parts)
            unread -= {f"{PREFIX}{module}{suffix}" for suffix in (DOWN, UP)}
    if unread or not found:
        unknown = min(unread, default="nothing")
        known = _some(module.name for module in names.values())
        raise ValueError(
            f"{path / WEIGHTS} must have matrices of layers of the model; received "
            f"{unknown!r}. The modules with layers are {known}."
        )
    for layer, adapter in found.values():
        rank = len(adapter.down)
        add_matrices(layer, rank, adapter.scale * rank)
        pairs = zip(matrices(layer), (adapter.down, adapter.up), strict=True)
        for variable, matrix in pairs:
            variable.assign(matrix.T.reshape(variable.shape))
    freeze_all_but_matrices(model)
    return list(found)


def module_names_of(model: keras.Model) -> dict[str, str]:
    """Returns the modules of transformers that the dense layers of a model are.

    Args:
        model: a built model.

    Returns:
        A dictionary of the names of modules by the paths of layers, as in
        `enable_lora`: those of the family of transformers with the design of the model
        (see `save_pretrained`); without one the paths themselves.
    """
    return {path: module.name for path, module in _modules_of(model).items()}


def _modules_of(
    model: keras.Model, names: Mapping[str, str] | None = None
) -> dict[str, Module]:
    """Returns the modules of the layers of a model, or those of given names."""
    if names is not None:
        return {path: Module(name) for path, name in names.items()}
    paths = [path for path, _ in dense_layers(model)]
    found = modules_of(model) or {path: Module(path) for path in paths}
    return {path: found[path] for path in paths if path in found}


def _modules(
    model: keras.Model, modules: Mapping[str, Module]
) -> Iterator[tuple[str, list[_Part]]]:
    """Yields the modules with layers of a model, and these layers in their order."""
    found: dict[str, list[_Part]] = {}
    layers = dict(dense_layers(model))
    for path, module in modules.items():
        if path in layers:
            layer = layers[path]
            kernel = tuple(layer.kernel.shape)
            outputs = math.prod(kernel) // _inputs(layer)
            part = _Part(path, layer, outputs, module.scale)
            found.setdefault(module.name, []).append(part)
    yield from found.items()


def _inputs(layer: DenseLayer) -> int:
    """Returns the number of inputs of a dense layer, over all axes."""
    shape = tuple(layer.kernel.shape)
    if isinstance(layer, keras.layers.EinsumDense):
        summed = len(shape) - len(layer.partial_output_shape) + 1
        return math.prod(shape[:summed])
    return int(shape[0])


def _matrices(part: _Part) -> _Adapter:
    """Returns the matrices of a layer in the shapes of PEFT; none has the rank 0."""
    layer, inputs = part.layer, _inputs(part.layer)
    if not layer.lora_enabled:
        none = np.zeros((0, inputs), "float32")
        return _Adapter(none, np.zeros((part.outputs, 0), "float32"), 1.0)
    a, b = (ops.convert_to_numpy(each).astype("float32") for each in matrices(layer))
    scale = layer.lora_alpha / layer.lora_rank
    up = b.reshape(-1, part.outputs).T / np.float32(part.factor)
    return _Adapter(a.reshape(inputs, -1).T, up, float(scale))


def _joined(parts: Sequence[_Part]) -> _Adapter:
    """Returns the adapter of a module from those of the layers that are its parts."""
    each = [_matrices(part) for part in parts]
    if len(each) == 1:
        return each[0]
    ranks = [len(adapter.down) for adapter in each]
    scales = {a.scale for a, rank in zip(each, ranks, strict=True) if rank}
    scale = min(scales)
    up = np.zeros((sum(part.outputs for part in parts), sum(ranks)), "float32")
    row = column = 0
    for adapter, part, rank in zip(each, parts, ranks, strict=True):
        block = adapter.up * np.float32(adapter.scale / scale)
        up[row : row + part.outputs, column : column + rank] = block
        row, column = row + part.outputs, column + rank
    return _Adapter(np.concatenate([adapter.down for adapter in each]), up, scale)


def _split(
    adapter: _Adapter, parts: Sequence[_Part]
) -> dict[str, tuple[DenseLayer, _Adapter]]:
    """Returns the adapters of the layers that are the parts of a module."""
    # A component that is zero in a part is not one of it, as `_joined` writes them.
    ends = np.cumsum([part.outputs for part in parts])[:-1]
    blocks = np.split(adapter.up, ends)
    used = [block.any(axis=0) for block in blocks]
    if len(parts) == 1 or not adapter.up.any():
        used = [np.ones(len(adapter.down), bool)] * len(parts)
    return {
        part.path: (
            part.layer,
            _Adapter(
                adapter.down[chosen],
                block[:, chosen] * np.float32(part.factor),
                adapter.scale,
            ),
        )
        for part, block, chosen in zip(parts, blocks, used, strict=True)
        if chosen.any()
    }


def _config(
    model: keras.Model, adapters: Mapping[str, _Adapter], base_model: str
) -> Config:
    """Returns the settings of PEFT for adapters."""
    ranks = {module: len(each.down) for module, each in adapters.items()}
    alphas = {
        module: _plain(each.scale * ranks[module]) for module, each in adapters.items()
    }
    rank, alpha = _most_frequent(ranks), _most_frequent(alphas)
    task = "SEQ_2_SEQ_LM" if isinstance(model, Seq2Seq) else "CAUSAL_LM"
    task = "FEATURE_EXTRACTION" if isinstance(model, TextEncoder) else task
    return {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": base_model or None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted(adapters),
        "rank_pattern": {name: each for name, each in ranks.items() if each != rank},
        "alpha_pattern": {n: each for n, each in alphas.items() if each != alpha},
        "fan_in_fan_out": all(name.startswith(_CONV1D) for name in adapters),
        "bias": "none",
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }


def _most_frequent(values: Mapping[str, T]) -> T:
    found = list(values.values())
    return max(found, key=found.count)


def _plain(number: float) -> int | float:
    return round(number) if math.isclose(number, round(number)) else number


def _read_config(path: pathlib.Path) -> Config:
    """Reads the settings of an adapter; raises `ValueError` for unsupported ones."""
    config = read_json(path)
    for name, values in _SUPPORTED.items():
        if (value := config.get(name, values[0])) not in values:
            raise ValueError(
                f"`{name}` in {path} must be {values[0]!r}; received `{name}={value!r}`"
                ", which the layers do not support. Merge the adapter with PEFT, and "
                "load the merged model."
            )
    if type(config.get("use_rslora", False)) is not bool:
        raise ValueError(f"`use_rslora` in {path} must be true or false.")
    for name in ("rank_pattern", "alpha_pattern"):
        if not isinstance(config.get(name) or {}, dict):
            raise ValueError(f"`{name}` in {path} must be a dictionary.")
    return config


def _is_scaled_by_root(config: Config) -> bool:
    """Returns whether the factor is divided by the root of the rank."""
    found: bool = config.get("use_rslora", False)
    return found


def _read(
    tensors: Tensors, config: Config, module: str, parts: Sequence[_Part]
) -> _Adapter:
    """Reads the matrices of a module, after checking their shapes."""
    down, up = (f"{PREFIX}{module}{suffix}" for suffix in (DOWN, UP))
    rank = tensors.info(down).shape[0] if tensors.info(down).shape else 0
    expected = _of_module(config, "r", "rank_pattern", module)
    if rank != expected or rank < 1:
        raise ValueError(
            f"{tensors.path} must have the rank {expected} of {CONFIG} for {module}; "
            f"received {down!r} of shape {tensors.info(down).shape}."
        )
    inputs, outputs = _inputs(parts[0].layer), sum(part.outputs for part in parts)
    alpha = float(_of_module(config, "lora_alpha", "alpha_pattern", module))
    scale = alpha / (math.sqrt(rank) if _is_scaled_by_root(config) else rank)
    return _Adapter(
        tensors.read((down,), (rank, inputs)),
        tensors.read((up,), (outputs, rank)),
        scale,
    )


def _of_module(config: Config, name: str, patterns: str, module: str) -> Any:
    """Returns a setting of a module, by the regular expressions of PEFT."""
    for pattern, value in (config.get(patterns) or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return config.get(name, 8)  # the default of PEFT for both


def _some(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    more = f" and {len(found) - 3} others" if len(found) > 3 else ""
    return ", ".join(map(repr, found[:3])) + more
