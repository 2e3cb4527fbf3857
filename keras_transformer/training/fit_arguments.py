"""Errors of `fit`, `evaluate` and `predict` that name the right call."""

import contextlib
import reprlib
from collections.abc import Iterator, Mapping, Sequence

import keras

from keras_transformer.backend.keras_internals import (
    inner_optimizers,
    learning_rate_schedule,
)
from keras_transformer.training.token_checks import TokenChecks
from keras_transformer.types import Options

_DATA = (
    "`data.dataset` of `data = parallel_dataset(pairs=zip(sources, targets), "
    "source_tokenizer=model.source_tokenizer, target_tokenizer=model.target_tokenizer)`"
)
# What to do with other data, by method.
_REMEDIES = {
    "fit": f"Pass {_DATA}",
    "evaluate": f"For the perplexity, call `score(sources, targets)`; or pass {_DATA}",
    "predict": "To decode texts or token ids, call `generate(inputs)`",
}

# Parts of the messages of TensorFlow and NumPy, with what a caller should do.
_EXPLANATIONS = {
    "yielded an element of shape": (
        "The batches of a `PyDataset`, generator or `DataLoader` must have the shapes "
        "that Keras expects after the first two batches; received a longer or shorter "
        "batch. TensorFlow needs to know that the lengths differ: pass a "
        "`tf.data.Dataset`, such as that of `parallel_dataset`, or "
        "`tf.data.Dataset.from_generator(…, output_signature=…)` with "
        "`tf.TensorSpec((None, None), tf.int32)` for each tensor, or let the first two "
        "batches have different lengths."
    ),
    "Inputs to operation AddN of type AddN must have the same size": (
        "The first batch must have a number of rows that is a multiple of the number "
        "of devices on TensorFlow; received another number. Use such a batch size; or "
        "a `tf.data.Dataset` with `LabelSmoothedCrossEntropy` and metrics of this "
        "library, to which rows are added."
    ),
    "array dimensions except for the concatenation axis must match": (
        "All batches of `predict` must have the same length on JAX and PyTorch, since "
        "their outputs are concatenated; received batches of different lengths. Call "
        "`predict_on_batch` for each batch: `[model.predict_on_batch(x) for x, _ in "
        "dataset]`."
    ),
}


@contextlib.contextmanager
def explained_errors(checks: TokenChecks) -> Iterator[None]:
    """Explains the errors of Keras about batches; that of `checks` comes first."""
    try:
        yield
    except Exception as error:
        if checks.error is not None:
            raise checks.error from None
        for text, explanation in _EXPLANATIONS.items():
            if text in str(error):
                raise ValueError(explanation) from error
        raise


def check_compiled(method: str, model: keras.Model) -> None:
    """Raises `ValueError` if a model is not compiled; Keras does on two backends."""
    if not model.compiled:
        raise ValueError(
            f"`{method}` requires a compiled model; received one that is not compiled. "
            "Call `compile(optimizer, loss)` first."
        )


def check_data(method: str, arguments: Options, keys: Sequence[str] = ()) -> None:
    """Checks that the data of a method are token ids in the form that a model takes.

    `keys` are those of the dictionary that it takes. The elements of generators and the
    like are not checked.
    """
    for name in ("x", "y", "validation_data"):
        data = arguments.get(name)
        check_no_texts(method, name, data)
        other = _other_form(_inputs(data, name == "validation_data"), keys)
        if name != "y" and keys and other:
            raise ValueError(
                f"`{name}` must be a dictionary of token ids with the keys "
                f"{' and '.join(f'`{key}`' for key in keys)}, or a dataset of such "
                f"dictionaries; received {other}. {_REMEDIES[method]}."
            )


def check_no_texts(method: str, name: str, data: object) -> None:
    """Checks that an argument of a method is not texts."""
    if _has_texts(data):
        raise ValueError(
            f"`{name}` must be token ids; received texts, `{name}="
            f"{reprlib.repr(data)}`. {_REMEDIES[method]}."
        )


def _inputs(data: object, is_batch: bool) -> object:
    """Returns the inputs of the model without the targets."""
    if hasattr(data, "element_spec"):  # a `tf.data.Dataset`
        return _inputs(data.element_spec, True)
    return data[0] if is_batch and data and isinstance(data, tuple) else data


def _other_form(inputs: object, keys: Sequence[str]) -> str:
    """Describes inputs that are not a dictionary with the keys; `""` if they are."""
    if isinstance(inputs, Mapping):
        missing = [f"`{key}`" for key in keys if key not in inputs]
        return f"a dictionary without {' and '.join(missing)}" if missing else ""
    if isinstance(inputs, list | tuple):
        return f"a {type(inputs).__name__}"
    if hasattr(inputs, "shape") and hasattr(inputs, "dtype"):
        return f"an array of shape {inputs.shape}"
    return ""


def _has_texts(data: object) -> bool:
    """Returns whether the first element of nested data is a string."""
    if isinstance(data, Mapping):
        return any(map(_has_texts, data.values()))
    if isinstance(data, tuple):
        return any(map(_has_texts, data))
    if isinstance(data, list):
        return any(map(_has_texts, data[:1]))
    if hasattr(data, "element_spec"):  # a `tf.data.Dataset`
        return _has_texts(data.element_spec)
    dtype = getattr(data, "dtype", None)
    is_array = getattr(dtype, "kind", None) in ("S", "U", "O") or "string" in str(dtype)
    return isinstance(data, str | bytes) or is_array


def check_no_class_weight(class_weight: object) -> None:
    """Raises `ValueError` if `class_weight` is not `None`."""
    if class_weight is not None:
        raise ValueError(
            "`class_weight` must be None, as targets are tokens, not classes; "
            f"received `class_weight={class_weight!r}`. Use `sample_weight` of shape "
            "(batch, target_length) instead."
        )


def learning_rate_schedules(
    optimizer: keras.optimizers.Optimizer,
) -> tuple[keras.optimizers.schedules.LearningRateSchedule, ...]:
    """Returns the schedules of an optimizer, of its parts if it has several."""
    found = map(learning_rate_schedule, inner_optimizers(optimizer))
    return tuple(schedule for schedule in found if schedule is not None)


def check_learning_rate(
    optimizer: keras.optimizers.Optimizer, callbacks: object
) -> None:
    """Checks that a learning rate that is set has an effect."""
    if "lr" in vars(optimizer):
        raise ValueError(
            "`optimizer.lr` must not be set, since Keras 3 ignores it; received "
            f"`optimizer.lr={optimizer.lr!r}`. Set `optimizer.learning_rate`, or pass "
            "an optimizer with another `learning_rate` to `compile`."
        )
    schedules = learning_rate_schedules(optimizer)
    setters = keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler
    for each in keras.tree.flatten(getattr(callbacks, "callbacks", callbacks)):
        name = type(each).__name__
        own = getattr(each, "schedule", None)
        if isinstance(own, keras.optimizers.schedules.LearningRateSchedule):
            raise ValueError(
                f"`{name}` must have a function of the epoch; received the schedule "
                f"`{type(own).__name__}`. Pass the schedule to the optimizer in "
                "`compile`, as in `Adam(learning_rate=schedule)`."
            )
        if isinstance(each, setters) and schedules:
            raise ValueError(
                "`callbacks` must not set the learning rate of an optimizer with a "
                f"schedule; received `{name}`, and the schedule "
                f"`{type(schedules[0]).__name__}`. Remove the callback, or pass an "
                "optimizer with a number to `compile`, as in "
                "`Adam(learning_rate=1e-4)`."
            )
