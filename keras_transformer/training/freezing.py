"""Keeps parts of a model as they are while the others are trained."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import keras


def freeze(model: keras.Model, patterns: str | Iterable[str]) -> list[str]:
    """Freezes the weights of the layers that have one of the names.

    A name is the path of a layer or of a single weight, as in `weight.path` for each
    of `model.weights`: `"encoder"`, `"decoder/block_0"`,
    `"encoder/block_0/self_attention/query/kernel"`. A shell pattern stands for many:
    `"*embedding*"`, `"decoder/block_[01]"`, `"*/bias"`; its `*` matches `/` too. What
    is tied is one weight: with `tie_embeddings="all"`, `"target_embedding"` is both
    embeddings and the output.

    Call `compile` afterwards, so that the optimizer starts anew with what is left to
    train. `weight.trainable = True` makes a weight trainable again. A `.keras` file
    does not keep what is frozen.

    Args:
        model: A built model.
        patterns: Name or list of names, each of which matches something.

    Returns:
        List of str, the paths of all weights that are frozen now.

    Raises:
        ValueError: If a pattern matches nothing.

    Example:

    >>> model = Seq2Seq.from_preset("transformer_tiny", vocabulary_size=100)
    >>> frozen = freeze(model, ["encoder", "*embedding*"])
    >>> frozen[0], len(frozen) < len(model.weights)
    ('target_embedding/embeddings', True)
    """
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    chosen = []
    for pattern in patterns:
        matched = [w for w in model.weights if _is_named(_path(model, w), pattern)]
        if not matched:
            _raise_unknown(model, pattern)
        chosen += matched
    for weight in chosen:
        weight.trainable = False
    return [_path(model, w) for w in model.weights if not w.trainable]


def _path(model: keras.Model, weight: Any) -> str:
    """The path inside the model, whose own name it has if Keras built the model."""
    return weight.path.removeprefix(f"{model.name}/")


def _is_named(path: str, pattern: str) -> bool:
    """Whether the weight or one of the layers around it has the name."""
    parts = path.split("/")
    around = ("/".join(parts[: i + 1]) for i in range(len(parts)))
    return any(fnmatchcase(name, pattern) for name in around)


def _raise_unknown(model: keras.Model, pattern: str) -> None:
    paths = [_path(model, weight).split("/") for weight in model.weights]
    names = dict.fromkeys(
        "/".join(parts[:depth]) for depth in (1, 2) for parts in paths
    )
    raise ValueError(
        "`patterns` must be names of layers or weights; received "
        f"`{pattern!r}`, which matches none. There are {', '.join(names)} and what "
        "is in them."
    )
