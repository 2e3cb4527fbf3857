"""What a SavedModel takes and returns."""

import os
from typing import Any

import tensorflow as tf
import tensorflow_text  # noqa: F401 (its operations)


def describe_signatures(filepath: str | os.PathLike) -> dict[str, str]:
    """Describes each signature of a SavedModel.

    Args:
        filepath: folder of the SavedModel.

    Returns:
        By the name of a signature, its inputs and outputs with dtypes and shapes; a
        dot stands for any number.

    Raises:
        OSError: if there is no SavedModel.

    Example:

    ```python
    describe_signatures("saved_models/en-de/1")["serving_default"]
    # 'text string(·,) → score float32(·,), text string(·,)'
    ```
    """
    signatures = tf.saved_model.load(os.fspath(filepath)).signatures
    found = {}
    for name, function in sorted(signatures.items()):
        _, inputs = function.structured_input_signature
        outputs = _tensors(function.structured_outputs)
        found[name] = f"{_tensors(inputs)} → {outputs}"
    return found


def _tensors(specs: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {spec.dtype.name}{str(spec.shape).replace('None', '·')}"
        for name, spec in sorted(specs.items())
    )
