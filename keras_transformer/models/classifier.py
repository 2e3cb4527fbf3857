"""What `TextClassifier` and `TokenClassifier` share."""

import functools
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

import keras
import numpy as np
from keras import ops

from keras_transformer.backend.compiling import compile_function
from keras_transformer.backend.distribution import check_one_process
from keras_transformer.backend.jax_state import kept_variables, with_callbacks
from keras_transformer.backend.processes import is_first_process
from keras_transformer.layers.argument_errors import explains_arguments
from keras_transformer.layers.transformer_layer import (
    MODEL_OBJECTS,
    deserialize_objects,
)
from keras_transformer.models.encoder_model import EncoderModel, Row
from keras_transformer.models.text_encoder import TextEncoder
from keras_transformer.training.checkpoints.checkpoints import within_fit
from keras_transformer.training.training_progress import shown_progress
from keras_transformer.types import Config, Data, Tensor

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


# Of initial kernels, as in BERT: a new classifier predicts no class for all texts.
OUTPUT_STDDEV = 0.02


class Classifier(EncoderModel):
    """Base class of a `TextEncoder` with a layer of logits of classes.

    The arguments are those of `TextClassifier`.
    """

    _batch_rank: int  # axes of a batch of sources

    @explains_arguments
    def __init__(
        self,
        encoder: TextEncoder,
        class_names: Sequence[str],
        *,
        dropout: float = 0.1,
        tokenizer: "Tokenizer | None" = None,
        **kwargs: object,
    ):
        super().__init__(**kwargs)
        if not isinstance(encoder, TextEncoder):
            raise ValueError(
                "`encoder` must be a `TextEncoder`; received a "
                f"`{type(encoder).__name__}`."
            )
        if tokenizer is not None:
            set_tokenizer(encoder, tokenizer)
        self.encoder = encoder
        self.class_names = check_class_names(class_names)
        self.dropout = dropout
        self.output_dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.output_dense = keras.layers.Dense(
            len(self.class_names),
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=OUTPUT_STDDEV),
            dtype=self.dtype_policy,
            name="output",
        )
        self.output_dense.build((None, encoder.hidden_dim))
        self.built = True

    @property
    def tokenizer(self) -> "Tokenizer | None":  # type: ignore[override]
        """The tokenizer of the encoder."""
        return self.encoder.tokenizer

    @property
    def pad_token_id(self) -> int:  # type: ignore[override]
        """The id of padding."""
        return self.encoder.pad_token_id

    @property
    def max_length(self) -> int | None:  # type: ignore[override]
        """The maximum number of tokens of a text."""
        return self.encoder.max_length

    @property
    def _uses_pooler(self) -> bool:
        """Whether the logits depend on the pooler of the encoder."""
        return False

    def _default_loss(self) -> keras.Loss:
        """Returns the loss of `compile`."""
        raise NotImplementedError

    def _default_metric(self) -> str | Callable[..., Tensor]:
        """Returns the metric of `compile`."""
        return "accuracy"

    def _check_sources(self, sources: Data, argument: str) -> Data:
        """Returns a list of texts or words as values of a dataset."""
        raise NotImplementedError

    def _check_labels(self, labels: Data, sources: Data, argument: str) -> Data:
        """Returns the labels of a list of texts as numbers."""
        raise NotImplementedError

    def _to_inputs(self, sources: Data) -> Data:
        """Converts a batch of texts to inputs, in a graph of TensorFlow."""
        raise NotImplementedError

    def _to_targets(self, labels: Data, sources: Data, inputs: Data) -> Data:
        """Converts the labels of a batch to targets and weights, in a graph."""
        raise NotImplementedError

    def compile(
        self,
        optimizer: object = "adam",
        loss: object = None,
        metrics: object = None,
        weighted_metrics: object = None,
        **kwargs: object,
    ) -> None:
        """Configures training as `keras.Model.compile` does, with defaults.

        Args:
            optimizer: the optimizer. An encoder that was loaded needs a small learning
                rate, such as `keras.optimizers.AdamW(5e-5)`.
            loss: the loss; `None` = the cross-entropy of the classes.
            metrics: list of metrics; `None`, with `weighted_metrics=None` = the
                accuracy, of each label if a text can have several.
            weighted_metrics: list of metrics of the labels that count.
            **kwargs: further arguments of `keras.Model.compile`.
        """
        if self.encoder.pooler is not None and not self._uses_pooler:
            self.encoder.pooler.trainable = False  # It has no gradients.
        if metrics is None and weighted_metrics is None:
            weighted_metrics = [self._default_metric()]
        super().compile(
            optimizer,
            self._default_loss() if loss is None else loss,
            metrics=metrics,
            weighted_metrics=weighted_metrics,
            **kwargs,
        )
        self.optimizer.build(self.trainable_variables)  # A file has its variables.

    def get_compile_config(self) -> Config:
        """Returns the arguments of `compile`, for a file."""
        config: Config = super().get_compile_config()
        return config

    def compile_from_config(self, config: Config) -> None:
        """Compiles the model with the arguments of a file."""
        self.compile(**keras.saving.deserialize_keras_object(config))

    def fit(
        self,
        x: Data = None,
        y: Data = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: str | int = "auto",
        callbacks: object = None,
        validation_split: float = 0.0,
        validation_data: Data = None,
        shuffle: bool = True,
        class_weight: dict[int, float] | None = None,
        sample_weight: Data = None,
        **kwargs: object,
    ) -> keras.callbacks.History:
        """Trains as `keras.Model.fit` does, with texts and labels.

        Args:
            x: texts: a list, or a `tf.data.Dataset` of texts and labels, batched or
                not, with the weights of the texts as an optional third part. Inputs
                that are not texts are passed to `keras.Model.fit` as they are.
            y: the labels of a list, names or numbers of classes.
            batch_size: int, number of texts of a batch; `None` = 32.
            epochs: int, number of epochs.
            verbose: as in `keras.Model.fit`.
            callbacks: list of callbacks.
            validation_split: float, the part at the end of a list that is not trained
                on, if there are no `validation_data`.
            validation_data: a dataset, or a tuple of texts and labels.
            shuffle: bool, whether each epoch has a list in another order.
            class_weight: dictionary of the weights of classes by their numbers.
            sample_weight: list of float, the weights of the texts of a list.
            **kwargs: further arguments of `keras.Model.fit`.

        Returns:
            A `keras.callbacks.History`.

        Raises:
            ValueError: if a label is unknown or has the wrong type, or the numbers of
                texts and labels differ. The message names the row. On PyTorch, in
                several processes.
        """
        size = batch_size or 32
        if validation_split and self._is_text(x) and validation_data is None:
            count = len(x) - round(len(x) * validation_split)
            validation_data = (x[count:], y[count:])
            x, y = x[:count], y[:count]
            sample_weight = None if sample_weight is None else sample_weight[:count]
        if isinstance(validation_data, tuple) and self._is_text(validation_data[0]):
            texts, labels, weights = (*validation_data, None)[:3]
            validation_data = self._batches(texts, labels, weights, size)
        elif self._is_text(validation_data):
            validation_data = self._batches(validation_data, batch_size=size)
        if self._is_text(x):
            x = self._batches(x, y, sample_weight, size, shuffle)
            y = sample_weight = batch_size = None
            shuffle, validation_split = False, 0.0
        shown = verbose if is_first_process() else 0
        with (
            kept_variables() as own,
            within_fit(callbacks),
            shown_progress(callbacks, shown) as verbose,
        ):
            return super().fit(
                x,
                y,
                batch_size,
                epochs,
                verbose,
                with_callbacks(callbacks, own),
                validation_split,
                validation_data,
                shuffle,
                class_weight,
                sample_weight,
                **kwargs,
            )

    def make_train_function(self, force: bool = False) -> None:
        check_one_process(self)
        super().make_train_function(force)  # type: ignore[misc]

    def evaluate(
        self,
        x: Data = None,
        y: Data = None,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        sample_weight: Data = None,
        **kwargs: object,
    ) -> Data:
        """Evaluates as `keras.Model.evaluate` does; `x` and `y` are those of `fit`."""
        if self._is_text(x):
            x = self._batches(x, y, sample_weight, batch_size or 32)
            y = sample_weight = batch_size = None
        return super().evaluate(x, y, batch_size, verbose, sample_weight, **kwargs)

    def _is_text(self, x: Data) -> bool:
        """Returns whether data have texts rather than token ids."""
        if hasattr(x, "element_spec"):
            from keras_transformer.dataset.labelled_batches import has_texts

            return has_texts(x)
        while isinstance(x, list | tuple | np.ndarray) and len(x):
            x = x[0]
        return isinstance(x, str | bytes)

    def _batches(
        self,
        x: Data,
        y: Data = None,
        sample_weight: Data = None,
        batch_size: int = 32,
        shuffle: bool = False,
    ) -> Data:
        self._require_tokenizer("x")
        from keras_transformer.dataset.labelled_batches import (
            batch_rows,
            convert_batches,
        )

        if not hasattr(x, "element_spec"):
            if y is None or len(y) != len(x):
                count = "no" if y is None else len(y)
                raise ValueError(
                    "`y` must have a label for each entry of `x`; received "
                    f"{count} labels and {len(x)} entries."
                )
            sources = self._check_sources(x, "x")
            labels = self._check_labels(y, sources, "y")
            seed = random.randrange(2**31)  # `keras.utils.set_random_seed` sets it
            x = batch_rows(sources, labels, sample_weight, batch_size, shuffle, seed)
        return convert_batches(
            x, self._to_inputs, self._to_targets, batch_size, self._batch_rank
        )

    @functools.cached_property
    def _compiled_probabilities(self) -> Callable[..., Tensor]:
        return compile_function(self.probabilities, self)

    def probabilities(self, inputs: Data) -> Tensor:
        """Returns the probabilities of the classes.

        Args:
            inputs: the inputs of the model.

        Returns:
            float32 tensor of the shape of the outputs of the model.
        """
        return self._to_probabilities(self(inputs, training=False))

    def probabilities_of_rows(
        self, rows: Sequence[Row], batch_size: int = 64
    ) -> list[np.ndarray]:
        """Returns the probabilities of the classes of rows of any lengths.

        Args:
            rows: list of the inputs of each text by name, lists of int.
            batch_size: int, number of rows that are computed together.

        Returns:
            List of a float32 array for each row, `(classes,)` or `(words, classes)`
            with the padding of its batch.
        """
        function, paddings = self._compiled_probabilities, self.paddings
        return self._apply_to_rows(function, rows, paddings, batch_size)

    @property
    def paddings(self) -> dict[str, int]:
        """The padding of each input."""
        return self.encoder.paddings

    def _to_probabilities(self, logits: Tensor) -> Tensor:
        """Converts logits to float32 probabilities of the classes."""
        return ops.softmax(ops.cast(logits, "float32"), axis=-1)

    def get_config(self) -> Config:
        serialize = keras.saving.serialize_keras_object
        encoder = serialize(self.encoder)
        encoder["config"]["tokenizer"] = None
        return {
            **super().get_config(),
            "encoder": encoder,
            "class_names": self.class_names,
            "dropout": self.dropout,
            "tokenizer": serialize(self.tokenizer),
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: Config | None = None) -> Self:
        """Creates a model from its configuration, if it fits in the memory."""
        config = deserialize_objects(config, MODEL_OBJECTS)
        if isinstance(config.get("tokenizer"), dict):
            from keras_transformer import text  # noqa: F401 (registers tokenizers)

            config["tokenizer"] = keras.saving.deserialize_keras_object(
                config["tokenizer"], custom_objects
            )
        return cls(**config)


def set_tokenizer(encoder: TextEncoder, tokenizer: "Tokenizer") -> None:
    """Gives an encoder its tokenizer, or raises `ValueError` if they do not agree."""
    if encoder.tokenizer is not None:
        raise ValueError(
            "`tokenizer` must be `None` for an encoder that has a tokenizer; received "
            f"`tokenizer={tokenizer!r}`."
        )
    is_small = tokenizer.vocabulary_size <= encoder.vocabulary_size
    if not is_small or tokenizer.pad_token_id != encoder.pad_token_id:
        raise ValueError(
            f"`tokenizer` must have at most {encoder.vocabulary_size} tokens and the "
            f"padding {encoder.pad_token_id}, as the encoder has; received "
            f"{tokenizer.vocabulary_size} tokens and {tokenizer.pad_token_id}."
        )
    encoder.tokenizer = tokenizer


def check_class_names(class_names: Sequence[str]) -> list[str]:
    """Returns the names as a list, or raises `ValueError`."""
    names = [] if isinstance(class_names, str) else list(class_names)
    is_valid = len(names) > 1 and len({*names}) == len(names)
    if not is_valid or not all(isinstance(name, str) for name in names):
        raise ValueError(
            "`class_names` must have at least two different names; received "
            f"`class_names={class_names!r:.200}`."
        )
    return [str(name) for name in names]


def check_label(label: object, names: Sequence[str], argument: str, number: int) -> int:
    """Returns the number of a class, given as a name or a number."""
    if isinstance(label, str | bytes):
        name = label.decode() if isinstance(label, bytes) else str(label)
        if name in names:
            return names.index(name)
    elif isinstance(label, int | np.integer) and not isinstance(label, bool | np.bool_):
        place = int(label)
        if 0 <= place < len(names):
            return place
    known = ", ".join(map(repr, names[:8])) + (", …" if len(names) > 8 else "")
    raise ValueError(
        f"`{argument}` must have names of classes ({known}) or numbers from 0 to "
        f"{len(names) - 1}; received {label!r:.80} in row {number}."
    )
