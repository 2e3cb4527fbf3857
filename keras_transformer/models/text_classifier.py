"""A classifier of texts."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from keras_transformer.models.classifier import Classifier, check_label
from keras_transformer.models.encoder_model import (
    Texts,
    as_texts,
    check_pooling,
    warn_of_cut_data,
)
from keras_transformer.models.text_encoder import TextEncoder
from keras_transformer.types import Config, Data, Shape, Tensor, TokenIds
from keras_transformer_runtime.arguments import check_numbers
from keras_transformer_runtime.labels.predictions import THRESHOLD, Classification

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


@keras.saving.register_keras_serializable("keras_transformer")
def label_accuracy(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Returns the part of the labels `(batch, classes)` that logits predict."""
    found = ops.cast(y_pred > 0, "float32")
    return ops.mean(ops.cast(found == ops.cast(y_true, "float32"), "float32"), axis=-1)


@keras.saving.register_keras_serializable("keras_transformer")
class TextClassifier(Classifier):
    """Classifier of texts: a `TextEncoder`, a pooling and a dense layer.

    It is trained by `fit` with texts and labels, on every backend, and `classify`
    returns the classes of texts.

    Args:
        encoder: a `TextEncoder` with a tokenizer, new or from `load_pretrained`. It is
            trained with the classifier; `encoder.trainable = False` prevents this.
        class_names: list of str, the names of the classes.
        multi_label: bool, whether a text can have several classes, or none.
        pooling: how the vectors of the tokens become one: `"mean"`, `"max"`, `"cls"`
            (the vector of the first token), or `"pooler"`. `None` = the pooler, if the
            encoder has one, and otherwise the mean.
        dropout: float in [0, 1), dropout rate of the pooled vector.
        tokenizer: tokenizer of an encoder that has none.
        **kwargs: `name`, `dtype` and the other arguments of `keras.Model`.

    Call arguments:
        inputs: the inputs of a `TextEncoder`: int tensor `(batch, length)` of token
            ids, or a dictionary of `"token_ids"` and `"segment_ids"`.
        training: bool, whether dropout is applied.

    Returns:
        Tensor `(batch, classes)` of logits in the compute dtype.

    Raises:
        ValueError: if an argument is out of range, or does not agree with another one.

    Example:

    >>> tokenizer = CharacterTokenizer.train(lines=["abc"])
    >>> encoder = TextEncoder(
    ...     num_layers=1,
    ...     hidden_dim=8,
    ...     intermediate_dim=16,
    ...     num_heads=2,
    ...     tokenizer=tokenizer,
    ... )
    >>> model = TextClassifier(encoder, class_names=["ham", "spam"])
    >>> model.compile("adam")
    >>> history = model.fit(["ab", "ba"], ["ham", "spam"], verbose=0)
    >>> found = model.classify("abc")
    >>> sorted(found[0].probabilities)
    ['ham', 'spam']

    References:
        - [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 4.1
    """

    _batch_rank = 1

    def __init__(
        self,
        encoder: TextEncoder,
        class_names: Sequence[str],
        *,
        multi_label: bool = False,
        pooling: str | None = None,
        dropout: float = 0.1,
        tokenizer: "Tokenizer | None" = None,
        **kwargs: object,
    ):
        super().__init__(
            encoder, class_names, dropout=dropout, tokenizer=tokenizer, **kwargs
        )
        self.multi_label = multi_label
        default = "pooler" if encoder.use_pooler else "mean"
        self.pooling = check_pooling(pooling or default, encoder.use_pooler)

    def call(
        self, inputs: TokenIds | Mapping[str, TokenIds], training: bool | None = None
    ) -> Tensor:
        encoded = self.encoder(inputs, training=training)
        pooled = self.encoder.pool_texts(inputs, encoded, self.pooling)
        pooled = ops.cast(pooled, self.compute_dtype)
        return self.output_dense(self.output_dropout(pooled, training=training))

    def compute_output_shape(
        self, inputs_shape: Shape | Mapping[str, Shape]
    ) -> tuple[int | None, ...]:
        batch = self.encoder.compute_output_shape(inputs_shape)[0]
        return (batch, len(self.class_names))

    def classify(
        self, texts: Texts, threshold: float = THRESHOLD, batch_size: int = 64
    ) -> list[Classification]:
        """Returns the classes of texts.

        Args:
            texts: str, or list or array of str; list of pairs of str; or list of rows
                of int token ids, with start and end. A text with more tokens than
                `max_length` is cut, and a warning says how many are.
            threshold: float, the least probability of a label of a model with
                `multi_label`.
            batch_size: int, number of texts that are computed together.

        Returns:
            List of a `Classification` for each text.

        Raises:
            ValueError: if `texts` has another form, or the model has no tokenizer.
        """
        check_numbers(0, 1, threshold=threshold)
        rows = self.encoder.rows_of_texts(texts, "texts")
        found = self.probabilities_of_rows(rows, batch_size)
        names, several = self.class_names, self.multi_label
        return [Classification.of(row, names, several, threshold) for row in found]

    @property
    def _uses_pooler(self) -> bool:
        return self.pooling == "pooler"

    def _to_probabilities(self, logits: Tensor) -> Tensor:
        if self.multi_label:
            return ops.sigmoid(ops.cast(logits, "float32"))
        return super()._to_probabilities(logits)

    def _default_loss(self) -> keras.Loss:
        if self.multi_label:
            return keras.losses.BinaryCrossentropy(from_logits=True)
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def _default_metric(self) -> str | Callable[..., Tensor]:
        return label_accuracy if self.multi_label else super()._default_metric()

    def _check_sources(self, sources: Data, argument: str) -> Data:
        entries = as_texts(sources, argument)
        if entries.second is None:
            return entries.first
        return (entries.first, entries.second)

    def _check_labels(self, labels: Data, sources: Data, argument: str) -> np.ndarray:
        if not self.multi_label:
            found = [
                check_label(label, self.class_names, argument, number)
                for number, label in enumerate(labels)
            ]
            return np.array(found, "int32")
        count = len(self.class_names)
        if isinstance(labels, np.ndarray) and labels.ndim == 2:
            if labels.shape[1] != count or not np.isin(labels, (0, 1)).all():
                raise ValueError(
                    f"`{argument}` must be an array of 0 and 1 of shape (texts, "
                    f"{count}), or lists of names; received shape {labels.shape}."
                )
            return labels.astype("float32")
        targets = np.zeros((len(labels), count), "float32")
        for number, row in enumerate(labels):
            if isinstance(row, str) or not all(isinstance(x, str) for x in row):
                raise ValueError(
                    f"`{argument}` must have a list of names of classes in each row of "
                    f"a model with `multi_label=True`; received {row!r:.80} in row "
                    f"{number}. Pass 0 and 1 for each class as an array."
                )
            for label in row:
                place = check_label(label, self.class_names, argument, number)
                targets[number, place] = 1
        return targets

    def _to_inputs(self, sources: Data) -> Data:
        from keras_transformer.dataset.encoder_inputs import encode_texts
        from keras_transformer.dataset.labelled_batches import text_inputs

        encode = functools.partial(
            encode_texts,
            self._require_tokenizer("x"),
            max_length=self.max_length,
            separators=self.encoder.pair_separators,
            second_segment=self.encoder.second_segment,
        )
        return text_inputs(
            encode,
            sources,
            self.pad_token_id,
            self.row_lengths(),
            lambda: warn_of_cut_data(self.max_length),
        )

    def _to_targets(self, labels: Data, sources: Data, inputs: Data) -> Data:
        from keras_transformer.dataset.labelled_batches import class_ids, several_labels

        if self.multi_label:
            return several_labels(labels, self.class_names), None
        return class_ids(labels, self.class_names, "y"), None

    def get_config(self) -> Config:
        names = ("multi_label", "pooling")
        return {**super().get_config(), **{n: getattr(self, n) for n in names}}
