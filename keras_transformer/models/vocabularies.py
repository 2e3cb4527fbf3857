"""Which vocabularies a model has, and which of its matrices they share."""

from typing import Any


def find_sizes(
    source_tokenizer: Any,
    target_tokenizer: Any,
    shared: int | None,
    source: int | None,
    target: int | None,
) -> tuple[int | None, int, int]:
    """Finds out how many tokens there are, as given or by the tokenizers.

    Args:
        source_tokenizer: the source tokenizer or `None`.
        target_tokenizer: the target tokenizer or `None`; the same object = a shared
            vocabulary.
        shared: `vocabulary_size`.
        source: `source_vocabulary_size`.
        target: `target_vocabulary_size`.

    Returns:
        The size of the shared vocabulary or `None`, and the sizes of the
        source's and the target's.

    Raises:
        ValueError: if neither one nor two sizes can be told, there is a target
            tokenizer alone, or a tokenizer has more tokens.
    """
    if source_tokenizer is None and target_tokenizer is not None:
        raise ValueError(
            "`source_tokenizer` must be given with `target_tokenizer`; received "
            f"`source_tokenizer=None`, `target_tokenizer={target_tokenizer}`."
        )
    if source_tokenizer is not None and not (shared or source or target):
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
                f"the vocabulary size of the {side} must be at least "
                f"{tokenizer.vocabulary_size}, the number of tokens of "
                f"`{side}_tokenizer`; received {size}. Leave the sizes out to take "
                "them from the tokenizers."
            )
    return None if shared is None else int(shared), int(source), int(target)


def find_special_ids(
    source_tokenizer: Any,
    target_tokenizer: Any,
    given: tuple[int, int, int],
    source_size: int,
    target_size: int,
) -> tuple[int, int, int]:
    """Finds out which tokens pad, start and end, as given or by the tokenizers.

    Args:
        source_tokenizer: the source tokenizer or `None`.
        target_tokenizer: the target tokenizer or `None`.
        given: `(pad_token_id, start_token_id, end_token_id)`, for a model without
            tokenizers.
        source_size: tokens of the source's vocabulary.
        target_size: tokens of the target's.

    Returns:
        `(pad_token_id, start_token_id, end_token_id)`.

    Raises:
        ValueError: if the tokenizers pad or end with different tokens, an id is not
            in its vocabulary, or padding ends an output.
    """
    names = ("pad_token_id", "start_token_id", "end_token_id")
    ids = dict(zip(names, given, strict=True))
    if target_tokenizer is not None:
        _check_agreement(source_tokenizer, target_tokenizer)
        ids = {name: getattr(target_tokenizer, name) for name in names}
    for name, token_id in ids.items():
        padding = name == "pad_token_id"
        size = min(source_size, target_size) if padding else target_size
        if not 0 <= token_id < size:
            raise ValueError(
                f"`{name}` must be from 0 to {size - 1}, in the vocabulary; received "
                f"`{name}={token_id}`."
            )
    if ids["pad_token_id"] == ids["end_token_id"]:
        raise ValueError(
            "`pad_token_id` must not be `end_token_id`, or the end would be masked; "
            f"received `pad_token_id={ids['pad_token_id']}` for both."
        )
    pad, start, end = map(int, ids.values())
    return pad, start, end


def _check_agreement(source: Any, target: Any) -> None:
    for name in ("pad_token_id", "end_token_id"):
        ids = getattr(source, name), getattr(target, name)
        if ids[0] != ids[1]:
            raise ValueError(
                f"`source_tokenizer` must have the `{name}` of `target_tokenizer`; "
                f"received `{name}={ids[0]}` of the source's, `{name}={ids[1]}` of the "
                "target's. Train both with this library, or one for both sides."
            )


def check_tying(tie_embeddings: str | None, shared: int | None) -> str:
    """Finds out which embedding matrices are one and the same.

    Args:
        tie_embeddings: `"all"`, `"target"`, `"none"`, or `None` for as much as
            the vocabularies allow.
        shared: size of the shared vocabulary, or `None`.

    Returns:
        `"all"`, `"target"` or `"none"`.

    Raises:
        ValueError: if it is none of them, or `"all"` with two vocabularies.
    """
    allowed = ("all", "target", "none") if shared else ("target", "none")
    tying = tie_embeddings or allowed[0]
    if tying not in allowed:
        raise ValueError(
            f"`tie_embeddings` must be one of {allowed} with "
            f"{'one shared vocabulary' if shared else 'two vocabularies'}; "
            f"received `tie_embeddings={tie_embeddings!r}`."
        )
    return tying
