"""Checks of the arguments of `compile`, which are in a dictionary by their names."""

from collections.abc import Iterable

import keras

from keras_transformer.distribution import check_created_within
from keras_transformer.types import Options


def check_created_here(arguments: Options) -> None:
    """Checks that optimizer and metrics are on the devices of the distribution."""
    variables = {
        name: [
            variable
            for each in keras.tree.flatten(arguments.get(name))
            if isinstance(each, keras.optimizers.Optimizer | keras.Metric)
            for variable in each.variables
        ]
        for name in ("optimizer", "metrics", "weighted_metrics")
    }
    check_created_within(**variables)


def find_padding(pad_token_id: int, vocabulary_size: int, arguments: Options) -> int:
    """Returns the padding of the targets: that of the loss and of all metrics.

    It is that of the model, or no id of the vocabulary, such as -100. The size of the
    vocabulary is 0 if it is unknown.
    """
    found = [
        (f"`{argument}`: {type(each).__name__}", int(each.pad_token_id))
        for argument in ("loss", "metrics", "weighted_metrics")
        for each in keras.tree.flatten(arguments.get(argument))
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


def ignored_targets(pad_token_id: int, loss: object) -> frozenset[int] | None:
    """Returns the targets that a loss ignores; `None` for a loss of another library."""
    ignored = {pad_token_id}
    for each in _losses(loss):
        if hasattr(each, "pad_token_id"):
            ignored.add(int(each.pad_token_id))
        elif isinstance(each, keras.losses.SparseCategoricalCrossentropy):
            ignore_class = each.get_config()["ignore_class"]
            ignored |= set() if ignore_class is None else {int(ignore_class)}
        elif each is not keras.losses.sparse_categorical_crossentropy:
            return None
    return frozenset(ignored)


def ignore_padding(arguments: Options) -> bool:
    """Returns whether the loss and the metrics are known to ignore rows of padding."""
    names = ("loss", "metrics", "weighted_metrics")
    given = keras.tree.flatten([arguments.get(name) for name in names])
    return all(each is None or hasattr(each, "pad_token_id") for each in given)


def check_takes_logits(loss: object) -> None:
    """Checks that the loss is not a cross-entropy of probabilities."""
    for each in _losses(loss):
        options = each.get_config() if isinstance(each, keras.losses.Loss) else {}
        is_function = each in (
            keras.losses.sparse_categorical_crossentropy,
            keras.losses.categorical_crossentropy,
        )
        if is_function or options.get("from_logits") is False:
            raise ValueError(
                f"`loss` must take logits; received `loss={loss!r}`, which takes "
                "probabilities. Use `LabelSmoothedCrossEntropy()`, or a cross-entropy "
                "of Keras with `from_logits=True`."
            )


def _losses(loss: object) -> Iterable[object]:
    """Returns the objects and functions of the argument `loss`, which may be names."""
    for each in keras.tree.flatten(loss):
        yield keras.losses.get(each) if isinstance(each, str) else each


def reduction_of(loss: object) -> str | None:
    """Returns the reduction of a loss; that of Keras for names and functions."""
    first = next(iter(keras.tree.flatten(loss)), None)
    if isinstance(first, keras.losses.Loss):
        return first.reduction
    return "sum_over_batch_size"


def check_is_mean(loss: object, micro_batches: int) -> None:
    """Checks that the loss is a mean over the tokens, as micro-batches require."""
    for each in keras.tree.flatten(loss):
        if getattr(each, "reduction", None) != "mean_with_sample_weight":
            raise ValueError(
                "`loss` must be a mean over the tokens with `micro_batches` above 1; "
                f"received `loss={each!r}`, `micro_batches={micro_batches}`. Use "
                '`LabelSmoothedCrossEntropy`, or `reduction="mean_with_sample_weight"`.'
            )
