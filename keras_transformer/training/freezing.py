"""Freezing of weights and layers."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NoReturn

import keras


def freeze(model: keras.Model, patterns: str | Iterable[str]) -> list[str]:
    """Freezes the weights and layers whose names match a pattern.

    A name is the path of a layer or of a weight, as in `weight.path` for each of
    `model.weights`: `"encoder"`, `"decoder/block_0"`,
    `"encoder/block_0/self_attention/query/kernel"`. A shell pattern matches several
    names: `"*embedding*"`, `"decoder/block_[01]"`, `"*/bias"`. `*` also matches `/`.
    Tied weights are one weight: with `tie_embeddings="all"`, `"target_embedding"` is
    both embeddings and the output.

    Call `compile` afterwards, so that the optimizer has a new state for the trainable
    weights. `weight.trainable = True` unfreezes a weight. A `.keras` file does not
    store which weights are frozen.

    Args:
        model: a built `keras.Model`.
        patterns: str or list of str, names or shell patterns. Each must match at least
            one layer or weight.

    Returns:
        List of str, the paths of all weights of the model that are frozen.

    Raises:
        ValueError: if a pattern matches nothing.

    Example:

    >>> model = Seq2Seq.from_preset("transformer_tiny", vocabulary_size=100)
    >>> frozen = freeze(model, ["encoder", "*embedding*"])
    >>> frozen[0], len(frozen) < len(model.weights)
    ('target_embedding/embeddings', True)
    """
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    frozen = []
    for pattern in patterns:
        matched = [w for w in model.weights if _matches(_path(model, w), pattern)]
        if not matched:
            _raise_unknown(model, pattern)
        frozen += matched
    for weight in frozen:
        weight.trainable = False
    return [_path(model, w) for w in model.weights if not w.trainable]


def _path(model: keras.Model, weight: keras.Variable) -> str:
    """Returns the path without the name of the model, which Keras may prepend."""
    return weight.path.removeprefix(f"{model.name}/")


def _matches(path: str, pattern: str) -> bool:
    """Returns whether a weight, or a layer that contains it, matches a pattern."""
    parts = path.split("/")
    paths = ("/".join(parts[: i + 1]) for i in range(len(parts)))
    return any(fnmatchcase(name, pattern) for name in paths)


def _raise_unknown(model: keras.Model, pattern: str) -> NoReturn:
    paths = [_path(model, weight).split("/") for weight in model.weights]
    names = dict.fromkeys(
        "/".join(parts[:depth]) for depth in (1, 2) for parts in paths
    )
    raise ValueError(
        "`patterns` must be names of layers or weights; received "
        f"`{pattern!r}`, which matches none. The first names are {', '.join(names)}; "
        "`weight.path` has the others."
    )
