"""A Keras model that trains in micro-batches and with R-Drop."""

import contextlib
import functools
import inspect
from typing import Any

import keras
from keras import ops

from keras_transformer.arguments import check_ints
from keras_transformer.backend.keras_internals import build_from_dataset
from keras_transformer.backend.micro_batches import train_in_micro_batches
from keras_transformer.backend.xla_barriers import without_xla
from keras_transformer.training.consistency import consistency_loss
from keras_transformer.training.losses import token_weights
from keras_transformer.training.skip_non_finite import SkipNonFinite


class TokenTrainer(keras.Model):
    """A Keras model of token sequences with more training options.

    `compile` takes two further arguments; `fit` and the rest are Keras's.
    The model has a `pad_token_id`, and is called on integer tensors.
    """

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        *args: Any,
        micro_batches: int = 1,
        consistency: float = 0.0,
        **kwargs: Any,
    ) -> None:
        """Configures the training, as `keras.Model.compile` does.

        Args:
            optimizer: argument of `keras.Model.compile`.
            loss: argument of `keras.Model.compile`.
            *args: further arguments of `keras.Model.compile`.
            micro_batches: int, parts into which the rows of a batch are divided
                in each step. They go through the model one after the other, so
                that a batch needs the memory of a part; the one update has the
                gradient of the whole batch, each part counting by its tokens.
                So the loss must be a mean over the tokens, as
                `LabelSmoothedCrossEntropy` is, or have
                `reduction="mean_with_sample_weight"`, and then batches sample
                weights that are 0 on padding. There is nothing else to set:
                optimizer, schedule and callbacks see whole batches.
            consistency: float, weight α of R-Drop. If it is not 0, every batch
                goes through the model twice, with different dropout, and the
                loss is the mean of both plus α / 2 times the divergence of the
                two predictions (`consistency_loss`): half of the paper's
                equation 4. A step takes twice as long.
            **kwargs: further arguments of `keras.Model.compile`.

        Raises:
            ValueError: if an argument is out of its range, the parts of a batch
                cannot be put together with the loss, the loss takes probabilities in
                place of logits, or loss or metrics take another token for padding
                than the model.

        Example:

        ```python
        model.compile(
            optimizer=keras.optimizers.Adam(1e-3, beta_2=0.98),
            loss=LabelSmoothedCrossEntropy(0.1),
            micro_batches=4,
            consistency=5.0,
        )
        ```

        References:
            - [Liang et al., 2021](https://arxiv.org/abs/2106.14448) (R-Drop)
            - [Ott et al., 2018](https://arxiv.org/abs/1806.00187), section 3.3
              (large batches in parts)
        """
        check_ints(1, micro_batches=micro_batches)
        if micro_batches > 1 and loss is not None:
            _check_is_mean(loss, micro_batches)
        if not 0.0 <= consistency < float("inf"):
            raise ValueError(
                "`consistency` must be a finite number of at least 0; received "
                f"`consistency={consistency!r}`."
            )
        signature = inspect.signature(keras.Model.compile)
        given = signature.bind(self, optimizer, loss, *args, **kwargs).arguments
        _check_padding(self.pad_token_id, given)
        _check_takes_logits(loss)
        self.micro_batches = micro_batches
        self.consistency = float(consistency)
        scales = self.dtype_policy.name == "mixed_float16" and kwargs.get(
            "auto_scale_loss", True
        )
        if scales and isinstance(optimizer, SkipNonFinite):
            optimizer, kwargs["auto_scale_loss"] = optimizer.scaling(), False
        super().compile(optimizer, loss, *args, **kwargs)

    @functools.wraps(keras.Model.fit, assigned=())
    def fit(self, *args: Any, class_weight: Any = None, **kwargs: Any) -> Any:
        """Trains as `keras.Model.fit` does, except for `class_weight`.

        Args:
            *args: arguments of `keras.Model.fit`.
            class_weight: `None`. Keras would weigh whole rows with it, by the
                position of their largest id.
            **kwargs: further arguments of `keras.Model.fit`.

        Returns:
            The `keras.callbacks.History` of the training.

        Raises:
            ValueError: if `class_weight` is given, or from `keras.Model.fit`.
        """
        _refuse_class_weight(class_weight)
        build_from_dataset(self, args[0] if args else kwargs.get("x"))
        return super().fit(*args, **kwargs)

    @functools.wraps(keras.Model.train_on_batch, assigned=())
    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Trains on a batch as `keras.Model.train_on_batch` does.

        Args:
            x: as there.
            y: as there.
            sample_weight: as there.
            class_weight: `None`, as in `fit`.
            return_dict: as there.

        Returns:
            The loss and the metrics, as there.

        Raises:
            ValueError: if `class_weight` is given.
        """
        _refuse_class_weight(class_weight)
        return super().train_on_batch(x, y, sample_weight, return_dict=return_dict)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        if not (training and self.consistency):
            return loss
        again = self(x, training=True)
        loss = (loss + super().compute_loss(x, y, again, sample_weight, training)) / 2
        apart = consistency_loss(y, y_pred, again, sample_weight, self.pad_token_id)
        return loss + self.consistency / 2 * apart

    def train_step(self, *args: Any) -> Any:
        with contextlib.nullcontext() if self.jit_compile else without_xla():
            if self.micro_batches == 1 or not self.trainable_weights:
                return super().train_step(*args)
            return train_in_micro_batches(self, *args)

    def batch_weight(self, y: Any, sample_weight: Any = None) -> Any:
        """Adds up the weights of the real tokens of a batch, for which it counts.

        Args:
            y: int tensor `(batch, target_length)`, the target ids.
            sample_weight: `None`, or a float tensor `(batch, target_length)` or
                `(batch,)`.

        Returns:
            Float32 scalar tensor.
        """
        return ops.sum(token_weights(y, sample_weight, self.pad_token_id))

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        if config:
            config["micro_batches"] = self.micro_batches
            config["consistency"] = self.consistency
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)


def _refuse_class_weight(class_weight: Any) -> None:
    if class_weight is not None:
        raise ValueError(
            "`class_weight` must be None, as targets are tokens, not classes; "
            f"received `class_weight={class_weight!r}`. Give batches "
            "`sample_weight` `(batch, target_length)` instead."
        )


def _check_padding(pad_token_id: int, compiled: dict[str, Any]) -> None:
    """Rejects a loss or metrics that would count padding."""
    for argument in ("loss", "metrics", "weighted_metrics"):
        for each in keras.tree.flatten(compiled.get(argument)):
            own = getattr(each, "pad_token_id", pad_token_id)
            if own != pad_token_id:
                raise ValueError(
                    f"`{argument}` must take the model's `pad_token_id={pad_token_id}` "
                    f"for padding; received {type(each).__name__} with "
                    f"`pad_token_id={own}`."
                )


def _check_takes_logits(loss: Any) -> None:
    """Rejects a cross-entropy of probabilities, which would train, but badly."""
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
                "probabilities. Use `LabelSmoothedCrossEntropy()`, or a stock "
                "cross-entropy with `from_logits=True`."
            )


def _check_is_mean(loss: Any, micro_batches: int) -> None:
    """Rejects a loss that is not a mean over tokens, for micro-batches."""
    for each in keras.tree.flatten(loss):
        # Keras gives names and functions its default, "sum_over_batch_size".
        if getattr(each, "reduction", None) != "mean_with_sample_weight":
            raise ValueError(
                "`loss` must be a mean over the tokens with `micro_batches` above 1; "
                f"received `loss={each!r}`, `micro_batches={micro_batches}`. Use "
                '`LabelSmoothedCrossEntropy`, or `reduction="mean_with_sample_weight"`.'
            )
