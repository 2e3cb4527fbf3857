"""Which source token each target token comes from, by the cross-attention."""

from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.backend.compiling import compile_function
from keras_transformer.inference.token_pairs import pair_batches, pair_rows
from keras_transformer.layers import padding_mask


class Alignment(NamedTuple):
    """The alignment of one pair.

    Attributes:
        attention: float32 array `(target_length, source_length)`, how much each target
            token attends to each source token when it is predicted, the mean of all
            heads; a row's sum is 1. End tokens are included.
        positions: int32 array `(target_length,)`, for each target token the source
            token with most attention, the end token apart.
    """

    attention: np.ndarray
    positions: np.ndarray


def align(
    model: Any,
    sources: Any,
    targets: Any,
    layer: int | None = None,
    batch_size: int = 64,
) -> list[Alignment]:
    """Aligns each target with its source by the cross-attention of one layer.

    The alignment of one pair does not depend on the others. That of an `Ensemble` is by
    the mean of what its models attend to.

    Args:
        model: the `Seq2Seq` or `Ensemble`.
        sources: a text or a list of texts, if the model has tokenizers; or token
            ids, each with its end token: a list of lists of ints, or an int array
            `(batch, source_length)` with padding.
        targets: as many texts or lists of token ids, likewise; the start token is
            not one of them.
        layer: int, which decoder block's attention, counted as list items are. `None` =
            the last but one (or the only one): of a trained Transformer's it agrees
            best with alignments made by hand (Garg et al., 2019).
        batch_size: int, pairs aligned together.

    Returns:
        A list with one `Alignment` a pair.

    Raises:
        ValueError: if there are more sources or targets, the model cannot take one, a
            source has no token, or there is no such layer.

    Example:

    ```python
    (alignment,) = model.align(["A man sleeps."], ["Ein Mann schläft."])
    target_length, source_length = alignment.attention.shape
    print(len(alignment.positions) == target_length)  # True
    ```

    References:
        - [Garg et al., 2019](https://arxiv.org/abs/1909.02074)
    """
    return model._aligner(sources, targets, layer, batch_size)


class Aligner:
    """Aligns with one model; keeps what it has compiled.

    Args:
        model: a `Seq2Seq` or an `Ensemble`.
    """

    def __init__(self, model: Any):
        self._model = model
        self._compiled: dict[int | None, Any] = {}

    def __call__(
        self, sources: Any, targets: Any, layer: int | None, batch_size: int
    ) -> list[Alignment]:
        """Aligns; see `Seq2Seq.align`."""
        compiled = self._compiled_attention(layer)
        sources, targets = pair_rows(self._model, sources, targets)
        if not all(sources):
            raise ValueError(
                "`sources` must have a token each, the end token at least; received "
                f"none in row {sources.index([])}."
            )
        found = {}
        for chosen, batch in pair_batches(self._model, sources, targets, batch_size):
            both = map(ops.convert_to_numpy, compiled(*batch[:2]))
            for i, attention, positions in zip(chosen, *both, strict=False):
                rows, columns = len(targets[i]), len(sources[i])
                found[i] = Alignment(
                    attention[:rows, :columns].copy(), positions[:rows].copy()
                )
        return [found[i] for i in range(len(sources))]

    def _compiled_attention(self, layer: int | None) -> Any:
        model = self._model
        if layer not in self._compiled:
            self._compiled[layer] = compile_function(
                lambda sources, targets: attend(model, sources, targets, layer), model
            )
        return self._compiled[layer]


def cross_attention(
    model: Any, encoder_token_ids: Any, decoder_token_ids: Any, layer: int | None = None
) -> Any:
    """Says what each target token attends to; can be traced by every backend.

    Args:
        model: the `Seq2Seq`.
        encoder_token_ids: int tensor `(batch, source_length)`, padded.
        decoder_token_ids: int tensor `(batch, target_length)`, the targets behind the
            start token.
        layer: int, which decoder block's attention; see `align`.

    Returns:
        float32 tensor `(batch, target_length, source_length)`, a mean over the heads.

    Raises:
        ValueError: if there is no such layer.
    """
    inputs = {
        "encoder_token_ids": encoder_token_ids,
        "decoder_token_ids": decoder_token_ids,
    }
    chosen = _checked_layer(layer, model.num_decoder_layers)
    _, scores = model(inputs, training=False, return_attention_scores=True)
    return ops.mean(ops.cast(scores["cross"][chosen], "float32"), axis=1)


def attend(
    model: Any, encoder_token_ids: Any, decoder_token_ids: Any, layer: int | None = None
) -> Alignment:
    """Aligns a batch; can be traced by every backend.

    The arguments are those of `cross_attention`.

    Returns:
        An `Alignment` of tensors `(batch, target_length, source_length)` and
        `(batch, target_length)`.
    """
    attention = model.cross_attention(encoder_token_ids, decoder_token_ids, layer)
    is_token = padding_mask(encoder_token_ids, model.pad_token_id)
    places = ops.arange(ops.shape(encoder_token_ids)[1])
    last = ops.sum(ops.cast(is_token, places.dtype), axis=1, keepdims=True) - 1
    ends = ops.logical_and(encoder_token_ids == model.end_token_id, places == last)
    words = ops.logical_or(
        ops.logical_and(is_token, ops.logical_not(ends)), ops.equal(places, 0)
    )
    positions: Any = ops.argmax(ops.where(words[:, None], attention, -1.0), axis=-1)
    positions = ops.cast(positions, "int32")
    return Alignment(attention, positions)


def _checked_layer(layer: int | None, count: int) -> int:
    if layer is None:
        return max(count - 2, 0)
    if not -count <= layer < count:
        raise ValueError(
            f"`layer` must be from {-count} to {count - 1}, as the decoder has "
            f"{count} layers; received `layer={layer}`."
        )
    return layer
