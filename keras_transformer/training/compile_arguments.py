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


def check_padding(pad_token_id: int, compile_arguments: dict[str, Any]) -> None:
    """Checks that loss and metrics have the padding of the model.

    Args:
        pad_token_id: int, that of the model.
        compile_arguments: arguments of `compile` by name.

    Raises:
        ValueError: if one has another `pad_token_id`.
    """
    for argument in ("loss", "metrics", "weighted_metrics"):
        for each in keras.tree.flatten(compile_arguments.get(argument)):
            own = getattr(each, "pad_token_id", pad_token_id)
            if own != pad_token_id:
                raise ValueError(
                    f"`{argument}` must have the `pad_token_id={pad_token_id}` of the "
                    f"model; received {type(each).__name__} with `pad_token_id={own}`."
                )


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
