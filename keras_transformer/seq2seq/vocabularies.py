"""Which vocabularies a model has, and which of its matrices they share."""

from typing import Any


def tokenizer_sizes(source: Any, target: Any) -> tuple[int | None, ...]:
    """Reads the vocabulary sizes off the tokenizers.

    Args:
        source: the source tokenizer.
        target: the target tokenizer; the same object = a shared vocabulary.

    Returns:
        `(shared, source, target)`, of which the first or the other two are
        `None`.
    """
    if source is target:
        return source.vocabulary_size, None, None
    return None, source.vocabulary_size, target.vocabulary_size


def special_tokens(source: Any, target: Any) -> tuple[int, int, int] | None:
    """Reads the ids of the special tokens off the tokenizers.

    Args:
        source: the source tokenizer or `None`.
        target: the target tokenizer or `None`.

    Returns:
        `(pad_token_id, start_token_id, end_token_id)`; `None` without tokenizers.

    Raises:
        ValueError: if there is a target tokenizer alone, or the two pad or end with
            different tokens.
    """
    if target is None:
        return None
    if source is None:
        raise ValueError(
            "`source_tokenizer` must be given with `target_tokenizer`; received "
            f"`source_tokenizer=None`, `target_tokenizer={target}`."
        )
    for name in ("pad_token_id", "end_token_id"):
        ids = getattr(source, name), getattr(target, name)
        if ids[0] != ids[1]:
            raise ValueError(
                f"`source_tokenizer` must have the `{name}` of `target_tokenizer`; "
                f"received `{name}={ids[0]}` of the source's, `{name}={ids[1]}` of the "
                "target's. Train both with this library, or one for both sides."
            )
    return target.pad_token_id, target.start_token_id, target.end_token_id


def check_sizes(
    shared: int | None, source: int | None, target: int | None
) -> tuple[int | None, int, int]:
    """Makes sure that there is either one vocabulary or two.

    Args:
        shared: `vocabulary_size`.
        source: `source_vocabulary_size`.
        target: `target_vocabulary_size`.

    Returns:
        The size of the shared vocabulary or `None`, and the sizes of the
        source's and the target's.

    Raises:
        ValueError: if neither or both are given.
    """
    if shared and source is None and target is None:
        return shared, shared, shared
    if shared is None and source and target:
        return None, source, target
    raise ValueError(
        "`vocabulary_size`, or both `source_vocabulary_size` and "
        "`target_vocabulary_size`, or tokenizers must be given; received "
        f"`vocabulary_size={shared}`, `source_vocabulary_size={source}`, "
        f"`target_vocabulary_size={target}`."
    )


def check_tokenizers(
    source: Any, target: Any, source_size: int, target_size: int
) -> None:
    """Makes sure that the model has a row for every token of its tokenizers.

    Args:
        source: the source tokenizer or `None`.
        target: the target tokenizer or `None`.
        source_size: size of the source's vocabulary in the model.
        target_size: size of the target's.

    Raises:
        ValueError: if a tokenizer has more tokens.
    """
    sides = {"source": (source, source_size), "target": (target, target_size)}
    for side, (tokenizer, size) in sides.items():
        if tokenizer is not None and tokenizer.vocabulary_size > size:
            raise ValueError(
                f"the vocabulary size of the {side} must be at least "
                f"{tokenizer.vocabulary_size}, the number of tokens of "
                f"`{side}_tokenizer`; received {size}. Leave the sizes out to take "
                "them from the tokenizers."
            )


def check_special_ids(model: Any) -> None:
    """Makes sure that the special tokens are in the vocabularies, and padding is apart.

    Args:
        model: a `Seq2Seq` with its ids and sizes.

    Raises:
        ValueError: if an id is not in its vocabulary, or padding ends an output.
    """
    size = model.target_vocabulary_size
    smaller = min(size, model.source_vocabulary_size)
    sizes = {"pad_token_id": smaller, "start_token_id": size, "end_token_id": size}
    for name, size in sizes.items():
        token_id = getattr(model, name)
        if not 0 <= token_id < size:
            raise ValueError(
                f"`{name}` must be from 0 to {size - 1}, in the vocabulary; received "
                f"`{name}={token_id}`."
            )
    if model.pad_token_id == model.end_token_id:
        raise ValueError(
            "`pad_token_id` must not be `end_token_id`, or the end would be masked; "
            f"received `pad_token_id={model.pad_token_id}` for both."
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
