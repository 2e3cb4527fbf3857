"""Keras model that trains in micro-batches and with R-Drop."""

import functools
import inspect
from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.backend.compiled_steps import (
    compiled_function,
)
from keras_transformer.backend.distribution import (
    build_optimizer,
    check_distribution,
    check_rows,
    check_strategy,
    count_replicas,
    is_alone,
    mean_loss_for_logs,
    rows_once,
    share_initial_values,
    share_of_replica,
    sum_over_replicas,
    with_rows_for_replicas,
)
from keras_transformer.backend.jax_state import kept_variables, with_callbacks
from keras_transformer.backend.keras_internals import build_from_dataset
from keras_transformer.backend.micro_batches import (
    count_rows,
    processes_share_rows,
    train_in_micro_batches,
)
from keras_transformer.backend.processes import (
    is_first_process,
    of_first_process,
    with_equal_batches,
)
from keras_transformer.backend.sharding import rows_to_add, share_rows
from keras_transformer.distribution import check_created_within
from keras_transformer.training.checkpoints.checkpoints import within_fit
from keras_transformer.training.compile_arguments import (
    check_created_here,
    check_is_mean,
    check_takes_logits,
    find_padding,
    ignore_padding,
    ignored_targets,
    reduction_of,
)
from keras_transformer.training.fit_arguments import (
    check_compiled,
    check_data,
    check_learning_rate,
    check_no_class_weight,
    check_no_texts,
    explained_errors,
    learning_rate_schedules,
)
from keras_transformer.training.losses import token_weights
from keras_transformer.training.non_finite_loss import NonFiniteWarning
from keras_transformer.training.r_drop import r_drop_loss
from keras_transformer.training.skip_non_finite import SkipNonFinite
from keras_transformer.training.token_checks import TokenChecks, Vocabularies
from keras_transformer.training.training_progress import shown_progress
from keras_transformer.types import Config, Logs, Tensor, TokenIds
from keras_transformer_runtime.arguments import check_ints, check_numbers

_SIGNATURES = {
    name: inspect.signature(getattr(keras.Model, name))
    for name in ("compile", "fit", "evaluate", "predict")
}


class TokenTrainer(keras.Model):
    """Keras model of token sequences with further options for training.

    `compile` takes two more arguments than `keras.Model.compile`. The model must have
    a `pad_token_id` and take integer tensors.

    Under `tf.distribute.MirroredStrategy`, losses, metrics and updates are those of one
    device for the whole batch: a mean over the tokens counts each token once, for any
    division among the replicas.

    Attributes:
        input_keys: tuple of str, the keys of the dictionary of tensors that the model
            takes; empty for a model with other inputs.
        source_vocabulary_size: int, number of ids of `"encoder_token_ids"`; 0 if they
            are not ids.
        target_vocabulary_size: int, number of ids of the targets and of the other
            inputs; 0 if they are unknown, so that they are not checked.
    """

    input_keys: ClassVar[tuple[str, ...]] = ()
    ignores_padding = False  # whether the compiled loss and all metrics do
    has_shared_values = False  # whether processes of PyTorch have begun with equal ones
    source_vocabulary_size: int = 0
    target_vocabulary_size: int = 0
    train_function: Any
    test_function: Any
    predict_function: Any

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        *args: Any,
        micro_batches: int = 1,
        r_drop: float = 0.0,
        **kwargs: Any,
    ) -> None:
        """Configures the model for training, as `keras.Model.compile` does.

        Args:
            optimizer: argument of `keras.Model.compile`.
            loss: argument of `keras.Model.compile`.
            *args: further arguments of `keras.Model.compile`.
            micro_batches: int >= 1, number of parts into which the rows of a batch are
                split in each step. The parts are processed one after the other, so
                that a batch requires the memory of one part. There is one update, with
                the gradient of the whole batch; each part is weighted by its number of
                tokens. The loss must be a mean over the tokens:
                `LabelSmoothedCrossEntropy`, or a loss with
                `reduction="mean_with_sample_weight"` and sample weights that are 0 on
                padding. Optimizer, schedule and callbacks see whole batches.
            r_drop: float >= 0, weight α of R-Drop. If it is not 0, every batch is
                processed twice, with different dropout, and the loss is the mean of
                both losses plus α / 2 times the divergence of the two predictions
                (`r_drop_loss`). This is half of equation 4 of the paper. A step takes
                twice as long.
            **kwargs: further arguments of `keras.Model.compile`. On PyTorch, a step is
                compiled with `jit_compile=True` alone: once for each shape of batch,
                with the same masks of dropout as without. A warning says why a step
                cannot be compiled and runs eagerly.

        Raises:
            ValueError: if an argument is out of its range, if the loss is not a mean
                over the tokens with `micro_batches` above 1, if the loss takes
                probabilities instead of logits, or if the `pad_token_id` of the loss or
                of a metric is another id of the vocabulary than that of the model.

        Example:

        ```python
        model.compile(
            optimizer=keras.optimizers.Adam(1e-3, beta_2=0.98),
            loss=LabelSmoothedCrossEntropy(0.1),
            micro_batches=4,
            r_drop=5.0,
        )
        ```

        References:
            - [Liang et al., 2021](https://arxiv.org/abs/2106.14448) (R-Drop)
            - [Ott et al., 2018](https://arxiv.org/abs/1806.00187), section 3.3
              (large batches in parts)
        """
        check_ints(1, micro_batches=micro_batches)
        if micro_batches > 1 and loss is not None:
            check_is_mean(loss, micro_batches)
        remedy = "The paper uses 5; 0 disables R-Drop."
        check_numbers(0, remedy=remedy, r_drop=r_drop)
        signature = _SIGNATURES["compile"]
        bound = signature.bind(self, optimizer, loss, *args, **kwargs).arguments
        self.target_padding = find_padding(
            self.pad_token_id, self.target_vocabulary_size, bound
        )
        check_created_here(bound)
        check_takes_logits(loss)
        self.micro_batches = micro_batches
        self.r_drop = float(r_drop)
        self._reduction = reduction_of(loss)
        is_mean = self._reduction == "mean_with_sample_weight"
        self.ignores_padding = is_mean and ignore_padding(bound)
        scales_loss = self.dtype_policy.name == "mixed_float16" and kwargs.get(
            "auto_scale_loss", True
        )
        if scales_loss and isinstance(optimizer, SkipNonFinite):
            optimizer = optimizer.with_loss_scaling()
            kwargs["auto_scale_loss"] = False
        super().compile(optimizer, loss, *args, **kwargs)
        self._schedules = learning_rate_schedules(self.optimizer)

    @functools.wraps(keras.Model.fit, assigned=())
    def fit(
        self, *args: Any, class_weight: object = None, **kwargs: Any
    ) -> keras.callbacks.History:
        """Trains the model, as `keras.Model.fit` does, without `class_weight`.

        A warning says if the loss of an epoch is NaN or infinite. With a
        `TrainingProgress` among the callbacks, it is shown in place of the progress bar
        of Keras.

        Args:
            *args: arguments of `keras.Model.fit`.
            class_weight: must be `None`: Keras would weight whole rows by the position
                of their largest id.
            **kwargs: further arguments of `keras.Model.fit`.

        Returns:
            The `keras.callbacks.History` of the training.

        Raises:
            ValueError: if the data are texts, if a token id is not in the vocabulary or
                no integer, if padding is within a row, if `class_weight` is not `None`,
                if a callback sets the learning rate of an optimizer with a schedule, if
                the model belongs to a strategy of `tf.distribute` other than
                `MirroredStrategy`, if the loss is no mean over the tokens in several
                processes of PyTorch, or from `keras.Model.fit`.
        """
        check_no_class_weight(class_weight)
        arguments = _bound("fit", self, *args, **kwargs)
        check_compiled("fit", self)
        check_data("fit", arguments, self.input_keys)
        check_learning_rate(self.optimizer, arguments.get("callbacks"))
        check_distribution(self)
        self._check_devices()
        self._compile_new_schedules()
        self.keep_length_ratio(arguments.get("x"))
        build_from_dataset(self, arguments.get("x"))
        build_optimizer(self)
        share_initial_values(self)
        callbacks = arguments.get("callbacks")
        arguments["callbacks"] = NonFiniteWarning.added_to(callbacks)
        verbose = arguments.get("verbose", "auto") if is_first_process() else 0
        checks = self._check_ids(arguments)
        self._share_rows(arguments)
        with (
            explained_errors(checks),
            kept_variables() as own,
            within_fit(callbacks),
            shown_progress(callbacks, verbose) as arguments["verbose"],
        ):
            if processes_share_rows():
                own.append(_EqualLogs())
            arguments["callbacks"] = with_callbacks(arguments["callbacks"], own)
            return super().fit(**arguments)

    def _check_ids(self, arguments: Config) -> TokenChecks:
        """Checks arrays, and replaces other data by data whose batches are checked."""
        target = self.target_vocabulary_size
        sizes = {
            "": 0 if self.input_keys else target,
            "token_ids": target,
            "encoder_token_ids": self.source_vocabulary_size,
            "decoder_token_ids": target,
        }
        inputs = {name: size for name, size in sizes.items() if size}
        ignored = ignored_targets(self.pad_token_id, getattr(self, "loss", None))
        start = getattr(self, "start_token_id", None)
        checks = TokenChecks(
            Vocabularies(inputs, target, self.pad_token_id, start, ignored)
        )
        x = arguments.get("x")
        checks.check(x, arguments.get("y"), arguments.get("sample_weight"), name="x")
        arguments["x"] = checks.applied_to(x, "x")
        data = arguments.get("validation_data")
        if isinstance(data, tuple):
            checks.check(*data[:3], name="validation_data")
        elif data is not None:
            arguments["validation_data"] = checks.applied_to(data, "validation_data")
        return checks

    def _share_rows(self, arguments: Config) -> None:
        """Makes the replicas of TensorFlow divide the rows of each batch."""
        size = arguments.get("batch_size")
        check_rows(self, arguments.get("x"), size)
        if isinstance(valid := arguments.get("validation_data"), tuple):
            check_rows(self, valid[0], arguments.get("validation_batch_size") or size)
        if self.ignores_padding:
            for name in {"x", "validation_data"} & {*arguments}:
                arguments[name] = with_rows_for_replicas(self, arguments[name])

    def keep_length_ratio(self, data: object) -> None:
        """Does nothing; `TransformerModel` raises its ratio to that of the data."""

    def make_train_function(self, force: bool = False) -> None:
        if force or self.train_function is None:
            self.train_function = None
            function: Any = compiled_function(self, "train_step")
            if function is None:
                super().make_train_function()  # type: ignore[misc]
                function = self.train_function
            self.train_function = with_equal_batches(function)

    def make_test_function(self, force: bool = False) -> None:
        if force or self.test_function is None:
            self.test_function = compiled_function(self, "test_step")
        if self.test_function is None:
            super().make_test_function()  # type: ignore[misc]

    def make_predict_function(self, force: bool = False) -> Any:
        if force or self.predict_function is None:
            self.predict_function = compiled_function(self, "predict_step")
        if self.predict_function is None:
            super().make_predict_function()  # type: ignore[misc]
        return self.predict_function

    def _check_devices(self) -> None:
        check_created_within(
            model=self.variables,
            optimizer=self.optimizer.variables,
            metrics=self.metrics_variables,
        )

    def _compile_new_schedules(self) -> None:
        """Compiles the step again if the optimizer got another schedule."""
        # TensorFlow and JAX compile a schedule with the step.
        schedules = learning_rate_schedules(self.optimizer)
        if schedules != self._schedules:
            self.train_function = None
            self._schedules = schedules

    @functools.wraps(keras.Model.evaluate, assigned=())
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the loss and the metrics, as `keras.Model.evaluate` does.

        Args:
            *args: arguments of `keras.Model.evaluate`.
            **kwargs: further arguments of `keras.Model.evaluate`.

        Returns:
            The loss and the metrics.

        Raises:
            ValueError: if the data are texts, if a token id is not in the vocabulary,
                or from `keras.Model.evaluate`.
        """
        arguments = _bound("evaluate", self, *args, **kwargs)
        check_compiled("evaluate", self)
        check_data("evaluate", arguments, self.input_keys)
        check_strategy(self)
        self._check_devices()
        checks = self._check_ids(arguments)
        self._share_rows(arguments)
        with explained_errors(checks):
            return super().evaluate(**arguments)

    @functools.wraps(keras.Model.predict, assigned=())
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the outputs of all batches, as `keras.Model.predict` does.

        Args:
            *args: arguments of `keras.Model.predict`.
            **kwargs: further arguments of `keras.Model.predict`.

        Returns:
            The outputs of all batches. If batches have different lengths, TensorFlow
            returns a ragged tensor.

        Raises:
            ValueError: if the data are texts, for which there is `generate`; if a token
                id is not in the vocabulary; or if batches have different lengths on JAX
                or PyTorch. Use `predict_on_batch`.
        """
        arguments = _bound("predict", self, *args, **kwargs)
        check_data("predict", arguments, self.input_keys)
        with explained_errors(self._check_ids(arguments)):
            return super().predict(**arguments)

    @functools.wraps(keras.Model.predict_on_batch, assigned=())
    def predict_on_batch(self, x: object) -> Any:
        """Computes the outputs of one batch, as `keras.Model.predict_on_batch` does.

        Args:
            x: argument of `keras.Model.predict_on_batch`.

        Returns:
            The outputs.

        Raises:
            ValueError: if the data are texts, for which there is `generate`.
        """
        check_data("predict", {"x": x}, self.input_keys)
        self._check_ids({"x": x})
        return rows_once(self, x, super().predict_on_batch(x))

    @functools.wraps(keras.Model.test_on_batch, assigned=())
    def test_on_batch(
        self,
        x: object,
        y: object = None,
        sample_weight: object = None,
        return_dict: bool = False,
    ) -> Any:
        """Computes the loss and the metrics of one batch.

        Args:
            x: argument of `keras.Model.test_on_batch`.
            y: argument of `keras.Model.test_on_batch`.
            sample_weight: argument of `keras.Model.test_on_batch`.
            return_dict: argument of `keras.Model.test_on_batch`.

        Returns:
            The loss and the metrics.

        Raises:
            ValueError: if the data are texts, for which there is `score`.
        """
        check_compiled("test_on_batch", self)
        check_data("evaluate", {"x": x, "y": y}, self.input_keys)
        check_strategy(self)
        self._check_ids({"x": x, "y": y, "sample_weight": sample_weight})
        return super().test_on_batch(x, y, sample_weight, return_dict=return_dict)

    @functools.wraps(keras.Model.train_on_batch, assigned=())
    def train_on_batch(
        self,
        x: object,
        y: object = None,
        sample_weight: object = None,
        class_weight: object = None,
        return_dict: bool = False,
    ) -> Any:
        """Trains the model on one batch, as `keras.Model.train_on_batch` does.

        Args:
            x: argument of `keras.Model.train_on_batch`.
            y: argument of `keras.Model.train_on_batch`.
            sample_weight: argument of `keras.Model.train_on_batch`.
            class_weight: must be `None`, as in `fit`.
            return_dict: argument of `keras.Model.train_on_batch`.

        Returns:
            The loss and the metrics.

        Raises:
            ValueError: if the data are texts, if `class_weight` is not `None`, or for
                the strategies and processes that `fit` does not support.
        """
        check_no_class_weight(class_weight)
        check_compiled("train_on_batch", self)
        check_data("fit", {"x": x, "y": y}, self.input_keys)
        self._check_ids({"x": x, "y": y, "sample_weight": sample_weight})
        check_distribution(self)
        if self.train_function is None:  # The check takes milliseconds.
            self._check_devices()
        self._compile_new_schedules()
        build_optimizer(self)
        if not self.has_shared_values:
            share_initial_values(self)
        return super().train_on_batch(x, y, sample_weight, return_dict=return_dict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model, as `keras.Model.__call__` does.

        Args:
            *args: arguments of `call`.
            **kwargs: arguments of `call`.

        Returns:
            The outputs of `call`.

        Raises:
            ValueError: if the inputs are texts, for which there is `generate`.
        """
        check_no_texts("predict", "inputs", args[:1])
        return super().__call__(*args, **kwargs)

    def compute_loss(
        self,
        x: object = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Tensor | None = None,
        training: bool = True,
    ) -> Tensor:
        replicas = count_replicas()
        # Keras divides the loss of a replica by their number, unless it is a sum.
        scale = 1 if self._reduction in ("sum", "none", None) else replicas
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        divergence = None
        if training and self.r_drop:
            second = self(x, training=True)
            again = super().compute_loss(x, y, second, sample_weight, training)
            loss = (loss + again) / 2
            divergence = (
                self.r_drop
                / 2
                * r_drop_loss(y, y_pred, second, sample_weight, self.target_padding)
            )
        if replicas == 1:
            return loss if divergence is None else loss + divergence
        if is_alone():
            return loss * scale + (0.0 if divergence is None else divergence)
        tokens = self.batch_weight(y, sample_weight)
        if scale > 1:
            by_token = self._reduction == "mean_with_sample_weight"
            weight = tokens if by_token else ops.cast(ops.size(y), "float32")
            loss = loss * scale * share_of_replica(weight)
        if divergence is not None:
            loss = loss + divergence * share_of_replica(tokens)
        return mean_loss_for_logs(loss)

    def get_metrics_result(self) -> Logs:
        if count_replicas() == 1 or is_alone():
            return super().get_metrics_result()
        # Each replica has sums over its own rows.
        variables = self.metrics_variables
        values = sum_over_replicas([ops.convert_to_tensor(v) for v in variables])
        with keras.StatelessScope(list(zip(variables, values, strict=True))):
            return super().get_metrics_result()

    def train_step(self, *args: Any) -> Any:
        args = _with_shared_rows(args)
        in_parts = (
            self.micro_batches > 1
            or processes_share_rows()
            or self._has_added_rows()
            or self._can_add_rows(args[-1])
        )
        if in_parts and self.trainable_weights:
            return train_in_micro_batches(self, *args)
        return super().train_step(*args)

    def _can_add_rows(self, data: object) -> bool:
        """Returns whether rows of padding make the devices share the work equally."""
        rows = keras.tree.flatten(data)[0].shape[0]
        return self.ignores_padding and bool(rows_to_add(rows))

    def _has_added_rows(self) -> bool:
        """Returns whether replicas of TensorFlow may have rows of padding."""
        return self.ignores_padding and count_replicas() > 1

    def test_step(self, *args: Any) -> Any:
        if self._has_added_rows():
            return self._test_without_added_rows(*args)
        return super().test_step(*_with_shared_rows(args))

    def _test_without_added_rows(self, data: object) -> Logs:
        x, y, sample_weight = batch = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False)
        share = self.compute_loss(x, y, y_pred, sample_weight, training=False)
        loss, rows = share * count_replicas(), count_rows(batch, self)
        self.metrics[0].update_state(loss, sample_weight=rows)
        return self.compute_metrics(x, y, y_pred, sample_weight)

    def predict_step(self, *args: Any) -> Any:
        return super().predict_step(*_with_shared_rows(args))

    def batch_weight(self, y: TokenIds, sample_weight: Tensor | None = None) -> Tensor:
        """Computes the weight of a micro-batch: the sum of its token weights.

        Args:
            y: int tensor `(batch, target_length)`, the target ids.
            sample_weight: `None`, or float tensor `(batch, target_length)` or
                `(batch,)`.

        Returns:
            float32 scalar tensor.
        """
        return ops.sum(token_weights(y, sample_weight, self.target_padding))

    def get_compile_config(self) -> Config:
        config = super().get_compile_config()
        if config:
            config["micro_batches"] = self.micro_batches
            config["r_drop"] = self.r_drop
        return config

    def compile_from_config(self, config: Config) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)


def _bound(method: str, *args: Any, **kwargs: Any) -> Config:
    """Returns the arguments of a method of `keras.Model` by name, without `self`."""
    arguments = _SIGNATURES[method].bind(*args, **kwargs).arguments
    others = arguments.pop("kwargs", {})
    return {**{n: v for n, v in arguments.items() if n != "self"}, **others}


class _EqualLogs(keras.callbacks.Callback):
    """Gives the callbacks of all processes the logs of the first one.

    Processors may round differently, and callbacks compare these values.
    """

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        if logs:
            values = of_first_process([float(value) for value in logs.values()])
            logs.update(zip([*logs], values, strict=True))


def _with_shared_rows(args: tuple[Any, ...]) -> tuple[Any, ...]:
    *state, data = args  # On JAX the state and the data, otherwise the data.
    return *state, share_rows(data)
