"""Low-rank adaptation: small trained matrices beside frozen weights."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import keras
import numpy as np
from keras import ops

from keras_transformer.backend.keras_internals import (
    flatten_layers,
    public_attributes,
)
from keras_transformer.layers import FeedForward, MultiHeadAttention
from keras_transformer_runtime.arguments import check_ints, check_positive

# A `Dense` or `EinsumDense` layer, whose attributes of LoRA have no types.
DenseLayer: TypeAlias = Any
ModelT = TypeVar("ModelT", bound=keras.Model)

ALL = "all"
# The dense layers that can be adapted.
_OF_ATTENTION = ("query", "key", "value", "output")
_OF_FEED_FORWARD = ("intermediate", "gate", "output")


def enable_lora(
    model: keras.Model,
    rank: int,
    alpha: float | None = None,
    targets: str | Iterable[str] = ALL,
) -> list[str]:
    """Adds low-rank updates to dense layers of a model, and freezes everything else.

    The kernel `W` of a target becomes `W + alpha / rank · A B`, with trained matrices
    `A (inputs, rank)` and `B (rank, outputs)`. `B` begins with zeros, so the model does
    not change at first. Biases, normalizations and embeddings are frozen as well. The
    method `enable_lora` of the Keras layers adds the matrices.

    Call `compile` afterwards, so that the optimizer has a state for the trainable
    weights. Files of the model have the merged kernels; `save_adapter` writes the
    updates alone.

    Args:
        model: a built model of this library, or one with its layers.
        rank: int >= 1, rank of the updates.
        alpha: float > 0, factor of the updates before they are divided by `rank`.
            `None` = `2 * rank`: the updates have the same factor for all ranks, so a
            learning rate that suits one rank suits another.
        targets: str or list of str, the layers to adapt: `"query"`, `"key"`, `"value"`
            and `"output"` of attention, `"intermediate"`, `"gate"` and `"output"` of
            feed-forward networks. A longer name selects fewer layers:
            `"self_attention.query"`, `"feed_forward.output"`,
            `"decoder.blocks.0.self_attention.value"`. `"all"` = all of them, which come
            closest to training all weights (Dettmers et al.); the paper adapts
            `["query", "value"]`, with a quarter of the trained parameters or fewer.

    Returns:
        List of str, the paths of the adapted layers, such as
        `"decoder.blocks.0.self_attention.query_dense"`.

    Raises:
        ValueError: if an argument is out of range, if a target is not in the model, or
            if the model has LoRA.

    Example:

    >>> model = Seq2Seq.from_preset("transformer_tiny", vocabulary_size=100)
    >>> adapted = enable_lora(model, rank=2, targets="cross_attention.query")
    >>> adapted[0], len(adapted)
    ('decoder.blocks.0.cross_attention.query_dense', 4)
    >>> sum(weight.size for weight in map(np.array, model.trainable_weights))
    2048

    References:
        - [Hu et al., 2022](https://arxiv.org/abs/2106.09685)
        - [Dettmers et al., 2023](https://arxiv.org/abs/2305.14314), section 5.2 (which
          layers)
    """
    check_ints(1, rank=rank)
    if alpha is not None:
        check_positive(alpha=alpha)
    layers = dict(dense_layers(model))
    if adapted_layers(model):
        raise ValueError(
            "`model` must have no LoRA yet; received a model with it. `merge_lora` "
            "returns a model without."
        )
    chosen = {path: layers[path] for path in _chosen(layers, targets)}
    for layer in chosen.values():
        add_matrices(layer, rank, 2 * rank if alpha is None else alpha)
    freeze_all_but_matrices(model)
    return list(chosen)


def add_matrices(layer: keras.layers.Layer, rank: int, alpha: float) -> None:
    """Adds the matrices of LoRA to a dense layer."""
    # The uniform numbers of the paper's code and of PEFT, up to the inverse root of
    # the number of inputs. Those of Keras are √6 times as large.
    initializer = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
    layer.enable_lora(rank, lora_alpha=alpha, a_initializer=initializer)


def freeze_all_but_matrices(model: keras.Model) -> None:
    """Freezes all weights of a model but those of LoRA."""
    adapted = adapted_layers(model).values()
    trained = {id(w) for each in adapted for w in matrices(each)}
    for weight in model.weights:
        weight.trainable = id(weight) in trained


def matrices(layer: keras.layers.Layer) -> tuple[keras.Variable, keras.Variable]:
    """Returns the matrices of a layer with LoRA."""
    return layer.lora_kernel_a, layer.lora_kernel_b


def merge_lora(model: ModelT) -> ModelT:
    """Returns a model without LoRA, whose kernels have the updates.

    It has the outputs of `model`, which does not change. All of its weights are
    trainable, and it is not compiled. `export` merges a model with LoRA itself.

    Args:
        model: a built model, such as one that `enable_lora` has changed.

    Returns:
        A new model of the same class and configuration.

    Raises:
        ValueError: if a layer with LoRA is quantized.

    Example:

    >>> model = Seq2Seq.from_preset("transformer_tiny", vocabulary_size=100)
    >>> adapted = enable_lora(model, rank=2)
    >>> merged = merge_lora(model)
    >>> len(model.weights) - len(merged.weights) == 2 * len(adapted)
    True
    """
    merged: ModelT = type(model).from_config(model.get_config())
    merged.set_weights(merged_weights(model))
    return merged


def without_lora(model: ModelT) -> ModelT:
    """Returns a model itself, or the merged model if it has LoRA."""
    return merge_lora(model) if _layers_with_lora(model) else model


def merged_weights(model: keras.Model) -> list[np.ndarray]:
    """Returns the weights of a model with the updates of LoRA, and without matrices."""
    updates: dict[int, np.ndarray] = {}
    omitted: set[int] = set()
    for layer in _layers_with_lora(model):
        if layer.quantization_mode is not None:
            raise ValueError(
                f"`model` must have LoRA in layers of floats; received `{layer.path}`, "
                f"quantized to {layer.quantization_mode}."
            )
        is_embedding = isinstance(layer, keras.layers.Embedding)
        name = "embeddings" if is_embedding else "kernel"
        a, b = (getattr(layer, f"lora_{name}_{each}") for each in "ab")
        omitted |= {id(a), id(b)}
        weight = next(each for each in layer.weights if each.name == name)
        product = np.tensordot(ops.convert_to_numpy(a), ops.convert_to_numpy(b), axes=1)
        updates[id(weight)] = product * np.float32(layer.lora_alpha / layer.lora_rank)
    return [
        ops.convert_to_numpy(weight) + updates.get(id(weight), 0)
        for weight in model.weights
        if id(weight) not in omitted
    ]


def _layers_with_lora(model: keras.layers.Layer) -> list[DenseLayer]:
    return [
        layer for layer in flatten_layers(model) if getattr(layer, "lora_enabled", None)
    ]


def adapted_layers(model: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
    """Returns the layers with LoRA by their paths."""
    return {path: each for path, each in dense_layers(model) if each.lora_enabled}


def dense_layers(model: keras.layers.Layer) -> Iterator[tuple[str, DenseLayer]]:
    """Yields the dense layers of attention and feed-forward networks, and their paths.

    A path has the names of attributes: `"encoder.blocks.0.feed_forward.gate_dense"`.
    """
    seen: set[int] = set()
    for path, layer in _inner_layers(model, "", seen):
        names: Sequence[str] = ()
        if isinstance(layer, MultiHeadAttention):
            names = _OF_ATTENTION
        elif isinstance(layer, FeedForward):
            names = _OF_FEED_FORWARD
        for name in names:
            dense = getattr(layer, f"{name}_dense")
            if dense is not None:
                yield f"{path}{name}_dense", dense


def _inner_layers(
    value: object, path: str, seen: set[int]
) -> Iterator[tuple[str, keras.layers.Layer]]:
    """Yields a layer and those in its public attributes, with the paths to theirs."""
    if isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _inner_layers(each, f"{path}{number}.", seen)
    elif isinstance(value, keras.layers.Layer) and id(value) not in seen:
        seen.add(id(value))
        yield path, value
        for name, each in public_attributes(value).items():
            yield from _inner_layers(each, f"{path}{name}.", seen)


def _chosen(paths: Iterable[str], targets: str | Iterable[str]) -> list[str]:
    """Returns the paths that end with one of the targets, in their order."""
    given = [targets] if isinstance(targets, str) else list(targets)
    names = {path: path.removesuffix("_dense") for path in paths}
    found: set[str] = set()
    for target in given:
        matched = {
            path
            for path, name in names.items()
            if target == ALL or f".{name}".endswith(f".{target}")
        }
        if not matched:
            last = dict.fromkeys(name.rpartition(".")[2] for name in names.values())
            raise ValueError(
                f"`targets` must be {ALL!r} or names of dense layers of the model, "
                f"such as {', '.join(map(repr, last))}; received `targets={targets!r}`."
            )
        found |= matched
    return [path for path in names if path in found]
