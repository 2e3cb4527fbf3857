"""Multi-head attention."""

from typing import Any

import keras
from keras import ops

from keras_transformer.arguments import check_ints
from keras_transformer.layers import weight_options
from keras_transformer.layers.attention.arguments import (
    as_shape,
    check_acts_in_attention,
    check_cache,
    check_dropout,
    check_key_value_heads,
    check_lengths,
    check_scores_wanted,
    check_three_axes,
    one_pattern,
)
from keras_transformer.layers.attention.axes import (
    fold,
    fold_attention_mask,
    fold_mask,
    standardize,
    unfold,
    unfold_scores,
)
from keras_transformer.layers.attention.key_values import (
    KeyValues,
    read_cache,
    update_cache,
)
from keras_transformer.layers.attention.patterns import AttentionPattern
from keras_transformer.layers.attention.routes import attend
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.freezing import freeze_new_layers
from keras_transformer.layers.masking import (
    attention_mask_from_padding,
    merge_masks,
    zero_masked_queries,
)
from keras_transformer.layers.positions.scheme import (
    PositionScheme,
    copy_scheme,
    sequence_positions,
)
from keras_transformer.layers.projection import Projection


@keras.saving.register_keras_serializable("keras_transformer")
class MultiHeadAttention(keras.layers.Layer):
    """Multi-head attention, a drop-in for `keras.layers.MultiHeadAttention`.

    `MultiHead(Q, K, V) = Concat(head_1, …, head_h) W^O` with
    `head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)`. Constructor, call, sub-layer
    names and weight order are those of the Keras layer, so that either can
    stand in the other's place and `set_weights` carries weights both ways. On
    top come a key-value cache, grouped queries, position schemes, attention
    patterns whose cost is linear in the length, queries with nothing to attend
    to (their scores and weighted sums are zero, not an average over padding),
    an explicit `query_mask` that is honoured, and the fused kernel at inference
    whatever the dropout rate is.

    Args:
        num_heads: int, number of attention heads (h in the paper).
        key_dim: int, size of each head's queries and keys (d_k).
        value_dim: int, size of each head's values (d_v); `key_dim` if `None`.
        dropout: float in [0, 1), dropout rate of the attention scores.
        use_bias: whether the projections have biases.
        output_shape: int or tuple of ints, shape of the output's last axes; the
            last axis of the query if `None`.
        attention_axes: int or ints, the axes that are attended over; all
            between the batch and the features if `None`.
        sliding_window: positive int; a query attends only to keys less than
            this many positions away: `pattern=LocalWindow(sliding_window - 1)`.
        flash_attention: as in `keras.ops.dot_product_attention`;
            `keras.config.is_flash_attention_enabled()` if `None`.
        kernel_initializer: initializer of the projections' kernels.
        bias_initializer: initializer of the projections' biases.
        kernel_regularizer: regularizer of the projections' kernels.
        bias_regularizer: regularizer of the projections' biases.
        activity_regularizer: regularizer of the projections' outputs.
        kernel_constraint: constraint of the projections' kernels.
        bias_constraint: constraint of the projections' biases.
        use_gate: whether what the heads attended to is multiplied by
            `sigmoid(query W^G)`.
        seed: int, seed of the dropout.
        num_key_value_heads: int, heads of keys and values; a divisor of
            `num_heads`, and `num_heads` itself if `None`. Fewer make the cache
            smaller: 1 is multi-query attention, more are grouped-query
            attention.
        pattern: an `AttentionPattern`, such as `LocalWindow(64)`: which
            positions attend to which. Self-attention over long sequences is
            then computed in blocks, unless scores are asked for.
        positions: a `PositionScheme` that acts in attention, such as
            `RotaryEmbedding()`, to copy, with weights of this layer's own.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        query: float tensor `(batch, query_length, query_dim)`. With more axes
            than three, see `attention_axes`.
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
        cache: float tensor
            `(batch, 2, cache_length, num_key_value_heads, key_dim)`, keys and
            values of earlier calls; or a `KeyValues`, which is lost then, as it
            may be written into. The keys attended to are those of the cache;
            `value_mask` and `key_mask` are used by a call that fills all of it, if
            its length is known.
        cache_update_index: int or int scalar tensor, where in the cache the
            keys and values of this call are written. `None` reads the cache as
            it is.
        query_positions: int tensor `(query_length,)` or `(batch, query_length)`,
            for the position scheme, the pattern and the causal mask;
            `cache_update_index` (or 0) + 0, 1, 2, … if `None`. Keys written to
            a cache have these positions too.
        key_positions: int tensor `(key_length,)` or `(batch, key_length)`, those
            of all keys attended to; 0, 1, 2, … if `None`.

    Returns:
        The output `(batch, query_length, query_dim)`; with
        `return_attention_scores=True` also the scores
        `(batch, num_heads, query_length, key_length)`; with a `cache` also the
        updated cache: `output`, `(output, scores)`, `(output, cache)` or
        `(output, scores, cache)`.

    Raises:
        ValueError: if an argument is out of range, two arguments exclude each
            other, shapes do not fit, or `cache_update_index` comes without a
            `cache`.

    Example:

    >>> layer = MultiHeadAttention(num_heads=2, key_dim=3)
    >>> x = np.ones((1, 4, 6), "float32")
    >>> output, scores = layer(x, x, return_attention_scores=True)
    >>> tuple(output.shape), tuple(scores.shape)
    ((1, 4, 6), (1, 2, 4, 4))

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2
        - [Shazeer, 2019](https://arxiv.org/abs/1911.02150) (multi-query)
        - [Ainslie et al., 2023](https://arxiv.org/abs/2305.13245) (grouped-query)
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: Any = None,
        attention_axes: Any = None,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        use_gate: bool = False,
        seed: int | None = None,
        *,
        num_key_value_heads: int | None = None,
        pattern: AttentionPattern | None = None,
        positions: PositionScheme | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_ints(1, num_heads=num_heads, key_dim=key_dim)
        check_ints(
            1,
            optional=True,
            value_dim=value_dim,
            sliding_window=sliding_window,
            num_key_value_heads=num_key_value_heads,
        )
        check_dropout(dropout, flash_attention)
        check_key_value_heads(num_heads, num_key_value_heads)
        check_acts_in_attention(positions)
        self.supports_masking = True
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim or key_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self._output_shape = as_shape(output_shape)
        self.attention_axes = attention_axes
        self._sliding_window = sliding_window
        self._flash_attention = flash_attention
        self._weight_options = weight_options.get(
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
        )
        self.use_gate = use_gate
        self.seed = seed
        self.num_key_value_heads = num_key_value_heads or num_heads
        self.pattern = one_pattern(pattern, sliding_window)
        self.positions = copy_scheme(positions, self.dtype_policy)

    @property
    def query_dense(self) -> keras.layers.EinsumDense:
        """The projection of the queries."""
        return self._query_dense

    @property
    def key_dense(self) -> keras.layers.EinsumDense:
        """The projection of the keys."""
        return self._key_dense

    @property
    def value_dense(self) -> keras.layers.EinsumDense:
        """The projection of the values."""
        return self._value_dense

    @property
    def output_dense(self) -> keras.layers.EinsumDense:
        """The projection of what the heads attended to."""
        return self._output_dense

    def build(self, query_shape: Any, value_shape: Any, key_shape: Any = None) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        check_lengths(value_shape, key_shape)
        width, heads = query_shape[-1], self.num_heads
        key_value_heads = self.num_key_value_heads
        self._query_dense = self._projection("query", width, (heads, self.key_dim))
        self._key_dense = self._projection(
            "key", key_shape[-1], (key_value_heads, self.key_dim)
        )
        if self.use_gate:
            self._gate_dense = self._projection(
                "gate", width, (heads, self.value_dim), activation="sigmoid"
            )
        self._value_dense = self._projection(
            "value", value_shape[-1], (key_value_heads, self.value_dim)
        )
        self._output_dense = self._projection(
            "attention_output",
            (heads, self.value_dim),
            self._output_shape or (width,),
        )
        self._dropout_layer = Dropout(
            self.dropout, dtype=self.dtype_policy, seed=self.seed
        )
        if self.positions is not None:
            self.positions.build((None, heads, None, None))
        freeze_new_layers(self)

    def _projection(
        self,
        name: str,
        input_shape: Any,
        output_shape: tuple[int, ...],
        activation: Any = None,
    ) -> Projection:
        input_shape = as_shape(input_shape)
        bound, free = "hd"[-len(input_shape) :], "uvwxyz"[: len(output_shape)]
        layer = Projection(
            f"bt{bound},{bound}{free}->bt{free}",
            output_shape=(None, *output_shape),
            activation=activation,
            bias_axes=free if self.use_bias else None,
            dtype=self.dtype_policy,
            name=name,
            **weight_options.clone(**self._weight_options),
        )
        layer.supports_masking = True
        layer.build((None, None, *input_shape))
        return layer

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
        query_positions: Any = None,
        key_positions: Any = None,
    ) -> Any:
        key = value if key is None else key
        check_cache(cache, cache_update_index, self.key_dim, self.value_dim)
        options: dict[str, Any] = {
            "return_attention_scores": return_attention_scores,
            "training": training,
            "use_causal_mask": use_causal_mask,
        }
        if len(query.shape) > 3:
            check_three_axes(
                query.shape,
                cache=cache,
                query_positions=query_positions,
                key_positions=key_positions,
            )
            masks = (query_mask, value_mask, key_mask, attention_mask)
            return self._call_over_axes(query, value, key, masks, options)
        if cache_update_index is not None and query_positions is None:
            query_positions = sequence_positions(query, cache_update_index)
        query_heads = self._rotate(self._query_dense(query), query_positions)
        if cache is None:
            key_heads, value_heads = self._project(value, key, key_positions)
        else:
            if cache_update_index is not None:
                new = self._project(value, key, query_positions)
                cache = update_cache(cache, *new, cache_update_index)
            key_heads, value_heads = read_cache(cache)
        masks_are_of_all_keys = cache is None or (
            cache_update_index is not None
            and key.shape[1] == key_heads.shape[1] is not None
        )
        if masks_are_of_all_keys:
            padding = attention_mask_from_padding(merge_masks(value_mask, key_mask))
            attention_mask = merge_masks(attention_mask, padding)
        attended, scores = self._compute_attention(
            query_heads,
            key_heads,
            value_heads,
            attention_mask,
            **options,
            query_positions=query_positions,
            key_positions=key_positions,
            is_self_attention=cache is None and _same_tokens(query, key),
        )
        if query_mask is not None:
            attended, scores = zero_masked_queries(attended, scores, query_mask)
        if self.use_gate:
            attended = attended * self._gate_dense(query)
        outputs: tuple[Any, ...] = (self._output_dense(attended), scores, cache)
        outputs = tuple(output for output in outputs if output is not None)
        return outputs if len(outputs) > 1 else outputs[0]

    def _compute_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
        **where: Any,
    ) -> tuple[Any, Any]:
        """Attends with the heads; to be overridden as in Keras, not to be called."""
        check_scores_wanted(return_attention_scores, self._flash_attention)
        dropping = bool(training) and self.dropout > 0
        enabled = keras.config.is_flash_attention_enabled()
        attended = attend(
            query,
            key,
            value,
            attention_mask,
            pattern=self.pattern,
            positions=self.positions,
            use_causal_mask=use_causal_mask,
            return_attention_scores=return_attention_scores,
            dropout=self._drop if dropping else None,
            flash_attention=self._flash_attention or enabled,
            **where,
        )
        return attended if return_attention_scores else (attended, None)

    def _drop(self, scores: Any) -> Any:
        return self._dropout_layer(scores, training=True)

    def _rotate(self, heads: Any, positions: Any) -> Any:
        if self.positions is None:
            return heads
        positions = sequence_positions(heads) if positions is None else positions
        return self.positions.rotate(heads, positions)

    def _call_over_axes(
        self,
        query: Any,
        value: Any,
        key: Any,
        masks: tuple[Any, Any, Any, Any],
        options: dict[str, Any],
    ) -> Any:
        """Calls the layer on inputs folded to three axes, and unfolds the outputs."""
        axes = standardize(self.attention_axes, len(query.shape))
        query_mask, value_mask, key_mask, attention_mask = masks
        if attention_mask is not None:
            attention_mask = fold_attention_mask(attention_mask, axes, query, key)
        folded = self.call(
            fold(query, axes),
            fold(value, axes),
            fold(key, axes),
            query_mask=fold_mask(query_mask, axes),
            value_mask=fold_mask(value_mask, axes),
            key_mask=fold_mask(key_mask, axes),
            attention_mask=attention_mask,
            **options,
        )
        if not options["return_attention_scores"]:
            return unfold(folded, axes, like=query)
        output, scores = folded
        return unfold(output, axes, query), unfold_scores(scores, axes, query, key)

    def compute_cache(self, value: Any, key: Any = None, positions: Any = None) -> Any:
        """Projects keys and values once, to be attended to in many calls.

        `value_dim` must be equal to `key_dim`.

        Args:
            value: float tensor `(batch, key_length, any)`.
            key: float tensor `(batch, key_length, any)`; `value` if `None`.
            positions: int tensor `(key_length,)` or `(batch, key_length)`, for
                the position scheme; 0, 1, 2, … if `None`.

        Returns:
            Cache `(batch, 2, key_length, num_key_value_heads, key_dim)` in the
            compute dtype, for the call argument `cache`.
        """
        key = value if key is None else key
        return ops.stack(self._project(value, key, positions), axis=1)

    def compute_key_values(self, value: Any) -> KeyValues:
        """Does what `compute_cache` does, in the layout that decodes faster."""
        return KeyValues.of(*self._project(value, value, None))

    def _project(self, value: Any, key: Any, positions: Any) -> tuple[Any, Any]:
        return self._rotate(self._key_dense(key), positions), self._value_dense(value)

    def compute_output_shape(
        self, query_shape: Any, value_shape: Any, key_shape: Any = None
    ) -> tuple[int | None, ...]:
        check_lengths(value_shape, value_shape if key_shape is None else key_shape)
        *leading, width = query_shape
        return (*leading, *(self._output_shape or (width,)))

    # By tracing, so that scores and caches are there too.
    compute_output_spec = keras.Operation.compute_output_spec

    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        own_pattern = None if self._sliding_window else self.pattern
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "output_shape": self._output_shape,
            "attention_axes": self.attention_axes,
            "sliding_window": self._sliding_window,
            "flash_attention": self._flash_attention,
            "use_gate": self.use_gate,
            "seed": self.seed,
            "num_key_value_heads": self.num_key_value_heads,
            "pattern": serialize(own_pattern),
            "positions": serialize(self.positions),
            **weight_options.serialize(**self._weight_options),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MultiHeadAttention":
        """Makes the layer whose `get_config()` is `config`."""
        deserialize = keras.saving.deserialize_keras_object
        config = dict(config)
        for name in ("pattern", "positions"):
            config[name] = deserialize(config.get(name))
        return cls(**config)


def _same_tokens(query: Any, key: Any) -> bool:
    if None in (query.shape[1], key.shape[1]):
        return query is key
    return query.shape[1] == key.shape[1]
