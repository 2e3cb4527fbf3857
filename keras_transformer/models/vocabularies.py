"""Vocabularies and lengths of a model: sizes, special ids, tied embeddings, limits."""

from typing import TYPE_CHECKING, Any, NamedTuple

import keras

from keras_transformer.inference.source_arrays import spec_of_layer
from keras_transformer.layers import PositionScheme
from keras_transformer_runtime.arguments import check_ints, check_numbers

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


# Attributes of models. Keras tracks layers as parts of a model; these are none.
TOKENIZERS = ("tokenizer", "source_tokenizer", "target_tokenizer")


class VocabularySizes(NamedTuple):
    """Numbers of tokens."""

    shared: int | None  # None = no shared vocabulary
    source: int  # 0 = sources that are arrays
    target: int


class SpecialIds(NamedTuple):
    """The ids of special tokens."""

    pad_token_id: int
    start_token_id: int
    end_token_id: int


def find_sizes(
    source_tokenizer: "Tokenizer | None",
    target_tokenizer: "Tokenizer | None",
    shared: int | None,
    source: int | None = None,
    target: int | None = None,
) -> VocabularySizes:
    """Returns the sizes of the vocabularies, as given or those of the tokenizers.

    If both sides have the same tokenizer, they share its vocabulary.
    """
    check_ints(
        1,
        optional=True,
        vocabulary_size=shared,
        source_vocabulary_size=source,
        target_vocabulary_size=target,
    )
    if source_tokenizer is None and target_tokenizer is not None:
        raise ValueError(
            "`source_tokenizer` must be given with `target_tokenizer`; received "
            f"`source_tokenizer=None`, `target_tokenizer={target_tokenizer}`."
        )
    for name, tokenizer in (
        ("source_tokenizer", source_tokenizer),
        ("target_tokenizer", target_tokenizer),
    ):
        if tokenizer is not None:
            from keras_transformer.text.tokenizer import check_tokenizer

            check_tokenizer(name, tokenizer)
    no_size = not (shared or source or target)
    if source_tokenizer is not None and target_tokenizer is not None and no_size:
        if source_tokenizer is target_tokenizer:
            shared = source_tokenizer.vocabulary_size
        else:
            source = source_tokenizer.vocabulary_size
            target = target_tokenizer.vocabulary_size
    if shared and source is None and target is None:
        source = target = shared
    elif not (shared is None and source and target):
        raise ValueError(
            "`vocabulary_size`, or both `source_vocabulary_size` and "
            "`target_vocabulary_size`, or tokenizers must be given; received "
            f"`vocabulary_size={shared}`, `source_vocabulary_size={source}`, "
            f"`target_vocabulary_size={target}`."
        )
    sides = {"source": (source_tokenizer, source), "target": (target_tokenizer, target)}
    for side, (tokenizer, size) in sides.items():
        if tokenizer is not None and tokenizer.vocabulary_size > size:
            raise ValueError(
                f"The vocabulary size of the {side} must be at least "
                f"{tokenizer.vocabulary_size}, the number of tokens of "
                f"`{side}_tokenizer`; received {size}. Omit the sizes to use those of "
                "the tokenizers."
            )
    shared = None if shared is None else int(shared)
    return VocabularySizes(shared, int(source), int(target))


def find_special_ids(
    source_tokenizer: "Tokenizer | None",
    target_tokenizer: "Tokenizer | None",
    given: tuple[int, int, int],  # the arguments of a model without tokenizers
    source_size: int,  # 0 = no source vocabulary
    target_size: int,
) -> SpecialIds:
    """Returns the ids of special tokens, as given or those of the tokenizers."""
    ids = SpecialIds(*given)
    if target_tokenizer is not None:
        if source_tokenizer is not None:
            _check_agreement(source_tokenizer, target_tokenizer)
        names = SpecialIds._fields
        ids = SpecialIds(*(getattr(target_tokenizer, name) for name in names))
    for name, token_id in ids._asdict().items():
        padding = name == "pad_token_id"
        size = min(source_size or target_size, target_size) if padding else target_size
        if not 0 <= token_id < size:
            raise ValueError(
                f"`{name}` must be from 0 to {size - 1}, in the vocabulary; received "
                f"`{name}={token_id}`."
            )
    if ids.pad_token_id == ids.end_token_id:
        raise ValueError(
            "`pad_token_id` must not be `end_token_id`, since padding is masked; "
            f"received `pad_token_id={ids.pad_token_id}` for both."
        )
    return SpecialIds(*map(int, ids))


def _check_agreement(source: "Tokenizer", target: "Tokenizer") -> None:
    for name in ("pad_token_id", "end_token_id"):
        ids = getattr(source, name), getattr(target, name)
        if ids[0] != ids[1]:
            raise ValueError(
                f"`source_tokenizer` must have the `{name}` of `target_tokenizer`; "
                f"received `{name}={ids[0]}` of the source, `{name}={ids[1]}` of the "
                "target. Train both with this library, or one for both sides."
            )


def check_tying(tie_embeddings: str | None, shared: int | None) -> str:
    """Returns which embedding matrices share weights: `"all"`, `"target"` or `"none"`.

    `None` means as many as the vocabularies allow.
    """
    allowed: tuple[str, ...] = ("target", "none")
    if shared:
        allowed = ("all", "inputs", *allowed)
    tying = tie_embeddings or allowed[0]
    if tying not in allowed:
        raise ValueError(
            f"`tie_embeddings` must be one of {allowed} with "
            f"{'one shared vocabulary' if shared else 'two vocabularies'}; "
            f"received `tie_embeddings={tie_embeddings!r}`."
        )
    return tying


def check_array_sources(
    source_embedding: Any,
    source_tokenizer: Any,
    source_vocabulary_size: int | None,
    max_source_length: int | None,
    tie_embeddings: str | None,
) -> None:
    """Checks the arguments of a model whose sources are arrays, not token ids."""
    if not isinstance(source_embedding, keras.layers.Layer):
        raise TypeError(
            "`source_embedding` must be a Keras layer; received "
            f"`source_embedding={source_embedding!r}`."
        )
    spec_of_layer(source_embedding)
    given = {
        "source_tokenizer": source_tokenizer,
        "source_vocabulary_size": source_vocabulary_size,
        "max_source_length": max_source_length,
    }
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"`{name}` must be `None` with `source_embedding`, since the sources "
                f"are the arrays that the layer takes; received `{name}={value}`. To "
                "embed token ids, pass them as an array."
            )
    if tie_embeddings in ("all", "inputs"):
        raise ValueError(
            "`tie_embeddings` must be 'target' or 'none' with `source_embedding`, "
            "which has no matrix to share; received "
            f"`tie_embeddings={tie_embeddings!r}`."
        )


def find_target_size(
    target_tokenizer: "Tokenizer | None", size: int | None, target: int | None
) -> VocabularySizes:
    """Returns the size of the only vocabulary of a model whose sources are arrays."""
    check_ints(1, True, vocabulary_size=size, target_vocabulary_size=target)
    given = {each for each in (size, target) if each is not None}
    if len(given) > 1 or not (given or target_tokenizer):
        raise ValueError(
            "`vocabulary_size`, `target_vocabulary_size` or `target_tokenizer` must be "
            "given with `source_embedding`, and only one size; received "
            f"`vocabulary_size={size}`, `target_vocabulary_size={target}`."
        )
    both = target_tokenizer, target_tokenizer
    sizes = find_sizes(*both, max(given, default=None))
    return VocabularySizes(None, 0, sizes.target)


def check_length_ratio(ratio: float) -> float:
    """Checks the argument `output_length_ratio`, and returns it as a float."""
    check_numbers(1, output_length_ratio=ratio)
    return float(ratio)


def check_limit(
    limit: int | None, positions: PositionScheme | None, name: str
) -> int | None:
    """Returns the limit of an argument, or that of the positions if it is `None`.

    The argument must not exceed the limit of the positions.
    """
    check_ints(1, True, "", **{name: limit})
    longest_position = None if positions is None else positions.max_length
    if longest_position is not None and (limit or 0) > longest_position:
        raise ValueError(
            f"`{name}` must not be greater than `max_length` of `positions`; received "
            f"`{name}={limit}`, `max_length={longest_position}`. Pass positions with a "
            "greater `max_length`."
        )
    limit = limit or longest_position
    return None if limit is None else int(limit)
