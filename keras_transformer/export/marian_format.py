"""The files of a Marian model in the form of Hugging Face: settings and tensors."""

from collections.abc import Iterator
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.layers import DecoderBlock, EncoderBlock, MultiHeadAttention
from keras_transformer.models import Seq2Seq
from keras_transformer.types import Config

WEIGHTS_FILE = "model.safetensors"
# The defaults of transformers' `MarianConfig`.
DEFAULT_SETTINGS: Config = {
    "activation_dropout": 0.0,
    "activation_function": "gelu",
    "add_final_layer_norm": False,
    "attention_dropout": 0.0,
    "d_model": 1024,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
    "decoder_layers": 12,
    "decoder_start_token_id": 58100,
    "decoder_vocab_size": None,
    "dropout": 0.1,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "encoder_layers": 12,
    "eos_token_id": 0,
    "is_encoder_decoder": True,
    "max_position_embeddings": 1024,
    "model_type": None,
    "normalize_before": False,
    "normalize_embedding": False,
    "pad_token_id": 58100,
    "scale_embedding": False,
    "share_encoder_decoder_embeddings": True,
    "tie_word_embeddings": True,
    "vocab_size": 58101,
}
ACTIVATIONS = {
    "gelu": keras.activations.gelu,
    "relu": keras.activations.relu,
    "sigmoid": keras.activations.sigmoid,
    "silu": keras.activations.silu,
    "swish": keras.activations.silu,
    "tanh": keras.activations.tanh,
}
LAYER_NORM_EPSILON = 1e-5

# Names of tensors.
SHARED = "model.shared.weight"
SOURCE = "model.encoder.embed_tokens.weight"
TARGET = "model.decoder.embed_tokens.weight"
OUTPUT = "lm_head.weight"
BIAS = "final_logits_bias"


class MappedWeight(NamedTuple):
    """A weight of a model and its tensor in a Marian checkpoint."""

    names: tuple[str, ...]  # Names that the tensor may have; the first is written.
    variable: keras.Variable
    shape: tuple[int, ...]  # Of the tensor.
    transposed: bool = False  # The tensor is `(outputs, inputs)`, the weight a kernel.

    def assign(self, tensor: np.ndarray) -> None:
        """Sets the weight to the values of the tensor."""
        values = tensor.T if self.transposed else tensor
        self.variable.assign(values.reshape(self.variable.shape))

    def tensor(self) -> np.ndarray:
        """Returns the tensor of the weight, float32 of `shape`."""
        values = np.array(ops.convert_to_numpy(self.variable), "float32")
        if self.transposed:
            values = values.reshape(self.shape[::-1]).T
        return np.ascontiguousarray(values.reshape(self.shape))


def mapped_weights(model: Seq2Seq) -> Iterator[MappedWeight]:
    """Maps the weights of a model to the tensors of a Marian checkpoint."""
    yield from _embeddings(model)
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for number, block in enumerate(stack.blocks):
            yield from _block(f"model.{side}.layers.{number}.", block)
        yield from _norm(f"model.{side}.layer_norm", stack.norm)


def _embeddings(model: Seq2Seq) -> Iterator[MappedWeight]:
    target = model.target_embedding.embeddings
    if model.tie_embeddings == "all":
        names = (SHARED, TARGET, SOURCE, OUTPUT)
        yield MappedWeight(names, target, tuple(target.shape))
    else:
        source = model.source_embedding.embeddings
        yield MappedWeight((SOURCE, SHARED), source, tuple(source.shape))
        other = OUTPUT if model.tie_embeddings == "target" else SHARED
        yield MappedWeight((TARGET, other), target, tuple(target.shape))
    bias = model.tied_output_bias
    if model.output_dense is not None:
        kernel, bias = model.output_dense.kernel, model.output_dense.bias
        shape = tuple(kernel.shape)[::-1]
        yield MappedWeight((OUTPUT,), kernel, shape, transposed=True)
    if bias is not None:
        yield MappedWeight((BIAS,), bias, (1, *bias.shape))


def _block(prefix: str, block: EncoderBlock | DecoderBlock) -> Iterator[MappedWeight]:
    yield from _attention(f"{prefix}self_attn", block.self_attention)
    norm = block.self_attention_residual.norm
    yield from _norm(f"{prefix}self_attn_layer_norm", norm)
    if isinstance(block, DecoderBlock) and block.cross_attention is not None:
        yield from _attention(f"{prefix}encoder_attn", block.cross_attention)
        norm = block.cross_attention_residual.norm
        yield from _norm(f"{prefix}encoder_attn_layer_norm", norm)
    yield from _linear(f"{prefix}fc1", block.feed_forward.intermediate_dense)
    yield from _linear(f"{prefix}fc2", block.feed_forward.output_dense)
    yield from _norm(f"{prefix}final_layer_norm", block.feed_forward_residual.norm)


def _attention(name: str, attention: MultiHeadAttention) -> Iterator[MappedWeight]:
    projections = {
        "q_proj": attention.query_dense,
        "k_proj": attention.key_dense,
        "v_proj": attention.value_dense,
        "out_proj": attention.output_dense,
    }
    for projection, layer in projections.items():
        yield from _linear(f"{name}.{projection}", layer)


def _linear(name: str, layer: keras.layers.Layer) -> Iterator[MappedWeight]:
    outputs = int(np.prod(layer.bias.shape))
    shape = (outputs, int(np.prod(layer.kernel.shape)) // outputs)
    yield MappedWeight((f"{name}.weight",), layer.kernel, shape, transposed=True)
    yield MappedWeight((f"{name}.bias",), layer.bias, (outputs,))


def _norm(name: str, norm: keras.layers.Layer | None) -> Iterator[MappedWeight]:
    if norm is None:
        return
    shape = tuple(norm.gamma.shape)
    yield MappedWeight((f"{name}.weight",), norm.gamma, shape)
    yield MappedWeight((f"{name}.bias",), norm.beta, shape)
