"""Training on several replicas: means over all of them, and unsupported strategies.

TensorFlow's `tf.distribute.MirroredStrategy` gives each replica a part of the rows of a
batch. Keras gives every replica the same weight and takes the metrics of each replica
alone. These functions make losses, metrics and updates those of the whole batch.
"""

import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from keras_transformer.backend.processes import count_processes
from keras_transformer.backend.torch_processes import broadcast_variables
from keras_transformer.types import Data, Tensor

# Strategies under which Keras does not train, or does not train synchronously.
_REFUSED = (
    "MultiWorkerMirroredStrategy",
    "CollectiveAllReduceStrategy",  # Its name within TensorFlow.
    "ParameterServerStrategy",
    "CentralStorageStrategy",
)

CLEARED = (
    "`keras.utils.clear_session` must not be called within `distribute`: it clears the "
    "devices, and the model would train on one of them. Call it before the context."
)

_in_scope: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "in_scope", default=False
)
_local = threading.local()  # Each replica of `MirroredStrategy` has its own thread.


def check_distribution(model: keras.Model) -> None:
    """Raises `ValueError` if `fit` would compute something else than on one device."""
    if keras.backend.backend() == "tensorflow":
        check_strategy(model)
        if _replicas_of(model) > 1 and model.compiled:
            _check_clipping(model.optimizer)
    elif keras.backend.backend() == "torch":
        _check_loss(model)


def check_one_process(model: keras.Model) -> None:
    """Raises `ValueError` if several processes of PyTorch would train alone."""
    if keras.backend.backend() == "torch" and count_processes() > 1:
        raise ValueError(
            f"`{type(model).__name__}` trains in one process on PyTorch; received "
            f"`torch.distributed` with {count_processes()} processes, whose weights "
            "would differ after the first update. Train in one process."
        )


def check_strategy(model: keras.Model) -> None:
    """Raises `ValueError` if Keras cannot train the model under its strategy."""
    if keras.backend.backend() != "tensorflow":
        return
    names = [each.__name__ for each in type(model.distribute_strategy).__mro__]
    refused = [name for name in _REFUSED if any(name in each for each in names)]
    if refused:
        name = refused[0].replace("CollectiveAllReduce", "MultiWorkerMirrored")
        raise ValueError(
            "`fit`, `evaluate` and `train_on_batch` support "
            "`tf.distribute.MirroredStrategy`; received a model under "
            f"`tf.distribute.{name}`, with which Keras cannot train the model. Create "
            "the model under `MirroredStrategy`, which uses the devices of one machine."
        )


def _check_clipping(optimizer: Any) -> None:
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    for each in getattr(optimizer, "optimizers", [optimizer]):
        if (steps := getattr(each, "gradient_accumulation_steps", None)) is not None:
            raise ValueError(
                "`gradient_accumulation_steps` must be None under a strategy with "
                "several replicas, as TensorFlow cannot add gradients in a condition; "
                f"received `gradient_accumulation_steps={steps}`. Use `micro_batches` "
                "of `compile`."
            )
        for name in ("clipnorm", "global_clipnorm", "clipvalue"):
            value = getattr(each, name, None)
            if value is not None:
                raise ValueError(
                    f"`{name}` must be None under a strategy with several replicas: "
                    "Keras clips the gradients of each replica before it adds them, "
                    f"and the update differs from that of one device; received an "
                    f"optimizer with `{name}={value}`."
                )


def _check_loss(model: keras.Model) -> None:
    """Raises an error if processes of PyTorch cannot share the rows of a batch."""
    if count_processes() == 1 or not model.compiled:
        return
    for each in keras.tree.flatten(model.loss):
        is_mean = getattr(each, "reduction", None) == "mean_with_sample_weight"
        ignored = getattr(each, "pad_token_id", getattr(each, "ignore_class", None))
        if not is_mean or ignored != model.target_padding:
            raise ValueError(
                "`loss` must be a mean over the tokens without padding in several "
                "processes of PyTorch, which share the rows of a batch; received "
                f"`loss={each!r}` in {count_processes()} processes. Use "
                "`LabelSmoothedCrossEntropy`, or `reduction="
                f'"mean_with_sample_weight"` and `ignore_class={model.target_padding}`.'
            )


def list_replica_devices() -> list[str]:
    """Lists the devices of TensorFlow that can be replicas: GPUs, TPUs or CPUs."""
    import tensorflow as tf

    kinds = (tf.config.list_logical_devices(kind) for kind in ("GPU", "TPU", "CPU"))
    devices = next(found for found in kinds if found)
    return [device.name for device in devices]


@contextlib.contextmanager
def mirrored_scope(names: list[str]) -> Iterator[None]:
    """A context in which variables are mirrored on devices of TensorFlow."""
    token = _in_scope.set(True)
    is_cleared = False
    try:
        with _mirrored_strategy(tuple(names)).scope():
            try:
                yield
            finally:
                is_cleared = is_scope_cleared()
    except IndexError:  # of TensorFlow, at the end of a scope that is not there
        if not is_cleared:
            raise
        raise ValueError(CLEARED) from None
    finally:
        _in_scope.reset(token)


def is_scope_cleared() -> bool:
    """Returns whether the scope of this `mirrored_scope` is no longer in effect."""
    if not _in_scope.get():
        return False
    import tensorflow as tf

    return not tf.distribute.has_strategy()


def are_outside_scope(variables: Iterable[keras.Variable]) -> bool:
    """Returns whether a variable is not mirrored within this `mirrored_scope`."""
    if not _in_scope.get():
        return False
    import tensorflow as tf

    mirrored = tf.distribute.DistributedValues
    return not all(isinstance(each.value, mirrored) for each in variables)


@functools.cache
def _mirrored_strategy(names: tuple[str, ...]) -> Any:
    # The messages of two strategies on the same devices would be confused.
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(names)


def check_rows(model: keras.Model, data: Data, batch_size: int | None) -> None:
    """Raises an error if the replicas of TensorFlow cannot divide batches of arrays."""
    replicas = _replicas_of(model)
    sizes: list[Data] = [getattr(x, "shape", ()) for x in keras.tree.flatten(data)]
    if replicas == 1 or not all(sizes) or hasattr(data, "element_spec"):
        return
    rows = min(batch_size or 32, *(shape[0] for shape in sizes))  # Keras's default
    if rows % replicas:
        raise ValueError(
            "`batch_size` must be a multiple of the number of devices, which is "
            f"{replicas}, on TensorFlow, and there must be so many rows; received "
            f"batches of {rows} rows. Use another `batch_size`, or a `tf.data.Dataset` "
            "of batches, to which rows are added."
        )


def rows_once(model: keras.Model, data: Data, outputs: Data) -> Data:
    """Returns outputs of one batch, of which TensorFlow has a copy for each replica."""
    if _replicas_of(model) == 1:
        return outputs
    rows = len(keras.tree.flatten(data)[0])
    return keras.tree.map_structure(lambda output: output[:rows], outputs)


def with_rows_for_replicas(model: keras.Model, data: Data) -> Data:
    """Adds rows of padding to the batches of a dataset, until the replicas divide them.

    `model` is a `TokenTrainer` whose loss and metrics ignore padding.
    """
    replicas, spec = _replicas_of(model), getattr(data, "element_spec", None)
    if replicas == 1 or spec is None:
        return data
    import tensorflow as tf

    if not all(isinstance(each, tf.TensorSpec) for each in keras.tree.flatten(spec)):
        return data

    def add(filler: float, tensor: Data) -> Data:
        missing = -tf.shape(tensor)[0] % replicas
        shape = tf.concat([[missing], tf.shape(tensor)[1:]], 0)
        rows = tf.fill(shape, tf.cast(filler, tensor.dtype))
        return tf.concat([tensor, rows], 0)

    fillers = model.pad_token_id, model.target_padding, 0.0

    @tf.autograph.experimental.do_not_convert
    def padded(*parts: Data) -> Data:
        found = tuple(
            keras.tree.map_structure(functools.partial(add, filler), part)
            for filler, part in zip(fillers, parts, strict=False)
        )
        return found if isinstance(spec, tuple) else found[0]

    return data.map(padded)


def _replicas_of(model: keras.Model) -> int:
    if keras.backend.backend() != "tensorflow":
        return 1
    return int(model.distribute_strategy.num_replicas_in_sync)


def count_replicas() -> int:
    """Returns how many replicas run the current step together; 1 outside a step."""
    context = _replica_context()
    return 1 if context is None else context.num_replicas_in_sync


def _replica_context() -> Any:
    """Returns TensorFlow's context of a replica, `None` outside of a replica."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    return tf.distribute.get_replica_context()


@contextlib.contextmanager
def each_replica_alone() -> Iterator[None]:
    """Makes losses and metrics those of the rows of one replica.

    TensorFlow cannot communicate between replicas within `tf.while_loop`.
    """
    before = is_alone()
    _local.alone = True
    try:
        yield
    finally:
        _local.alone = before


def is_alone() -> bool:
    """Returns whether `each_replica_alone` is in effect."""
    return getattr(_local, "alone", False)


def sum_over_replicas(values: Any) -> Any:
    """Adds the values of all replicas, a tensor or a list of tensors."""
    if count_replicas() == 1 or not keras.tree.flatten(values):
        return values
    return _replica_context().all_reduce("SUM", values)


def share_of_replica(weight: Tensor) -> Tensor:
    """Divides the weight of a replica by that of all; equal shares if all are 0."""
    import tensorflow as tf

    weight = tf.cast(weight, "float32")
    total = sum_over_replicas(weight)
    equal = 1.0 / count_replicas()
    return tf.where(total > 0, tf.math.divide_no_nan(weight, total), equal)


def mean_loss_for_logs(loss: Tensor) -> Tensor:
    """Replaces the value of a loss by its mean over the replicas, not its gradient.

    The optimizer adds the gradients of the replicas, and Keras multiplies the loss that
    it logs by the number of replicas. The logged loss is then the sum, on each replica.
    """
    import tensorflow as tf

    mean = sum_over_replicas(tf.stop_gradient(loss)) / count_replicas()

    @tf.custom_gradient
    def replace(loss: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return tf.identity(mean), lambda upstream: upstream

    return replace(loss)


def apply_if_finite(
    finite: Tensor,  # bool (), whether those of this replica are
    apply: Callable[..., None],  # the method of an optimizer
    grads: list[Tensor | None],
    trainable_variables: list[keras.Variable] | None,
) -> None:
    """Applies gradients if they are finite on all replicas."""
    import tensorflow as tf

    def apply_together(strategy: Any, finite: Any, grads: Any, variables: Any) -> None:
        each = strategy.experimental_local_results(finite)
        # An update communicates, which TensorFlow does not permit in a branch within a
        # replica.
        keras.ops.cond(
            tf.reduce_all(tf.stack(each)),
            lambda: strategy.extended.call_for_each_replica(
                apply, args=(grads, variables)
            ),
            lambda: None,
        )

    if supports_merge_call():
        _replica_context().merge_call(
            apply_together, args=(finite, grads, trainable_variables)
        )
    else:
        keras.ops.cond(
            all_replicas(finite),
            lambda: apply(grads, trainable_variables),
            lambda: None,
        )


def all_replicas(value: Tensor) -> Tensor:
    """Returns whether a bool scalar tensor is true on all replicas."""
    import tensorflow as tf

    return tf.equal(sum_over_replicas(tf.cast(tf.logical_not(value), "float32")), 0.0)


def supports_merge_call() -> bool:
    """Returns whether updates of this strategy join the replicas by `merge_call`.

    TensorFlow has no public name for it. Without the private name the result is `True`,
    which is right for `MirroredStrategy`, except with collectives.
    """
    import tensorflow as tf

    internal = getattr(tf, "__internal__", None)
    distribute = getattr(internal, "distribute", None)
    without = getattr(distribute, "strategy_supports_no_merge_call", lambda: False)
    return not without()


def share_initial_values(model: keras.Model) -> None:
    """Gives the processes of PyTorch the weights and the optimizer of the first one."""
    if keras.backend.backend() == "torch" and count_processes() > 1:
        others = [*model.metrics_variables, *model.optimizer.variables]
        broadcast_variables([*model.variables, *others])
        model.has_shared_values = True


def build_optimizer(model: keras.Model) -> None:
    """Builds the optimizer of a built model before the first step.

    TensorFlow traces a step again if the first trace creates variables. Under a
    strategy of `tf.distribute`, Keras builds the optimizer itself.
    """
    if not model.built or _has_strategy(model):
        return
    if model.trainable_variables and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _has_strategy(model: keras.Model) -> bool:
    """Returns whether a model belongs to a strategy of `tf.distribute`."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    with model.distribute_strategy.scope():
        return bool(tf.distribute.has_strategy())
