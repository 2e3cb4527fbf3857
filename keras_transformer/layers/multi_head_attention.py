"""Scaled dot-product attention and multi-head attention."""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.masking import (
    attention_mask_from_padding,
    causal_mask,
    merge_masks,
    sliding_window_mask,
)


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any = None,
    return_attention_scores: bool = False,
    dropout: Callable[[Any], Any] | None = None,
    flash_attention: bool | None = None,
) -> Any:
    """Computes `softmax(query · keyᵀ / √key_dim) · value` for every head.

    The softmax is computed in float32. A query with nothing to attend to has
    scores and an output of exactly zero, and finite gradients. The backend's
    fused kernel is used unless scores or dropout are asked for.

    Args:
        query: float tensor `(batch, query_length, num_heads, key_dim)`.
        key: float tensor `(batch, key_length, num_heads, key_dim)`.
        value: float tensor `(batch, key_length, num_heads, value_dim)`.
        attention_mask: boolean tensor, `True` = attend, that broadcasts to
            `(batch, query_length, key_length)` or, with an axis for the heads,
            to `(batch, num_heads, query_length, key_length)`.
        return_attention_scores: whether to return the scores as well.
        dropout: a function applied to the scores before they weigh the values.
        flash_attention: as in `keras.ops.dot_product_attention`.

    Returns:
        The output `(batch, query_length, num_heads, value_dim)`; with
        `return_attention_scores=True` the pair of it and the scores (after the
        softmax, before dropout)
        `(batch, num_heads, query_length, key_length)`. Both have the dtype of
        `query`.

    Raises:
        ValueError: if the shapes do not fit each other.

    Example:

    >>> x = np.ones((2, 5, 3, 7), "float32")
    >>> output, scores = scaled_dot_product_attention(
    ...     x, x, x, return_attention_scores=True
    ... )
    >>> output.shape == (2, 5, 3, 7), scores.shape == (2, 3, 5, 5)
    (True, True)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), equation 1
    """
    _check_shapes(query.shape, key.shape, value.shape)
    query = query * (1.0 / math.sqrt(query.shape[-1]))
    mask = _with_head_axis(attention_mask)
    fused = flash_attention or _fused_kernel_fits(query, key, value)
    if return_attention_scores or dropout is not None or not fused:
        scores = _attention_scores(query, key, mask)
        weights = scores if dropout is None else dropout(scores)
        output = ops.einsum("bhqk,bkhd->bqhd", weights, value)
        return (output, scores) if return_attention_scores else output
    output = ops.dot_product_attention(
        query, key, value, mask=mask, scale=1.0, flash_attention=flash_attention
    )
    return output if mask is None else _zero_where_nothing_attended(output, mask)


def _fused_kernel_fits(query: Any, key: Any, value: Any) -> bool:
    """JAX's wants `value_dim = key_dim`, and compiles no float16 on a CPU or TPU."""
    if keras.backend.backend() != "jax":
        return True
    same_dim = key.shape[-1] == value.shape[-1]
    return same_dim and keras.backend.standardize_dtype(query.dtype) != "float16"


def _attention_scores(query: Any, key: Any, mask: Any) -> Any:
    logits = ops.cast(ops.einsum("bqhd,bkhd->bhqk", query, key), "float32")
    if mask is None:
        return ops.cast(_softmax(logits), query.dtype)
    scores = _softmax(ops.where(mask, logits, -1e30))
    return ops.cast(ops.where(mask, scores, 0.0), query.dtype)


def _softmax(logits: Any) -> Any:
    """The softmax over the keys; Keras's own warns where there is but one key."""
    if logits.shape[-1] == 1:
        return ops.exp(ops.log_softmax(logits, axis=-1))
    return ops.softmax(logits, axis=-1)


def _zero_where_nothing_attended(output: Any, mask: Any) -> Any:
    attended = ops.any(mask, axis=-1, keepdims=True)
    return ops.where(ops.transpose(attended, (0, 2, 1, 3)), output, 0.0)


def _with_head_axis(mask: Any) -> Any:
    if mask is None:
        return None
    mask = ops.cast(mask, "bool")
    while len(mask.shape) < 3:
        mask = ops.expand_dims(mask, 0)
    return ops.expand_dims(mask, 1) if len(mask.shape) == 3 else mask


def _check_shapes(query_shape: Any, key_shape: Any, value_shape: Any) -> None:
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
    if differ(query_shape[2], key_shape[2]) or differ(key_shape[2], value_shape[2]):
        raise ValueError(
            f"`query`, `key` and `value` must have the same num_heads; {shapes}"
        )


@keras.saving.register_keras_serializable("keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """Multi-head attention, a drop-in for `keras.layers.MultiHeadAttention`.

    `MultiHead(Q, K, V) = Concat(head_1, …, head_h) W^O` with
    `head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)`. Constructor, call, sub-layer
    names and weight order are those of the Keras layer, so that either can
    stand in the other's place and `set_weights` carries weights both ways. On
    top come a key-value cache, queries with nothing to attend to (their scores
    and weighted sums are zero, not an average over padding), an explicit
    `query_mask` that is honoured, and the fused kernel at inference whatever
    the dropout rate is.

    Args:
        num_heads: int, number of attention heads (h in the paper).
        key_dim: int, size of each head's queries and keys (d_k).
        value_dim: int, size of each head's values (d_v); `key_dim` if `None`.
        dropout: float in [0, 1), dropout rate of the attention scores.
        use_bias: whether the projections have biases.
        output_shape: int or tuple of ints, shape of the output's last axes; the
            last axis of the query if `None`.
        sliding_window: positive int; a query attends only to keys less than
            this many positions away.
        flash_attention: as in `keras.ops.dot_product_attention`.
        kernel_initializer: initializer of the projections' kernels.
        bias_initializer: initializer of the projections' biases.
        kernel_regularizer: regularizer of the projections' kernels.
        bias_regularizer: regularizer of the projections' biases.
        activity_regularizer: regularizer of the projections' outputs.
        kernel_constraint: constraint of the projections' kernels.
        bias_constraint: constraint of the projections' biases.
        seed: int, seed of the dropout.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        query: float tensor `(batch, query_length, query_dim)`.
        value: float tensor `(batch, key_length, any)`.
        key: float tensor `(batch, key_length, any)`; `value` if `None`.
        query_mask: boolean tensor `(batch, query_length)`.
        value_mask: boolean tensor `(batch, key_length)`.
        key_mask: boolean tensor `(batch, key_length)`. The three are filled in
            from the Keras masks of the inputs when they are not given.
        attention_mask: boolean tensor that broadcasts to
            `(batch, query_length, key_length)` or
            `(batch, num_heads, query_length, key_length)`. Masks are joined by
            logical and; `True` = attend.
        return_attention_scores: whether to return the scores too.
        training: whether dropout is applied.
        use_causal_mask: whether a query attends only to keys up to its own
            position.
        cache: float tensor `(batch, 2, cache_length, num_heads, key_dim)`, keys
            and values of earlier calls. The keys attended to are those of the
            cache; `query_mask`, `value_mask` and `key_mask` are not used.
        cache_update_index: int or int scalar tensor, where in the cache the
            keys and values of this call are written; the causal mask counts
            the queries from here. `None` reads the cache as it is.

    Returns:
        The output `(batch, query_length, query_dim)`; with
        `return_attention_scores=True` also the scores
        `(batch, num_heads, query_length, key_length)`; with a `cache` also the
        updated cache: `output`, `(output, scores)`, `(output, cache)` or
        `(output, scores, cache)`.

    Raises:
        ValueError: if `num_heads`, `key_dim`, `value_dim`, `dropout` or
            `sliding_window` is out of range, or `cache_update_index` comes
            without a `cache`.

    Example:

    >>> layer = MultiHeadAttention(num_heads=2, key_dim=3)
    >>> x = np.ones((1, 4, 6), "float32")
    >>> output, scores = layer(x, x, return_attention_scores=True)
    >>> tuple(output.shape), tuple(scores.shape)
    ((1, 4, 6), (1, 2, 4, 4))

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: Any = None,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        _check_positive(num_heads=num_heads, key_dim=key_dim)
        _check_positive(
            value_dim=key_dim if value_dim is None else value_dim,
            sliding_window=1 if sliding_window is None else sliding_window,
        )
        if not 0.0 <= dropout < 1.0:
            raise ValueError(
                f"`dropout` must be in [0, 1); received `dropout={dropout}`."
            )
        self.supports_masking = True
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim or key_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self._output_shape = _as_tuple(output_shape)
        self.sliding_window = sliding_window
        self.flash_attention = flash_attention
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.seed = seed

    def build(self, query_shape: Any, value_shape: Any, key_shape: Any = None) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        heads = (None, self.num_heads)
        self.query_dense = self._projection("query", (*heads, self.key_dim))
        self.query_dense.build(query_shape)
        self.key_dense = self._projection("key", (*heads, self.key_dim))
        self.key_dense.build(key_shape)
        self.value_dense = self._projection("value", (*heads, self.value_dim))
        self.value_dense.build(value_shape)
        output_shape = self._output_shape or (query_shape[-1],)
        self.output_dense = self._projection("attention_output", (None, *output_shape))
        self.output_dense.build((*query_shape[:-1], self.num_heads, self.value_dim))
        self.dropout_layer = keras.layers.Dropout(
            self.dropout, dtype=self.dtype_policy, seed=self.seed
        )

    def _projection(self, name: str, output_shape: Any) -> keras.layers.EinsumDense:
        free = "uvwxyz"[: len(output_shape) - 1]
        inner = "hd" if name == "attention_output" else "d"
        layer = keras.layers.EinsumDense(
            f"bt{inner},{inner}{free}->bt{free}",
            output_shape=output_shape,
            bias_axes=free if self.use_bias else None,
            dtype=self.dtype_policy,
            name=name,
            **self._projection_config(),
        )
        layer.supports_masking = True
        return layer

    def _projection_config(self) -> dict[str, Any]:
        """Serialized, so that every projection makes (and seeds) its own."""
        return {
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "activity_regularizer": keras.regularizers.serialize(
                self._activity_regularizer
            ),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }

    def call(
        self,
        query: Any,
        value: Any,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        cache: Any = None,
        cache_update_index: Any = None,
    ) -> Any:
        key = value if key is None else key
        if cache is None and cache_update_index is not None:
            raise ValueError(
                "`cache_update_index` must be `None` when `cache` is; received "
                f"`cache_update_index={cache_update_index}`. Pass the cache too."
            )
        query_heads = self.query_dense(query)
        if cache is None:
            key_heads, value_heads = self.key_dense(key), self.value_dense(value)
            attention_mask = merge_masks(
                attention_mask,
                None if query_mask is None else ops.expand_dims(query_mask, 2),
                attention_mask_from_padding(value_mask),
                attention_mask_from_padding(key_mask),
            )
        else:
            if cache_update_index is not None:
                update = self.compute_cache(value, key)
                start = (0, 0, cache_update_index, 0, 0)
                cache = ops.slice_update(cache, start, update)
            key_heads, value_heads = cache[:, 0], cache[:, 1]
        mask = self._positional_mask(
            query_heads, key_heads, attention_mask, use_causal_mask, cache_update_index
        )
        dropping = bool(training) and self.dropout > 0
        attended = scaled_dot_product_attention(
            query_heads,
            key_heads,
            value_heads,
            mask,
            return_attention_scores,
            self._drop if dropping else None,
            self.flash_attention,
        )
        output, *scores = attended if return_attention_scores else (attended,)
        outputs = (self.output_dense(output), *scores)
        outputs = outputs if cache is None else (*outputs, cache)
        return outputs if len(outputs) > 1 else outputs[0]

    def compute_cache(self, value: Any, key: Any = None) -> Any:
        """Projects keys and values once, to be attended to in many calls.

        Args:
            value: float tensor `(batch, key_length, any)`.
            key: float tensor `(batch, key_length, any)`; `value` if `None`.

        Returns:
            Cache `(batch, 2, key_length, num_heads, key_dim)` in the compute
            dtype, for the call argument `cache`.
        """
        key = value if key is None else key
        return ops.stack([self.key_dense(key), self.value_dense(value)], axis=1)

    def _drop(self, scores: Any) -> Any:
        return self.dropout_layer(scores, training=True)

    def _positional_mask(
        self,
        query: Any,
        key: Any,
        attention_mask: Any,
        use_causal_mask: bool,
        offset: Any,
    ) -> Any:
        lengths = ops.shape(query)[1], ops.shape(key)[1]
        offset = 0 if offset is None else offset
        if use_causal_mask:
            attention_mask = merge_masks(attention_mask, causal_mask(*lengths, offset))
        if self.sliding_window is not None:
            window = sliding_window_mask(*lengths, self.sliding_window, offset)
            attention_mask = merge_masks(attention_mask, window)
        return attention_mask

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "output_shape": self._output_shape,
            "sliding_window": self.sliding_window,
            "flash_attention": self.flash_attention,
            "seed": self.seed,
            **self._projection_config(),
        }


def _check_positive(**arguments: Any) -> None:
    for name, number in arguments.items():
        if not isinstance(number, int) or number <= 0:
            raise ValueError(
                f"`{name}` must be a positive int; received `{name}={number!r}`."
            )


def _as_tuple(output_shape: Any) -> tuple[int, ...] | None:
    if output_shape is None:
        return None
    return (output_shape,) if isinstance(output_shape, int) else tuple(output_shape)


def key_dim_per_head(hidden_dim: int, num_heads: int) -> int:
    """Returns `hidden_dim / num_heads`, the paper's d_k.

    Args:
        hidden_dim: int, width of the model.
        num_heads: int, number of attention heads.

    Returns:
        int, the width of one head.

    Raises:
        ValueError: if `num_heads` does not divide `hidden_dim`.

    Example:

    >>> key_dim_per_head(512, 8)
    64
    """
    if hidden_dim % num_heads:
        raise ValueError(
            "`hidden_dim` must be divisible by `num_heads`; received "
            f"`hidden_dim={hidden_dim}`, `num_heads={num_heads}`. Choose a multiple "
            "of the number of heads."
        )
    return hidden_dim // num_heads
