"""The graphs of a model for ONNX Runtime, as models of Keras."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

import keras
from keras import ops

from keras_transformer.backend.keras_internals import flatten_layers
from keras_transformer.export.model_support import Transformer
from keras_transformer.layers import (
    FeedForward,
    KeyValues,
    MultiHeadAttention,
    padding_mask,
)
from keras_transformer.models import CausalLM, Seq2Seq
from keras_transformer.types import Size, Tensor

# Tensors or their specifications by the names of the inputs and outputs of a graph.
Tensors: TypeAlias = dict[str, Tensor]
Specs: TypeAlias = dict[str, keras.InputSpec]


class Graph(NamedTuple):
    """A model to write, with dictionaries of tensors as inputs and outputs."""

    model: keras.Model
    inputs: Specs


@contextlib.contextmanager
def known_activations(model: keras.Model) -> Iterator[None]:
    """Computes the exact GELU of a model by functions that tf2onnx knows.

    TensorFlow computes it by the complementary error function, which ONNX lacks.
    """
    layers = [
        layer
        for layer in flatten_layers(model)
        if isinstance(layer, FeedForward) and layer.activation is keras.activations.gelu
    ]
    for layer in layers:
        layer.activation = gelu_by_erf
    try:
        yield
    finally:
        for layer in layers:
            layer.activation = keras.activations.gelu


def gelu_by_erf(x: Tensor) -> Tensor:
    """Computes the exact GELU by the error function."""
    return 0.5 * x * (1.0 + ops.erf(x * 0.5**0.5))


def graphs_of(model: Transformer) -> dict[str, Graph]:
    """Returns the graphs of a model by the names of their files."""
    past = _cache_specs(model, "past_")
    if isinstance(model, CausalLM):
        rows = keras.InputSpec("int32", (None, None))
        mask = keras.InputSpec("bool", (None, None))
        inputs = {"token_ids": rows, "attention_mask": mask, **past}
        return {"decoder": Graph(_Decoder(model), inputs)}
    source = {"encoder_token_ids": keras.InputSpec("int32", (None, None))}
    newest = {"token_ids": keras.InputSpec("int32", (None, 1))}
    step = {**newest, **source, **_cache_specs(model, "source_"), **past}
    return {
        "encoder": Graph(_Encoder(model), source),
        "decoder_step": Graph(_DecoderStep(model), step),
    }


@final
class _Encoder(keras.Model):
    """Computes the keys and values of the sources for all blocks of the decoder."""

    def __init__(self, model: Seq2Seq):
        super().__init__(name="encoder")
        self.model = model

    def call(self, inputs: Tensors) -> Tensors:
        encoded = self.model.encode(inputs["encoder_token_ids"], training=False)
        caches = [
            block.cross_attention.compute_key_values(encoded)
            for block in self.model.decoder.blocks
        ]
        return _by_name(caches, "source_")


@final
class _DecoderStep(keras.Model):
    """Computes the logits of the next tokens of one beam."""

    def __init__(self, model: Seq2Seq):
        super().__init__(name="decoder_step")
        self.model = model

    def call(self, inputs: Tensors) -> Tensors:
        model, source = self.model, inputs["encoder_token_ids"]
        caches = [
            (_cache(inputs, "past_", i), _cache(inputs, "source_", i))
            for i in range(model.num_decoder_layers)
        ]
        past = ops.shape(inputs["past_keys_0"])[3]
        position = ops.reshape(past, (1,))
        x, caches = model.decoder.step(
            model.embed_target(inputs["token_ids"], position, training=False),
            caches,
            past,
            attention_mask=ops.ones((ops.shape(source)[0], 1, past + 1), "bool"),
            encoder_padding_mask=padding_mask(source, model.pad_token_id),
            positions=position,
            cache_positions=ops.arange(past + 1, dtype="int32"),
        )
        own = _by_name([cache for cache, _ in caches], "")
        return {"logits": model.compute_logits(x)[:, 0], **own}


@final
class _Decoder(keras.Model):
    """Computes the logits of the next tokens from prompts, or from the newest tokens.

    Prompts are padded at the start, so that the last token of each row is its newest.
    The mask determines the positions.
    """

    def __init__(self, model: CausalLM):
        super().__init__(name="decoder")
        self.model = model

    def call(self, inputs: Tensors) -> Tensors:
        model, token_ids = self.model, inputs["token_ids"]
        real = inputs["attention_mask"]
        caches = [(_cache(inputs, "past_", i),) for i in range(model.num_layers)]
        past = ops.shape(inputs["past_keys_0"])[3]
        entries = ops.arange(past + ops.shape(token_ids)[1], dtype="int32")
        earlier = entries[None, :] <= entries[past:, None]
        counts = ops.cumsum(ops.cast(real, "int32"), axis=1)
        cache_positions = ops.maximum(counts - 1, 0)
        if model.max_target_length is not None:  # of rows that have ended
            limit = model.max_target_length - 1
            cache_positions = ops.minimum(cache_positions, limit)
        positions = cache_positions[:, past:]
        x, caches = model.decoder.step(
            model.embed_target(token_ids, positions, training=False),
            caches,
            past,
            attention_mask=ops.logical_and(real[:, None, :], earlier[None]),
            positions=positions,
            cache_positions=cache_positions,
        )
        own = _by_name([cache for (cache,) in caches], "")
        return {"logits": model.compute_logits(x[:, -1:])[:, 0], **own}


class _GrowingKeyValues(KeyValues):
    """A cache without free entries, whose length grows at each step."""

    def updated(self, keys: Tensor, values: Tensor, index: Size) -> KeyValues:
        new = KeyValues.from_heads(keys, values)
        return _GrowingKeyValues(
            ops.concatenate([self.keys, new.keys], axis=3),
            ops.concatenate([self.values, new.values], axis=2),
        )


def _by_name(caches: Sequence[KeyValues], prefix: str) -> Tensors:
    named = {}
    for number, cache in enumerate(caches):
        named[f"{prefix}keys_{number}"] = cache.keys
        named[f"{prefix}values_{number}"] = cache.values
    return named


def _cache(inputs: Mapping[str, Tensor], prefix: str, number: int) -> KeyValues:
    return _GrowingKeyValues(
        inputs[f"{prefix}keys_{number}"], inputs[f"{prefix}values_{number}"]
    )


def _cache_specs(model: Transformer, prefix: str) -> Specs:
    attention: MultiHeadAttention = model.decoder.blocks[0].self_attention
    heads = attention.num_key_value_heads
    keys = keras.InputSpec("float32", (None, heads, attention.key_dim, None))
    values = keras.InputSpec("float32", (None, heads, None, attention.value_dim))
    return _by_name([KeyValues(keys, values)] * len(model.decoder.blocks), prefix)
