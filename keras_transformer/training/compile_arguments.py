"""Checks of the arguments of `compile`."""

from typing import Any

import keras

from keras_transformer.distribution import check_created_within


def check_created_here(compile_arguments: dict[str, Any]) -> None:
    """Checks that optimizer and metrics are on the devices of the distribution.

    Args:
        compile_arguments: arguments of `compile` by name.

    Raises:
        ValueError: if one is on other devices.
    """
    variables = {
        name: [
            variable
            for each in keras.tree.flatten(compile_arguments.get(name))
            if isinstance(each, keras.optimizers.Optimizer | keras.Metric)
            for variable in each.variables
        ]
        for name in ("optimizer", "metrics", "weighted_metrics")
    }
    check_created_within(**variables)


def find_padding(
    pad_token_id: int, vocabulary_size: int, compile_arguments: dict[str, Any]
) -> int:
    """Returns the padding of the targets: that of the loss and of all metrics.

    It is that of the model, or no id of the vocabulary, such as -100.

    Args:
        pad_token_id: int, that of the model.
        vocabulary_size: int, that of the targets; 0 if it is unknown.
        compile_arguments: arguments of `compile` by name.

    Returns:
        int.

    Raises:
        ValueError: if one has another `pad_token_id`.
    """
    found = [
        (f"`{argument}`: {type(each).__name__}", int(each.pad_token_id))
        for argument in ("loss", "metrics", "weighted_metrics")
        for each in keras.tree.flatten(compile_arguments.get(argument))
        if hasattr(each, "pad_token_id")
    ]
    first = found[0][1] if found else pad_token_id
    is_token = 0 <= first < (vocabulary_size or first + 1)
    is_other_token = is_token and first != pad_token_id
    if is_other_token or any(padding != first for _, padding in found):
        received = ", ".join(f"{name}(pad_token_id={i})" for name, i in found)
        raise ValueError(
            f"The loss and the metrics must have the `pad_token_id={pad_token_id}` of "
            "the model, or all of them the same number that is no token, such as -100; "
            f"received {received}."
        )
    return first


def ignored_targets(pad_token_id: int, loss: Any) -> frozenset[int] | None:
    """Returns the targets that a loss ignores; `None` for a loss of another library.

    Args:
        pad_token_id: int, that of the model.
        loss: argument of `compile`.
    """
    ignored = {pad_token_id}
    for each in keras.tree.flatten(loss):
        found = keras.losses.get(each) if isinstance(each, str) else each
        if hasattr(found, "pad_token_id"):
            ignored.add(int(found.pad_token_id))
        elif isinstance(found, keras.losses.SparseCategoricalCrossentropy):
            ignore_class = found.get_config()["ignore_class"]
            ignored |= set() if ignore_class is None else {int(ignore_class)}
        elif found is not keras.losses.sparse_categorical_crossentropy:
            return None
    return frozenset(ignored)


def ignore_padding(compile_arguments: dict[str, Any]) -> bool:
    """Returns whether the loss and the metrics are known to ignore rows of padding.

    Args:
        compile_arguments: arguments of `compile` by name.
    """
    loss, *metrics = (
        keras.tree.flatten(compile_arguments.get(name))
        for name in ("loss", "metrics", "weighted_metrics")
    )
    given = [each for group in (loss, *metrics) for each in group if each is not None]
    return all(hasattr(each, "pad_token_id") for each in given)


def check_takes_logits(loss: Any) -> None:
    """Checks that the loss takes logits.

    Args:
        loss: argument of `compile`.

    Raises:
        ValueError: if it is a cross-entropy of probabilities.
    """
    for each in keras.tree.flatten(loss):
        found = keras.losses.get(each) if isinstance(each, str) else each
        options = found.get_config() if isinstance(found, keras.losses.Loss) else {}
        is_function = found in (
            keras.losses.sparse_categorical_crossentropy,
            keras.losses.categorical_crossentropy,
        )
        if is_function or options.get("from_logits") is False:
            raise ValueError(
                f"`loss` must take logits; received `loss={each!r}`, which takes "
                "probabilities. Use `LabelSmoothedCrossEntropy()`, or a cross-entropy "
                "of Keras with `from_logits=True`."
            )


def reduction_of(loss: Any) -> str | None:
    """Returns the reduction of a loss; that of Keras for names and functions.

    Args:
        loss: argument of `compile`.
    """
    first = next(iter(keras.tree.flatten(loss)), None)
    if isinstance(first, keras.losses.Loss):
        return first.reduction
    return "sum_over_batch_size"


def check_is_mean(loss: Any, micro_batches: int) -> None:
    """Checks that the loss is a mean over the tokens.

    Args:
        loss: argument of `compile`.
        micro_batches: int, argument of `compile`.

    Raises:
        ValueError: if it is not.
    """
    for each in keras.tree.flatten(loss):
        # Keras's default for names and functions is "sum_over_batch_size".
        if getattr(each, "reduction", None) != "mean_with_sample_weight":
            raise ValueError(
                "`loss` must be a mean over the tokens with `micro_batches` above 1; "
                f"received `loss={each!r}`, `micro_batches={micro_batches}`. Use "
                '`LabelSmoothedCrossEntropy`, or `reduction="mean_with_sample_weight"`.'
            )
