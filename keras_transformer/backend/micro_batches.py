"""Training steps whose gradients are accumulated over parts of a batch."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
from keras import ops, tree
from keras.utils import unpack_x_y_sample_weight

from keras_transformer.backend.distribution import (
    count_replicas,
    each_replica_alone,
    sum_over_replicas,
)
from keras_transformer.backend.processes import count_processes, index_of_process
from keras_transformer.backend.sharding import rows_to_add, share_rows
from keras_transformer.backend.torch_processes import own_masks, sum_of_processes
from keras_transformer.types import Logs, Size, Tensor

# Inputs, targets and sample weights. The first two may be nested tensors.
Batch: TypeAlias = tuple[object, object, Tensor | None]
# The state of a step on JAX: trainable and other variables, optimizer and metrics.
State: TypeAlias = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor]]


def train_in_micro_batches(model: keras.Model, *args: Any) -> Any:
    """Runs `keras.Model.train_step` in `model.micro_batches` parts.

    The update has the gradient of the whole batch: the mean of the gradients of the
    parts, weighted by `model.batch_weight`. `model` is a `TokenTrainer`.
    """
    *state, data = args  # On JAX the state and the data, otherwise the data.
    batch = unpack_x_y_sample_weight(data)
    rows, parts = count_rows(batch, model), split_batch(batch, model)
    return _STEPS[keras.backend.backend()](model, parts, rows, *state)


def count_rows(batch: Batch, model: keras.Model) -> Size:
    """Counts the rows of a batch, without those that were added for replicas.

    `with_rows_for_replicas` adds rows without targets.
    """
    targets = tree.flatten(batch[1])[0]
    if count_replicas() == 1:
        return ops.shape(targets)[0]
    has_targets = ops.any(targets != model.target_padding, axis=1)
    return ops.sum(ops.cast(has_targets, "float32"))


def processes_share_rows() -> bool:
    """Returns whether each process computes its own rows of a batch, as on PyTorch."""
    return keras.backend.backend() == "torch" and count_processes() > 1


def split_batch(batch: Batch, model: keras.Model) -> Batch:
    """Reshapes tensors `(batch, …)` to `(micro_batches, rows, …)`.

    Rows of padding are added if the batch is not divisible, and to the end of each
    micro-batch if the devices cannot divide its rows. A process of PyTorch gets the
    micro-batches of its own rows.
    """
    own = slice(0, model.micro_batches)
    count = model.micro_batches
    if processes_share_rows():
        if count == 1 and not model.ignores_padding:
            return _rows_of_process(batch)
        count *= count_processes()
        first = index_of_process() * model.micro_batches
        own = slice(first, first + model.micro_batches)

    def split(tensor: Tensor, filler: float) -> Tensor:
        batch, *rest = ops.shape(tensor)
        rows = -(-batch // count)
        missing = ops.full((rows * count - batch, *rest), filler, tensor.dtype)
        parts = ops.reshape(ops.concatenate([tensor, missing]), (count, rows, *rest))
        parts = parts[own]
        if not (added := rows_to_add(rows)):
            return parts
        missing = ops.full((model.micro_batches, added, *rest), filler, tensor.dtype)
        return ops.concatenate([parts, missing], axis=1)

    x, y, sample_weight = batch
    x = tree.map_structure(lambda ids: split(ids, model.pad_token_id), x)
    y = tree.map_structure(lambda ids: split(ids, model.target_padding), y)
    return x, y, None if sample_weight is None else split(sample_weight, 0.0)


def _rows_of_process(batch: Batch) -> Batch:
    """Returns the rows of this process, perhaps none, as one micro-batch."""

    def rows(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        size = -(-ops.shape(tensor)[0] // count_processes())
        first = index_of_process() * size
        return tensor[first : first + size][None]

    own: Batch = tree.map_structure(rows, batch)
    return own


def _part(parts: Batch, index: Size) -> Batch:
    x, y, sample_weight = parts
    x, y = tree.map_structure(lambda tensor: tensor[index], (x, y))
    return x, y, None if sample_weight is None else sample_weight[index]


def _mean(
    sums: Sequence[Tensor], weight: Tensor, weights: Sequence[Tensor]
) -> list[Tensor]:
    """Divides float32 sums of gradients and casts them to the dtypes of the weights."""
    return [
        ops.cast(ops.divide_no_nan(each, weight), variable.dtype)
        for each, variable in zip(sums, weights, strict=True)
    ]


def _log(model: keras.Model, loss: Tensor, weight: Tensor, rows: Size) -> Logs:
    """Updates the mean loss as Keras does, and returns the logs."""
    tracker = model.metrics[0]  # The mean of the loss; `fit` shows it as "loss".
    tracker.update_state(ops.divide_no_nan(loss, weight), sample_weight=rows)
    logs: Logs = model.get_metrics_result()
    return logs


def _jax(
    model: keras.Model, parts: Batch, rows: Size, state: State
) -> tuple[Logs, State]:
    import jax

    trainable, non_trainable, optimizer_variables, metrics = state
    gradients_of = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)

    def update(
        metrics: list[Tensor], function: Callable[..., Any], *args: object
    ) -> tuple[Any, list[Tensor]]:
        mapping = list(zip(model.metrics_variables, metrics, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            logs = function(*args)
        return logs, [scope.get_current_value(v) for v in model.metrics_variables]

    def step(carry: Any, part: Batch) -> tuple[Any, None]:
        gradients, total, total_loss, non_trainable, metrics = carry
        x, y, sample_weight = part = share_rows(part)
        (_, aux), new = gradients_of(
            trainable,
            non_trainable,
            metrics,
            *part,
            training=True,
            optimizer_variables=optimizer_variables,
        )
        loss, y_pred, non_trainable, metrics = aux
        weight = model.batch_weight(y, sample_weight)
        new = [ops.cast(each, "float32") for each in new]
        gradients = [a + weight * b for a, b in zip(gradients, new, strict=True)]
        _, metrics = update(metrics, model.compute_metrics, x, y, y_pred, sample_weight)
        # Keras returns the loss in `keras.config.floatx()`.
        total_loss = total_loss + weight * ops.cast(loss, "float32")
        return (gradients, total + weight, total_loss, non_trainable, metrics), None

    nothing = [ops.zeros(value.shape, "float32") for value in trainable]
    zero = ops.zeros((), "float32")
    carry, _ = jax.lax.scan(step, (nothing, zero, zero, non_trainable, metrics), parts)
    gradients, total, total_loss, non_trainable, metrics = carry
    trainable, optimizer_variables = model.optimizer.stateless_apply(
        optimizer_variables, _mean(gradients, total, trainable), trainable
    )
    logs, metrics = update(metrics, _log, model, total_loss, total, rows)
    return logs, (trainable, non_trainable, optimizer_variables, metrics)


def _tensorflow(model: keras.Model, parts: Batch, rows: Size) -> Logs:
    import tensorflow as tf

    weights = model.trainable_weights

    def step(index: Tensor, *sums: Tensor) -> tuple[Tensor, ...]:
        with each_replica_alone():
            return accumulate(index, *sums)

    def accumulate(
        index: Tensor, total: Tensor, total_loss: Tensor, *gradients: Tensor
    ) -> tuple[Tensor, ...]:
        x, y, sample_weight = _part(parts, index)
        with tf.GradientTape() as tape:
            y_pred = model(x, training=True)
            loss = model.compute_loss(x, y, y_pred, sample_weight, training=True)
            scaled = model.optimizer.scale_loss(loss)
        new = tape.gradient(scaled, weights, unconnected_gradients="zero")
        weight = model.batch_weight(y, sample_weight)
        sums = [
            a + weight * tf.cast(tf.convert_to_tensor(b), "float32")
            for a, b in zip(gradients, new, strict=True)
        ]
        model.compute_metrics(x, y, y_pred, sample_weight)
        total_loss += weight * ops.cast(loss, "float32")
        return index + 1, total + weight, total_loss, *sums

    nothing = [tf.zeros(weight.shape, "float32") for weight in weights]
    sums: tuple[Any, ...] = (0, 0.0, 0.0, *nothing)
    if model.micro_batches == 1:
        sums = step(*sums)
    else:
        sums = tf.while_loop(
            lambda index, *_: index < model.micro_batches,
            step,
            sums,
            parallel_iterations=1,
        )
    _, total, total_loss, *gradients = sums
    # The optimizer adds the gradients of the replicas.
    total, total_loss = sum_over_replicas([total, total_loss])
    model.optimizer.apply(_mean(gradients, total, weights), weights)
    return _log(model, total_loss, total, rows)


# Sums of PyTorch over micro-batches: of the weights, the losses and the gradients.
Sums: TypeAlias = tuple[Tensor, Tensor, list[Tensor]]


def add_part(model: keras.Model, sums: Sums, part: Batch) -> Sums:
    """Adds loss and gradients of a micro-batch on PyTorch, and updates the metrics."""
    import torch

    total, total_loss, gradients = sums
    x, y, sample_weight = part
    y_pred = model(x, training=True)
    loss = model.compute_loss(x, y, y_pred, sample_weight, training=True)
    values: list[Any] = [variable.value for variable in model.trainable_weights]
    scaled = model.optimizer.scale_loss(loss)
    new = torch.autograd.grad(scaled, values, materialize_grads=True)
    weight = model.batch_weight(y, sample_weight)
    gradients = [a + weight * b for a, b in zip(gradients, new, strict=True)]
    model.compute_metrics(x, y, y_pred, sample_weight)
    return total + weight, total_loss + weight * loss.detach(), gradients


def add_parts(
    model: keras.Model,
    parts: Batch,
    rows: Size,
    add: Callable[[Sums, Batch], Sums],
    apply: Callable[[list[Tensor]], object],
) -> Logs:
    """Trains on PyTorch with a function that adds a part and one that updates.

    Each process has its own parts; weights and metrics of all processes stay equal.
    """
    weights = model.trainable_weights
    # Each sum is a tensor of its own, since a graph keeps its inputs apart.
    shapes = [(), (), *(weight.shape for weight in weights)]
    zeros = [ops.zeros(shape, "float32") for shape in shapes]
    sums: Sums = zeros[0], zeros[1], zeros[2:]
    add_all = _in_processes if processes_share_rows() else _in_this_process
    total, total_loss, gradients = add_all(model, parts, sums, add)
    apply(_mean(gradients, total, weights))
    return _log(model, total_loss, total, rows)


def _in_this_process(
    model: keras.Model, parts: Batch, sums: Sums, add: Callable[[Sums, Batch], Sums]
) -> Sums:
    for index in range(model.micro_batches):
        part = _part(parts, index)
        if ops.shape(tree.flatten(part[1])[0])[0]:
            sums = add(sums, part)
    return sums


def _in_processes(
    model: keras.Model, parts: Batch, sums: Sums, add: Callable[[Sums, Batch], Sums]
) -> Sums:
    """Adds what each process computes: the sums, and the changes of the metrics."""
    metrics = model.metrics_variables
    before = [ops.copy(variable) for variable in metrics]
    with own_masks(model, index_of_process()):
        total, loss, gradients = _in_this_process(model, parts, sums, add)
    changes = [
        ops.where(ops.isfinite(old), new - old, ops.zeros_like(old))
        for new, old in zip(metrics, before, strict=True)
    ]
    added = sum_of_processes([total, loss, *changes, *gradients])
    total, loss, *added = added
    changes, gradients = added[: len(metrics)], added[len(metrics) :]
    for variable, old, change in zip(metrics, before, changes, strict=True):
        variable.assign(old + change)
    return total, loss, gradients


def _torch(model: keras.Model, parts: Batch, rows: Size) -> Logs:
    import torch

    def apply(gradients: list[Tensor]) -> None:
        with torch.no_grad():
            model.optimizer.apply(gradients, model.trainable_weights)

    return add_parts(model, parts, rows, functools.partial(add_part, model), apply)


_STEPS: dict[str, Callable[..., Any]] = {
    "jax": _jax,
    "tensorflow": _tensorflow,
    "torch": _torch,
}
