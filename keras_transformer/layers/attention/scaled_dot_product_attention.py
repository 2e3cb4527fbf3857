"""Scaled dot-product attention."""

import math
from collections.abc import Callable
from typing import TypeAlias

import keras
from keras import ops

from keras_transformer.layers.attention.key_values import swap_length_and_heads
from keras_transformer.layers.masking import causal_mask, merge_masks, with_head_axis
from keras_transformer.types import Mask, Shape, Size, Tensor

# Up to this number of queries, PyTorch on a CPU does not use its fused kernel.
FEW_QUERIES = 16

# From this number of keys, JAX uses a fused kernel on a GPU, if there are many queries.
MANY_KEYS = 128

# The output, or a pair of the output and the scores.
AttentionResult: TypeAlias = Tensor | tuple[Tensor, Tensor]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Mask | None = None,
    return_attention_scores: bool = False,
    dropout: Callable[[Tensor], Tensor] | None = None,
    flash_attention: bool | None = None,
    bias: Tensor | None = None,
    use_causal_mask: bool = False,
) -> AttentionResult:
    """Computes `softmax(query · keyᵀ / √key_dim + bias) · value` for each head.

    The softmax is computed in float32. A query without any key to attend to has
    scores and an output of exactly zero, and finite gradients. Without scores and
    dropout, the fused kernel of the backend is used if it is faster or
    `flash_attention` requires it. If keys and values have fewer heads than queries,
    each of their heads serves several consecutive heads of the queries and is not
    repeated in memory.

    Args:
        query: float tensor `(batch, query_length, num_heads, key_dim)`.
        key: float tensor `(batch, key_length, num_key_value_heads, key_dim)`.
        value: float tensor `(batch, key_length, num_key_value_heads, value_dim)`.
        attention_mask: boolean tensor, `True` = attend, that broadcasts to
            `(batch, query_length, key_length)` or
            `(batch, num_heads, query_length, key_length)`.
        return_attention_scores: bool, whether to return the scores too.
        dropout: function that is applied to the scores before the weighted sum.
        flash_attention: as in `keras.ops.dot_product_attention`.
        bias: float tensor `(num_heads, query_length, key_length)` or
            `(batch, num_heads, query_length, key_length)`, added to the logits.
        use_causal_mask: bool, whether a query attends only to keys up to its own
            position.

    Returns:
        The output `(batch, query_length, num_heads, value_dim)`. With
        `return_attention_scores=True`, a pair of the output and the scores
        `(batch, num_heads, query_length, key_length)`, after the softmax and before
        dropout. Both have the dtype of `query`, even if the other tensors have a wider
        dtype.

    Raises:
        ValueError: if the shapes do not match.

    Example:

    >>> x = np.ones((2, 5, 3, 7), "float32")
    >>> output, scores = scaled_dot_product_attention(
    ...     x, x, x, return_attention_scores=True
    ... )
    >>> output.shape == (2, 5, 3, 7), scores.shape == (2, 3, 5, 5)
    (True, True)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), equation 1
        - [Ainslie et al., 2023](https://arxiv.org/abs/2305.13245) (grouped-query
          attention)
    """
    _check_shapes(query.shape, key.shape, value.shape)
    # The sizes of the tracer of `torch.onnx` are tensors.
    group = int(query.shape[2]) // int(key.shape[2])
    lengths = ops.shape(query)[1], ops.shape(key)[1]
    is_masked = attention_mask is not None or (use_causal_mask and group > 1)
    is_fused = not return_attention_scores and dropout is None
    is_fused = is_fused and (
        flash_attention
        or _is_fused_kernel_faster(query, key, value, is_masked or bias is not None)
    )
    kernel_is_causal = (
        is_fused and attention_mask is None and bias is None and group == 1
    )
    if use_causal_mask and not kernel_is_causal:
        attention_mask = merge_masks(attention_mask, causal_mask(*lengths))
    mask = None if attention_mask is None else ops.cast(attention_mask, "bool")
    mask = with_head_axis(mask)
    bias = bias if bias is None or len(bias.shape) == 4 else ops.expand_dims(bias, 0)
    if group > 1:
        query = _group_queries(query, group)
        mask, bias = (_group_pairs(x, group, lengths[0]) for x in (mask, bias))
    if is_fused:
        causal = use_causal_mask and kernel_is_causal
        output = _fused_attention(
            query, key, value, mask, bias, causal, flash_attention
        )
    else:
        scores = _attention_scores(query, key, mask, bias)
        weights = scores if dropout is None else dropout(scores)
        output = ops.matmul(weights, swap_length_and_heads(value))
        output = swap_length_and_heads(output)
    output = ops.cast(_zero_unattended(output, mask), query.dtype)
    output = output if group == 1 else _ungroup_output(output, group)
    if not return_attention_scores:
        return output
    scores = scores if mask is None else ops.where(mask, scores, 0.0)
    if group > 1:
        batch, heads = ops.shape(key)[0], key.shape[2]
        scores = ops.reshape(scores, (batch, heads, group, *lengths))
        scores = ops.reshape(scores, (batch, heads * group, *lengths))
    return output, scores


def _fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None,
    bias: Tensor | None,
    use_causal_mask: bool,
    flash_attention: bool | None,
) -> Tensor:
    """Calls the fused kernel of the backend, which takes a mask or a bias, not both."""
    pairs = ops.shape(query)[1], ops.shape(key)[1]
    if bias is not None:
        bias = bias if mask is None else ops.where(mask, bias, _lowest(query.dtype))
        bias, mask = _for_all_pairs(ops.cast(bias, query.dtype), pairs), None
    elif mask is not None:
        mask = _for_all_pairs(mask, pairs)
    return ops.dot_product_attention(
        query,
        key,
        value,
        bias=bias,
        mask=mask,
        scale=1.0 / math.sqrt(query.shape[-1]),
        is_causal=use_causal_mask,
        flash_attention=flash_attention,
    )


def _for_all_pairs(x: Tensor, pairs: tuple[Size, Size]) -> Tensor:
    """Repeats a mask or a bias for each query, which JAX's kernel requires."""
    if keras.backend.backend() != "jax":
        return x
    return ops.broadcast_to(x, (*ops.shape(x)[:2], *pairs))


def _is_fused_kernel_faster(
    query: Tensor, key: Tensor, value: Tensor, has_bias: bool
) -> bool:
    """Returns whether the fused kernel is faster than matrix products and softmax."""
    # TensorFlow has no fused kernel. JAX's kernel runs on a GPU, in half precision,
    # with `value_dim = key_dim` and, for a gradient with a mask or a bias, even
    # lengths; it is slower for 64 keys, and faster for 128 or more. PyTorch's kernel on
    # a CPU transposes the keys of the whole cache for the few queries of a decoding
    # step. `has_bias` counts a mask, which the kernel adds as a bias.
    lengths = query.shape[1], key.shape[1]
    has_few = isinstance(lengths[0], int) and lengths[0] <= FEW_QUERIES
    if keras.backend.backend() == "torch":
        device = getattr(query, "device", "cpu")  # A symbolic tensor has no device.
        return not has_few or "cpu" not in str(device)
    if keras.backend.backend() == "tensorflow" or not _is_on_gpu():
        return False
    is_known = all(isinstance(length, int) for length in lengths)
    if has_few or not is_known or lengths[1] < MANY_KEYS:
        return False
    is_half = keras.backend.standardize_dtype(query.dtype) in ("bfloat16", "float16")
    is_even = not (has_bias and any(length % 2 for length in lengths))
    return is_half and is_even and key.shape[-1] == value.shape[-1]


def _is_on_gpu() -> bool:
    return any("gpu" in name for name in keras.distribution.list_devices())


def _attention_scores(
    query: Tensor, key: Tensor, mask: Mask | None, bias: Tensor | None
) -> Tensor:
    query = swap_length_and_heads(query * (1.0 / math.sqrt(query.shape[-1])))
    logits = ops.cast(ops.matmul(query, ops.transpose(key, (0, 2, 3, 1))), "float32")
    if bias is not None:
        logits = logits + ops.cast(bias, "float32")
    if mask is not None:
        logits = ops.where(mask, logits, _lowest("float32"))
    if logits.shape[-1] == 1:  # Keras warns of a softmax over a single entry.
        scores = ops.exp(ops.log_softmax(logits, axis=-1))
    else:
        scores = ops.softmax(logits, axis=-1)
    return ops.cast(scores, query.dtype)


def _lowest(dtype: object) -> float:
    """Returns a finite logit below all others."""
    return -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e30


def _zero_unattended(output: Tensor, mask: Mask | None) -> Tensor:
    """Sets to zero the outputs of queries without any key to attend to."""
    if mask is None:
        return output
    attended = ops.any(mask, axis=-1, keepdims=True)
    return ops.where(swap_length_and_heads(attended), output, 0.0)


def _group_queries(query: Tensor, group: int) -> Tensor:
    """Reshapes the heads that share keys to queries of one head."""
    # `(batch, length, heads * group, dim)` to `(batch, group * length, heads, dim)`
    batch, length, num_heads, dim = ops.shape(query)
    x = ops.reshape(query, (batch, length, num_heads // group, group, dim))
    x = ops.transpose(x, (0, 3, 1, 2, 4))
    return ops.reshape(x, (batch, group * length, num_heads // group, dim))


def _ungroup_output(output: Tensor, group: int) -> Tensor:
    """Inverts `_group_queries`."""
    batch, length, num_heads, dim = ops.shape(output)
    x = ops.reshape(output, (batch, group, length // group, num_heads, dim))
    x = ops.transpose(x, (0, 2, 3, 1, 4))
    return ops.reshape(x, (batch, length // group, num_heads * group, dim))


def _group_pairs(x: Tensor | None, group: int, query_length: Size) -> Tensor | None:
    """Reshapes a mask or a bias for the queries of `_group_queries`."""
    if x is None:
        return None
    # Keras traces an ONNX graph of PyTorch with a single query, for all lengths.
    is_traced = keras.backend.backend() == "torch" and query_length == 1
    if tuple(x.shape[1:3]) == (1, 1) and not is_traced:
        return x
    if x.shape[2] in (1, None) and not is_traced:
        batch, heads, _, keys = ops.shape(x)
        x = ops.broadcast_to(x, (batch, heads, query_length, keys))
    # `torch.export` cannot reshape heads and an unknown length to one axis.
    parts = [x if x.shape[1] == 1 else x[:, i::group] for i in range(group)]
    return ops.concatenate(parts, axis=2)


def _check_shapes(query_shape: Shape, key_shape: Shape, value_shape: Shape) -> None:
    def differ(a: int | None, b: int | None) -> bool:
        return a is not None and b is not None and a != b

    shapes = (
        f"received `query.shape={tuple(query_shape)}`, "
        f"`key.shape={tuple(key_shape)}`, `value.shape={tuple(value_shape)}`."
    )
    if not len(query_shape) == len(key_shape) == len(value_shape) == 4:
        raise ValueError(
            "`query`, `key` and `value` must have 4 axes (batch, length, num_heads, "
            f"dim); {shapes}"
        )
    if differ(query_shape[-1], key_shape[-1]):
        raise ValueError(f"`query` and `key` must have the same key_dim; {shapes}")
    if differ(key_shape[1], value_shape[1]):
        raise ValueError(f"`key` and `value` must have the same length; {shapes}")
    if differ(key_shape[2], value_shape[2]):
        raise ValueError(f"`key` and `value` must have the same num_heads; {shapes}")
    num_heads, num_key_value_heads = query_shape[2], key_shape[2]
    if num_heads and num_key_value_heads and num_heads % num_key_value_heads:
        raise ValueError(
            "The num_heads of `query` must be a multiple of the num_heads of `key`; "
            f"{shapes}"
        )
