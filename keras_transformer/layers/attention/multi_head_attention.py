"""Multi-head attention."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.argument_errors import check_embedded, explains_arguments
from keras_transformer.layers.attention.axes import Masks, call_over_axes
from keras_transformer.layers.attention.blockwise import (
    blockwise_attention,
    is_blockwise_faster,
)
from keras_transformer.layers.attention.key_values import (
    Cache,
    KeyValues,
    read_cache,
    update_cache,
)
from keras_transformer.layers.attention.mask_and_bias import mask_and_bias
from keras_transformer.layers.attention.patterns import AttentionPattern
from keras_transformer.layers.attention.scaled_dot_product_attention import (
    scaled_dot_product_attention,
)
from keras_transformer.layers.attention.validation import (
    as_shape,
    check_attention_scheme,
    check_cache,
    check_dropout,
    check_key_and_value_shapes,
    check_key_value_heads,
    check_scores_available,
    check_three_axes,
    get_pattern,
    projections_with_bias,
)
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
from keras_transformer.layers.quantized_layers import QuantizedLayers
from keras_transformer.layers.residual import NORMALIZATIONS, make_normalization
from keras_transformer.layers.sub_layers import (
    Initializer,
    clone_weight_options,
    freeze_new_sub_layers,
    get_weight_options,
    known_size,
    serialize_weight_options,
)
from keras_transformer.types import Config, Mask, Shape, Size, Tensor
from keras_transformer_runtime.arguments import (
    check_ints,
    check_one_of,
    check_positive,
)

# `torch.compile` cannot trace `super().kernel`.
_KERNEL = keras.layers.EinsumDense.kernel.fget


@keras.saving.register_keras_serializable("keras_transformer")
class Projection(keras.layers.EinsumDense):
    """`keras.layers.EinsumDense` for inputs `(batch, length, …)`, as a matrix product.

    All tokens are rows of one matrix, so the gradient of the kernel is a matrix product
    as well. With the einsum, TensorFlow computes a gradient for each row of the batch
    and adds them.

    The matrices of LoRA are those of the whole kernel: `(…, rank)` with the axes of the
    input and `(rank, …)` with those of the output, as in the paper and in PEFT.
    `keras.layers.EinsumDense` has a matrix for each head instead.
    """

    @property
    def kernel(self) -> Any:  # type: ignore[override]
        """The weight; with LoRA a tensor, the weight with its update."""
        if not self.lora_enabled:
            return _KERNEL(self)
        scale = self.lora_alpha / self.lora_rank
        update = ops.tensordot(self.lora_kernel_a, self.lora_kernel_b, axes=1)
        return ops.cast(self.frozen_kernel + scale * update, self.compute_dtype)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        kernel = self.frozen_kernel if self.lora_enabled else self.kernel
        num_summed_axes = len(inputs.shape) - 2
        output_shape = kernel.shape[num_summed_axes:]
        width = math.prod(kernel.shape[:num_summed_axes])
        size = math.prod(output_shape)
        tokens = ops.reshape(inputs, (-1, width))
        output = ops.matmul(tokens, ops.reshape(kernel, (width, size)))
        if self.lora_enabled:
            # Without the kernel's own gradient, which has the size of the kernel.
            rank = self.lora_rank
            down = ops.matmul(tokens, ops.reshape(self.lora_kernel_a, (width, rank)))
            up = ops.matmul(down, ops.reshape(self.lora_kernel_b, (rank, size)))
            output = output + (self.lora_alpha / rank) * up
        if self.bias is not None:
            output = output + ops.reshape(self.bias, (-1,))
        if self.activation is not None:
            output = self.activation(output)
        return ops.reshape(output, (*ops.shape(inputs)[:2], *output_shape))

    def enable_lora(self, rank: int, *args: Any, **kwargs: Any) -> None:
        """Adds the matrices of LoRA, as `keras.layers.EinsumDense.enable_lora` does.

        Args:
            rank: int, the rank of the update of the kernel.
            *args: the other arguments of the Keras method.
            **kwargs: the same.

        Raises:
            ValueError: if the layer has LoRA, is quantized, is not built or has a
                constraint of its kernel.
        """
        if self.quantization_mode is not None:
            raise ValueError(
                f"`enable_lora` requires a layer of floats; received `{self.path}`, "
                f"quantized to {self.quantization_mode}. Call it before `quantize`."
            )
        if self.built and not self.lora_enabled:
            self.frozen_kernel = self.kernel
        super().enable_lora(rank, *args, **kwargs)  # type: ignore[misc]

    def add_weight(self, *args: Any, **kwargs: Any) -> keras.Variable:
        # `EinsumDense.enable_lora` asks for the shapes of the matrices of heads.
        if kwargs.get("name") in ("lora_kernel_a", "lora_kernel_b"):
            shape = tuple(self.frozen_kernel.shape)
            outputs = shape[1 - len(self.partial_output_shape) :]
            if kwargs["name"] == "lora_kernel_a":
                rank = kwargs["shape"][-1]
                kwargs["shape"] = (*shape[: -len(outputs)], rank)
            else:
                kwargs["shape"] = (kwargs["shape"][0], *outputs)
        return super().add_weight(*args, **kwargs)

    def quantize(self, *args: object, **kwargs: object) -> None:
        if self.lora_enabled:
            raise ValueError(
                f"`quantize` requires a layer without LoRA; received `{self.path}`. "
                "Call it on the model that `merge_lora` returns."
            )
        # Keras does not quantize subclasses by default.
        super().quantize(*args, **{**kwargs, "type_check": False})


@keras.saving.register_keras_serializable("keras_transformer")
class MultiHeadAttention(QuantizedLayers):
    """Multi-head attention that can replace `keras.layers.MultiHeadAttention`.

    `MultiHead(Q, K, V) = Concat(head_1, …, head_h) W^O` with
    `head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)`. Constructor, call, names of
    sub-layers and weight order are those of the Keras layer, so either class replaces
    the other, and `set_weights` copies weights between them. In addition, the layer
    has a key-value cache, grouped-query attention, position schemes and attention
    patterns. The scores and weighted sums of queries without any key to attend to are
    zero, an explicit `query_mask` is applied, and inference uses the fused kernel for
    any dropout rate.

    Args:
        num_heads: int, number of attention heads (h in the paper).
        key_dim: int, size of the queries and keys of each head (d_k).
        value_dim: int, size of the values of each head (d_v). Defaults to `key_dim`.
        dropout: float in [0, 1), dropout rate of the attention scores.
        use_bias: bool, whether the projections have biases; or a list of the names
            of those that have one, among `"query"`, `"key"`, `"value"` and
            `"output"`.
        output_shape: int or tuple of ints, sizes of the last axes of the output.
            Defaults to the size of the last axis of the query.
        attention_axes: int or ints, the axes over which attention is applied.
            Defaults to all axes between the batch and the features.
        sliding_window: positive int. A query attends only to keys less than
            this number of positions away, as with
            `pattern=LocalWindow(sliding_window - 1)`.
        flash_attention: as in `keras.ops.dot_product_attention`. Defaults to
            `keras.config.is_flash_attention_enabled()`.
        kernel_initializer: initializer of the kernels of the projections.
        bias_initializer: initializer of the biases of the projections.
        kernel_regularizer: regularizer of the kernels of the projections.
        bias_regularizer: regularizer of the biases of the projections.
        activity_regularizer: regularizer of the outputs of the projections.
        kernel_constraint: constraint of the kernels of the projections.
        bias_constraint: constraint of the biases of the projections.
        use_gate: bool, whether the weighted sums of the heads are multiplied by
            `sigmoid(query W^G)`.
        seed: int, seed of the dropout.
        num_key_value_heads: int, number of heads of keys and values, a divisor of
            `num_heads`. 1 is multi-query attention, other numbers below `num_heads`
            are grouped-query attention. Defaults to `num_heads`.
        pattern: `AttentionPattern`, such as `LocalWindow(64)`, or `None`. If
            scores are not requested, long self-attention is computed blockwise.
        positions: `PositionScheme` to copy that acts in attention, such as
            `RotaryEmbedding()`, or `None`.
        query_key_normalization: `"rms"` (root mean square normalisation), `"layer"`
            (layer normalisation) or `None`. Each head of the queries and of the keys
            is normalised over `key_dim` after the projection and before the position
            scheme. All heads have the same gain. A cache contains normalised keys.
        layer_norm_epsilon: float, epsilon of this normalisation.
        **kwargs: `name`, `dtype` and the other arguments of
            `keras.layers.Layer`.

    Call arguments:
        query: float tensor `(batch, query_length, query_dim)`. For inputs with more
            than three axes, see `attention_axes`.
        value: float tensor `(batch, key_length, value_features)`.
        key: float tensor `(batch, key_length, key_features)`. Defaults to `value`.
        query_mask: boolean tensor `(batch, query_length)`.
        value_mask: boolean tensor `(batch, key_length)`.
        key_mask: boolean tensor `(batch, key_length)`. These three masks default to
            the Keras masks of the inputs.
        attention_mask: boolean tensor, `True` = attend, that broadcasts to
            `(batch, query_length, key_length)` or
            `(batch, num_heads, query_length, key_length)`. All masks are merged by
            logical and.
        return_attention_scores: bool, whether to return the attention scores too.
        training: bool, whether to apply dropout.
        use_causal_mask: bool, whether a query attends only to keys up to its own
            position.
        cache: float tensor
            `(batch, 2, cache_length, num_key_value_heads, key_dim)`, keys and
            values of earlier calls, or `KeyValues`. Do not use a `KeyValues` again
            after the call, which may overwrite it. Queries attend to the keys of the
            cache. `value_mask` and `key_mask` are applied if the call fills the
            whole cache and its length is known.
        cache_update_index: int or int scalar tensor, the entry of the cache where the
            keys and values of this call are written. With `None`, the cache is not
            changed.
        query_positions: int tensor `(query_length,)` or `(batch, query_length)`,
            for the position scheme, the pattern and the causal mask. Keys written to
            a cache have these positions too. Defaults to `cache_update_index` (or 0)
            + 0, 1, 2, ….
        key_positions: int tensor `(key_length,)` or `(batch, key_length)`,
            positions of all keys. Defaults to 0, 1, 2, ….

    Returns:
        The output `(batch, query_length, query_dim)`. With
        `return_attention_scores=True`, also the scores
        `(batch, num_heads, query_length, key_length)`. With a `cache`, also the
        updated cache: `output`, `(output, scores)`, `(output, cache)` or
        `(output, scores, cache)`.

    Raises:
        ValueError: if an argument is out of range, two arguments exclude each
            other, shapes do not match, or `cache_update_index` is given without a
            `cache`.

    Example:

    >>> layer = MultiHeadAttention(num_heads=2, key_dim=3)
    >>> x = np.ones((1, 4, 6), "float32")
    >>> output, scores = layer(x, x, return_attention_scores=True)
    >>> tuple(output.shape), tuple(scores.shape)
    ((1, 4, 6), (1, 2, 4, 4))

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2
        - [Shazeer, 2019](https://arxiv.org/abs/1911.02150) (multi-query attention)
        - [Ainslie et al., 2023](https://arxiv.org/abs/2305.13245) (grouped-query
          attention)
        - [Dehghani et al., 2023](https://arxiv.org/abs/2302.05442), section 2
          (normalisation of queries and keys)
    """

    @explains_arguments
    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool | Sequence[str] = True,
        output_shape: int | Sequence[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
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
        query_key_normalization: str | None = None,
        layer_norm_epsilon: float = 1e-5,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_ints(1, num_heads=num_heads, key_dim=key_dim)
        check_ints(1, optional=True, value_dim=value_dim, sliding_window=sliding_window)
        check_dropout(dropout, flash_attention)
        check_key_value_heads(num_heads, num_key_value_heads)
        check_attention_scheme(positions)
        check_one_of(
            NORMALIZATIONS,
            optional=True,
            query_key_normalization=query_key_normalization,
        )
        check_positive(layer_norm_epsilon=layer_norm_epsilon)
        self.supports_masking = True
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim or key_dim
        self.dropout = dropout
        self.use_bias = projections_with_bias(use_bias)
        self._output_shape = as_shape(output_shape)
        self.attention_axes = attention_axes
        self._sliding_window = sliding_window
        self._flash_attention = flash_attention
        self._weight_options = get_weight_options(
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
        self.pattern = get_pattern(pattern, sliding_window)
        self.positions = copy_scheme(positions, self.dtype_policy)
        self.query_key_normalization = query_key_normalization
        self.layer_norm_epsilon = layer_norm_epsilon

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
        """The projection of the weighted sums of the heads."""
        return self._output_dense

    @property
    def query_norm(self) -> keras.layers.Layer | None:
        """The normalisation of the heads of the queries, or `None`."""
        return self._query_norm

    @property
    def key_norm(self) -> keras.layers.Layer | None:
        """The normalisation of the heads of the keys, or `None`."""
        return self._key_norm

    def build(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        check_embedded(self, query_shape, value_shape, key_shape)
        check_key_and_value_shapes(value_shape, key_shape)
        width, heads = known_size(query_shape), self.num_heads
        key_value_heads = self.num_key_value_heads
        self._query_dense = self._projection("query", (width,), (heads, self.key_dim))
        self._key_dense = self._projection(
            "key", (known_size(key_shape),), (key_value_heads, self.key_dim)
        )
        if self.use_gate:
            self._gate_dense = self._projection(
                "gate", (width,), (heads, self.value_dim), activation="sigmoid"
            )
        self._value_dense = self._projection(
            "value", (known_size(value_shape),), (key_value_heads, self.value_dim)
        )
        self._output_dense = self._projection(
            "attention_output",
            (heads, self.value_dim),
            self._output_shape or (width,),
        )
        self._dropout_layer = keras.layers.Dropout(
            self.dropout, dtype=self.dtype_policy, seed=self.seed
        )
        self._query_norm = self._normalization("query_norm", heads)
        self._key_norm = self._normalization("key_norm", key_value_heads)
        if self.positions is not None and not self.positions.built:
            self.positions.build((None, heads, None, None))
        freeze_new_sub_layers(self)

    def _projection(
        self,
        name: str,
        input_shape: Sequence[int],
        output_shape: Sequence[int],
        activation: str | None = None,
    ) -> Projection:
        bound, free = "hd"[-len(input_shape) :], "uvwxyz"[: len(output_shape)]
        has_bias = self.use_bias
        if isinstance(has_bias, list):
            has_bias = name.removeprefix("attention_") in has_bias
        layer = Projection(
            f"bt{bound},{bound}{free}->bt{free}",
            output_shape=(None, *output_shape),
            activation=activation,
            bias_axes=free if has_bias else None,
            dtype=self.dtype_policy,
            name=name,
            **clone_weight_options(**self._weight_options),
        )
        layer.supports_masking = True
        layer.build((None, None, *input_shape))
        return layer

    def _normalization(self, name: str, num_heads: int) -> keras.layers.Layer | None:
        kind, epsilon = self.query_key_normalization, self.layer_norm_epsilon
        layer = make_normalization(kind, epsilon, self.dtype_policy, name)
        if layer is not None:
            layer.build((None, None, num_heads, self.key_dim))
        return layer

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Mask | None = None,
        value_mask: Mask | None = None,
        key_mask: Mask | None = None,
        attention_mask: Mask | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        cache: Cache | None = None,
        cache_update_index: Size | None = None,
        query_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
    ) -> Any:
        key = value if key is None else key
        check_embedded(self, query, value, key)
        check_cache(cache, cache_update_index, self.key_dim, self.value_dim)
        options: dict[str, Any] = {
            "return_attention_scores": return_attention_scores,
            "training": training,
            "use_causal_mask": use_causal_mask,
        }
        if len(query.shape) > 3:
            check_three_axes(query.shape, cache, query_positions, key_positions)
            masks = Masks(query_mask, value_mask, key_mask, attention_mask)
            inputs, axes = (query, value, key), self.attention_axes
            return call_over_axes(self.call, inputs, masks, axes, **options)
        if cache_update_index is not None and query_positions is None:
            query_positions = sequence_positions(query, cache_update_index)
        query_heads = self._normalize_and_rotate(
            self._query_dense(query), self._query_norm, query_positions
        )
        if cache is None:
            key_heads, value_heads = self._project(value, key, key_positions)
        else:
            if cache_update_index is not None:
                new = self._project(value, key, query_positions)
                cache = update_cache(cache, *new, cache_update_index)
            key_heads, value_heads = read_cache(cache)
        if cache is None or (cache_update_index is not None and _fills(key, key_heads)):
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
            has_equal_lengths=cache is None and _have_equal_lengths(query, key),
        )
        if query_mask is not None:
            attended, scores = zero_masked_queries(attended, scores, query_mask)
        if self.use_gate:
            attended = attended * self._gate_dense(query)
        results = (self._output_dense(attended), scores, cache)
        outputs = tuple(result for result in results if result is not None)
        return outputs if len(outputs) > 1 else outputs[0]

    def _compute_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Mask | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        use_causal_mask: bool = False,
        query_positions: Tensor | None = None,
        key_positions: Tensor | None = None,
        has_equal_lengths: bool = True,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes attention of the heads; a subclass may override it as in Keras."""
        # Only the pairs inside and near the pattern are computed if that is faster, the
        # positions are 0, 1, 2, …, and scores are not requested. The outputs are equal.
        check_scores_available(return_attention_scores, self._flash_attention)
        dropout = self._drop if training and self.dropout > 0 else None
        flash = self._flash_attention or keras.config.is_flash_attention_enabled()
        if (
            self.pattern is not None
            and has_equal_lengths
            and query_positions is None
            and key_positions is None
            and not return_attention_scores
            and is_blockwise_faster(self.pattern, query.shape[1], attention_mask)
        ):
            output = blockwise_attention(
                query,
                key,
                value,
                attention_mask,
                self.pattern,
                self.positions,
                use_causal_mask,
                dropout,
                flash,
            )
            return output, None
        mask, bias, is_causal = mask_and_bias(
            query,
            key,
            query_positions,
            key_positions,
            attention_mask,
            self.pattern,
            self.positions,
            use_causal_mask,
        )
        result: Any = scaled_dot_product_attention(
            query,
            key,
            value,
            mask,
            return_attention_scores=return_attention_scores,
            dropout=dropout,
            flash_attention=flash,
            bias=bias,
            use_causal_mask=is_causal,
        )
        return result if return_attention_scores else (result, None)

    def _drop(self, scores: Tensor) -> Tensor:
        return self._dropout_layer(scores, training=True)

    def _normalize_and_rotate(
        self,
        heads: Tensor,
        norm: keras.layers.Layer | None,
        positions: Tensor | None,
    ) -> Tensor:
        """Normalises heads, and rotates them by their positions."""
        if norm is not None:
            heads = norm(heads)
        if self.positions is None:
            return heads
        positions = sequence_positions(heads) if positions is None else positions
        return self.positions.rotate(heads, positions)

    def compute_cache(self, value: Tensor) -> Tensor:
        """Projects keys and values once for several calls.

        `value_dim` must be equal to `key_dim`.

        Args:
            value: float tensor `(batch, key_length, value_features)`. Its positions
                are 0, 1, 2, ….

        Returns:
            Cache `(batch, 2, key_length, num_key_value_heads, key_dim)` in the
            compute dtype, for the call argument `cache`.
        """
        return ops.stack(self._project(value, value, None), axis=1)

    def compute_key_values(self, value: Tensor) -> KeyValues:
        """Returns the cache of `compute_cache` in the layout of `KeyValues`.

        Args:
            value: float tensor `(batch, key_length, value_features)`.

        Returns:
            `KeyValues` of `key_length` entries.
        """
        return KeyValues.from_heads(*self._project(value, value, None))

    def empty_key_values(self, batch_size: Size, length: Size) -> KeyValues:
        """Creates a cache of zeros for the call argument `cache`.

        Args:
            batch_size: int or int scalar tensor.
            length: int or int scalar tensor, number of entries.

        Returns:
            `KeyValues` of `length` entries in the compute dtype.
        """
        heads = batch_size, self.num_key_value_heads
        return KeyValues(
            ops.zeros((*heads, self.key_dim, length), self.compute_dtype),
            ops.zeros((*heads, length, self.value_dim), self.compute_dtype),
        )

    def _project(
        self, value: Tensor, key: Tensor, positions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        key_heads = self._normalize_and_rotate(
            self._key_dense(key), self._key_norm, positions
        )
        return key_heads, self._value_dense(value)

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> tuple[int | None, ...]:
        check_key_and_value_shapes(
            value_shape, value_shape if key_shape is None else key_shape
        )
        *leading, width = query_shape
        return (*leading, *(self._output_shape or (width,)))

    # Traces `call`, since the outputs may include scores and caches.
    compute_output_spec = keras.Operation.compute_output_spec

    def get_config(self) -> Config:
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
            "query_key_normalization": self.query_key_normalization,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            **serialize_weight_options(**self._weight_options),
        }

    @classmethod
    def from_config(cls, config: Config) -> "MultiHeadAttention":
        """Creates the layer from its configuration."""
        deserialize = keras.saving.deserialize_keras_object
        config = dict(config)
        for name in ("pattern", "positions"):
            config[name] = deserialize(config.get(name))
        return cls(**config)


def _fills(key: Tensor, key_heads: Tensor) -> bool:
    """Returns whether the keys of a call are all entries of its cache."""
    length, cache_length = key.shape[1], key_heads.shape[1]
    return length is not None and length == cache_length


def _have_equal_lengths(query: Tensor, key: Tensor) -> bool:
    """Returns whether there are as many keys as queries, as far as is known."""
    if None in (query.shape[1], key.shape[1]):
        return query is key
    return query.shape[1] == key.shape[1]
