"""Freezes parts of a model while the others are trained."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import keras


def freeze(model: keras.Model, patterns: str | Iterable[str]) -> list[str]:
    """Freezes the weights and layers whose names match.

    A name is the path of a layer or of a single weight, as in `weight.path` for each
    of `model.weights`: `"encoder"`, `"decoder/block_0"`,
    `"encoder/block_0/self_attention/query/kernel"`. A shell pattern stands for many:
    `"*embedding*"`, `"decoder/block_[01]"`, `"*/bias"`; its `*` matches `/` too. Tied
    weights are one weight: with `tie_embeddings="all"`, `"target_embedding"` is both
    embeddings and the output.

    Call `compile` afterwards, so that the optimizer starts afresh with what is left to
    train. `weight.trainable = True` makes a weight trainable again. A `.keras` file
    does not keep what is frozen.

    Args:
        model: a built `keras.Model`.
        patterns: str or list of str, names or shell patterns, each of which matches
            something.

    Returns:
        list of str, the paths of all weights that are frozen now.

    Raises:
        ValueError: if a pattern matches nothing.

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
    """Returns the path without the model's own name, which Keras may put before it."""
    return weight.path.removeprefix(f"{model.name}/")


def _is_named(path: str, pattern: str) -> bool:
    """Tells whether the weight or one of the layers around it matches the name."""
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
