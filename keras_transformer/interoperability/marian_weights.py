"""The tensors of a Marian checkpoint that belong to the weights of a `Seq2Seq`."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.models import Seq2Seq

SHARED = "model.shared.weight"
SOURCE = "model.encoder.embed_tokens.weight"
TARGET = "model.decoder.embed_tokens.weight"
OUTPUT = "lm_head.weight"
BIAS = "final_logits_bias"


class Place(NamedTuple):
    """A weight of ours and its tensor in the checkpoint.

    Attributes:
        names: what the tensor may be called; it is written by the first.
        variable: the Keras variable.
        shape: the tensor's shape.
        transposed: whether the tensor is `(outputs, inputs)`, and the variable a
            kernel.
    """

    names: tuple[str, ...]
    variable: Any
    shape: tuple[int, ...]
    transposed: bool = False

    def assign(self, tensor: np.ndarray) -> None:
        """Gives the variable what the tensor holds."""
        values = tensor.T if self.transposed else tensor
        self.variable.assign(values.reshape(self.variable.shape))

    def tensor(self) -> np.ndarray:
        """The tensor for the checkpoint: float32 of `shape`."""
        values = np.array(ops.convert_to_numpy(self.variable), "float32")
        if self.transposed:
            values = values.reshape(self.shape[::-1]).T
        return np.ascontiguousarray(values.reshape(self.shape))


def places(model: Seq2Seq) -> Iterator[Place]:
    """Lists all weights of a model.

    Args:
        model: a `Seq2Seq` that `check_architecture` accepts.

    Yields:
        A `Place` for each.
    """
    yield from _embeddings(model)
    for side in ("encoder", "decoder"):
        for number, block in enumerate(getattr(model, side).blocks):
            name = f"model.{side}.layers.{number}."
            yield from _attention(name + "self_attn", block, "self_attention")
            if side == "decoder":
                yield from _attention(name + "encoder_attn", block, "cross_attention")
            yield from _linear(name + "fc1", block.feed_forward.intermediate_dense)
            yield from _linear(name + "fc2", block.feed_forward.output_dense)
            yield from _norm(name + "final_layer_norm", block.feed_forward_residual)


def _embeddings(model: Seq2Seq) -> Iterator[Place]:
    target = model.target_embedding.embeddings
    if model.tie_embeddings == "all":
        yield Place((SHARED, TARGET, SOURCE, OUTPUT), target, tuple(target.shape))
    else:
        source = model.source_embedding.embeddings
        yield Place((SOURCE, SHARED), source, tuple(source.shape))
        other = OUTPUT if model.tie_embeddings == "target" else SHARED
        yield Place((TARGET, other), target, tuple(target.shape))
    bias = model.tied_output_bias
    if model.output_dense is not None:
        kernel, bias = model.output_dense.kernel, model.output_dense.bias
        yield Place((OUTPUT,), kernel, tuple(kernel.shape)[::-1], transposed=True)
    if bias is not None:
        yield Place((BIAS,), bias, (1, *bias.shape))


def _attention(name: str, block: Any, kind: str) -> Iterator[Place]:
    attention = getattr(block, kind)
    layers = {"q": "query", "k": "key", "v": "value", "out": "output"}
    for short, long in layers.items():
        yield from _linear(f"{name}.{short}_proj", getattr(attention, f"{long}_dense"))
    yield from _norm(f"{name}_layer_norm", getattr(block, f"{kind}_residual"))


def _linear(name: str, layer: Any) -> Iterator[Place]:
    outputs = int(np.prod(layer.bias.shape))
    shape = (outputs, int(np.prod(layer.kernel.shape)) // outputs)
    yield Place((f"{name}.weight",), layer.kernel, shape, transposed=True)
    yield Place((f"{name}.bias",), layer.bias, (outputs,))


def _norm(name: str, residual: Any) -> Iterator[Place]:
    shape = tuple(residual.norm.gamma.shape)
    yield Place((f"{name}.weight",), residual.norm.gamma, shape)
    yield Place((f"{name}.bias",), residual.norm.beta, shape)
