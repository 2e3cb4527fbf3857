"""Decodes texts with the terms of a dictionary."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from keras_transformer.serving.rest import DEFAULT_SIGNATURE, Columns

if TYPE_CHECKING:  # imports TensorFlow
    from keras_transformer.inference.phrase_dictionary import PhraseDictionary
    from keras_transformer.serving.cluster import Replicas

SIGNATURE = "constrained"

OUTPUTS = ("score", "text", "truncated")

Predict: TypeAlias = Callable[[str, Columns], Awaitable[Columns]]


async def check(replicas: "Replicas", dictionary: "PhraseDictionary") -> None:
    """Checks that a model can be forced to output the phrases of a dictionary."""
    from keras_transformer.inference.phrase_dictionary import check_spelled

    if SIGNATURE not in replicas.signatures:
        raise ValueError(
            f"`dictionary` requires the signature {SIGNATURE!r}. "
            "Export the model with `constraints=True`"
        )
    targets = dictionary.targets
    (found,) = await replicas.predict("check_constraints", [{"constraints": targets}])
    check_spelled(targets, cast(Columns, found)["spelled"])


async def decode(
    predict: Predict, texts: Sequence[str], dictionary: "PhraseDictionary"
) -> Columns:
    """Decodes texts. The outputs have the target phrases of their source phrases."""
    phrases = dictionary.constraints(texts)
    groups = {
        name: [i for i, found in enumerate(phrases) if bool(found) == has_phrases]
        for name, has_phrases in ((DEFAULT_SIGNATURE, False), (SIGNATURE, True))
    }
    inputs = {name: {"text": [texts[i] for i in own]} for name, own in groups.items()}
    inputs[SIGNATURE] |= {
        "prefix": [""] * len(groups[SIGNATURE]),
        "constraints": ["\t".join(found) for found in phrases if found],
    }
    names = [name for name, own in groups.items() if own]
    results = await asyncio.gather(*(predict(name, inputs[name]) for name in names))
    outputs: Columns = {key: [None] * len(texts) for key in OUTPUTS}
    for name, result in zip(names, results, strict=True):
        for key, values in outputs.items():
            for place, value in zip(groups[name], result[key], strict=True):
                # `constrained` returns lists of hypotheses.
                values[place] = value[0] if name == SIGNATURE else value
    return outputs
