"""Errors for arguments and inputs that a layer does not take, with what it takes."""

import difflib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import ParamSpec

import keras

from keras_transformer.types import Shape, Tensor

P = ParamSpec("P")

# Arguments, with their names in papers and in other libraries.
_ALIASES = {
    "activation": ("act", "activation_function", "hidden_act"),
    "dropout": ("dropout_rate", "p", "rate"),
    "hidden_dim": (
        *("d_model", "dim", "dim_model", "embed_dim", "embedding_dim"),
        *("embedding_size", "hidden_size", "model_dim", "n_embd", "units"),
    ),
    "intermediate_dim": (
        *("d_ff", "dff", "dim_feedforward", "feed_forward_dim", "ff_dim"),
        *("ffn_dim", "filter_size", "intermediate_size", "mlp_dim"),
    ),
    "key_dim": ("d_k", "head_dim", "head_size", "size_per_head"),
    "layer_norm_epsilon": ("eps", "epsilon", "layer_norm_eps", "norm_eps"),
    "max_length": ("max_len", "max_position_embeddings", "sequence_length"),
    "normalize_first": ("norm_first", "pre_norm", "prenorm"),
    "num_heads": ("head_count", "heads", "n_head", "n_heads", "nhead"),
    "num_key_value_heads": ("n_kv_heads", "num_kv_heads"),
    "num_layers": ("depth", "layers", "n_layer", "n_layers", "num_blocks"),
    "query_key_normalization": ("qk_layernorm", "qk_norm", "use_qk_norm"),
    "value_dim": ("d_v",),
    "vocabulary_size": ("n_vocab", "vocab_size"),
}
_ARGUMENTS = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}
_OF_KERAS = {
    *inspect.signature(keras.layers.Layer.__init__).parameters,
    *("input_dim", "input_shape"),  # in its `**kwargs`
}


def explains_arguments(init: Callable[P, None]) -> Callable[P, None]:
    """Decorates the constructor of a layer or a model that passes `**kwargs` to Keras.

    The error for an unknown or a missing argument names the class of the object, not a
    base class, and the argument that was probably meant.
    """
    signature = inspect.signature(init)
    names = [n for n in signature.parameters if n not in ("self", "kwargs")]

    @functools.wraps(init)
    def explained(*args: P.args, **kwargs: P.kwargs) -> None:
        called = type(args[0]).__name__
        for name, value in kwargs.items():
            if name not in names and name not in _OF_KERAS:
                raise ValueError(
                    f"`{called}` has no argument `{name}`; received "
                    f"`{name}={value!r:.80}`. {_advice(name, names)}"
                )
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"`{called}`: {error}.") from None
        init(*args, **kwargs)

    # Keras reads the signature, and does not follow `__wrapped__` everywhere.
    vars(explained)["__signature__"] = signature
    return explained


def _advice(name: str, names: Sequence[str]) -> str:
    """Returns which of the arguments was probably meant."""
    meant = _ARGUMENTS.get(name)
    if meant == "hidden_dim" and meant not in names:
        return "The width is that of the inputs."
    close = [meant] if meant in names else difflib.get_close_matches(name, names, n=1)
    if close:
        return f"Did you mean `{close[0]}`?"
    return f"Its arguments are {', '.join(f'`{each}`' for each in names)}."


def check_embedded(layer: keras.layers.Layer, *inputs: Tensor | Shape | None) -> None:
    """Raises `ValueError` if inputs of a layer, or their shapes, are token ids."""
    for each in inputs:
        if each is None:
            continue
        shape = each if isinstance(each, Sequence) else tuple(each.shape)
        dtype = getattr(each, "dtype", None)
        name = "" if dtype is None else keras.backend.standardize_dtype(dtype)
        if len(shape) < 3 or "int" in name:
            raise ValueError(
                f"The inputs of `{type(layer).__name__}` must be floats of shape "
                f"(batch, length, hidden_dim); received {name or 'a tensor'} of shape "
                f"{shape}. If they are token ids, embed the ids first, for example "
                "with `ScaledEmbedding(vocabulary_size, hidden_dim)`."
            )
