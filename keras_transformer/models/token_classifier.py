"""A classifier of the words of sentences."""

from collections.abc import Mapping, Sequence

import keras
from keras import ops

from keras_transformer.models.classifier import Classifier, check_label
from keras_transformer.models.encoder_model import (
    Row,
    warn_of_cut_data,
)
from keras_transformer.types import Data, Shape, Tensor, TokenIds
from keras_transformer_runtime.arguments import check_unicode
from keras_transformer_runtime.labels.predictions import (
    TaggedSentence,
    warn_of_cut_texts,
)


@keras.saving.register_keras_serializable("keras_transformer")
class TokenClassifier(Classifier):
    """Classifier of words: a `TextEncoder` and a dense layer.

    The tag of a word, such as its part of speech, is computed from the vector of its
    first token. Tags such as `B-PER`, `I-PER` and `O` describe spans of words. The
    model is trained by `fit` with sentences and tags, on every backend, and `tag`
    returns the tags of sentences.

    Args:
        encoder: a `TextEncoder` with a tokenizer, new or from `load_pretrained`. It is
            trained with the classifier; `encoder.trainable = False` prevents this.
        class_names: list of str, the tags.
        dropout: float in [0, 1), dropout rate of the vectors of words.
        tokenizer: tokenizer of an encoder that has none.
        **kwargs: `name`, `dtype` and the other arguments of `keras.Model`.

    Call arguments:
        inputs: dictionary of `"token_ids"`, int tensor `(batch, length)`, and
            `"first_pieces"`, int tensor `(batch, words)`, the place of the first token
            of each word. A place of 0, that of the start token, is padding.
        training: bool, whether dropout is applied.

    Returns:
        Tensor `(batch, words, classes)` of logits in the compute dtype.

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
    >>> model = TokenClassifier(encoder, class_names=["O", "B-PER", "I-PER"])
    >>> model.compile("adam")
    >>> words, tags = [["a", "bc"], ["b"]], [["O", "B-PER"], ["O"]]
    >>> history = model.fit(words, tags, verbose=0)
    >>> model.tag(["a bc"])[0].words
    ['a', 'bc']

    References:
        - [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 5.3
    """

    _batch_rank = 2

    def call(
        self, inputs: Mapping[str, TokenIds], training: bool | None = None
    ) -> Tensor:
        encoded = self.encoder(inputs["token_ids"], training=training)
        places = ops.cast(inputs["first_pieces"], "int32")
        vectors = ops.take_along_axis(encoded, places[:, :, None], axis=1)
        return self.output_dense(self.output_dropout(vectors, training=training))

    def compute_output_shape(
        self, inputs_shape: Mapping[str, Shape]
    ) -> tuple[int | None, ...]:
        return (*inputs_shape["first_pieces"], len(self.class_names))

    def tag(
        self, sentences: str | Sequence[Data], batch_size: int = 64
    ) -> list[TaggedSentence]:
        """Returns the tags of the words of sentences.

        Args:
            sentences: str, or list of str, whose words are separated by white space; or
                list of lists of words. Words that do not fit in `max_length` tokens
                have no tag, and a warning says of how many sentences.
            batch_size: int, number of sentences that are computed together.

        Returns:
            List of a `TaggedSentence` for each sentence.

        Raises:
            ValueError: if `sentences` has another form, or the model has no tokenizer.
        """
        words = split_words(sentences, "sentences")
        rows = self.rows_of_words(words)
        found = self.probabilities_of_rows(rows, batch_size)
        return [
            TaggedSentence.of(
                sentence, probabilities[: len(row["first_pieces"])], self.class_names
            )
            for sentence, row, probabilities in zip(words, rows, found, strict=True)
        ]

    @property
    def paddings(self) -> dict[str, int]:
        """The padding of each input."""
        return {"token_ids": self.pad_token_id, "first_pieces": 0}

    def rows_of_words(self, sentences: list[list[str]]) -> list[Row]:
        """Returns the inputs for each sentence; warns of those that are cut.

        Args:
            sentences: list of lists of words.

        Returns:
            List of dictionaries of `"token_ids"` and `"first_pieces"`, lists of int.

        Raises:
            ValueError: if there is no tokenizer.
        """
        tokenizer = self._require_tokenizer("sentences")
        if not sentences:
            return []
        from keras_transformer.dataset.encoder_inputs import encode_words
        from keras_transformer.dataset.labelled_batches import ragged_words

        encoded = encode_words(tokenizer, ragged_words(sentences), self.max_length)
        if self.max_length is not None:
            warn_of_cut_texts(encoded.is_cut.numpy(), self.max_length, "sentences")
        parts = (encoded.token_ids.to_list(), encoded.first_pieces.to_list())
        return [
            {"token_ids": token_ids, "first_pieces": first_pieces}
            for token_ids, first_pieces in zip(*parts, strict=True)
        ]

    def _default_loss(self) -> keras.Loss:
        return keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        )

    def _check_sources(self, sources: Data, argument: str) -> Data:
        from keras_transformer.dataset.labelled_batches import ragged_words

        return ragged_words(split_words(sources, argument))

    def _check_labels(self, labels: Data, sources: Data, argument: str) -> Data:
        from keras_transformer.dataset.labelled_batches import ragged_ids

        counts = sources.row_lengths().numpy().tolist()
        rows = []
        for number, (row, count) in enumerate(zip(labels, counts, strict=True)):
            tags = [check_label(t, self.class_names, argument, number) for t in row]
            if len(tags) != count:
                raise ValueError(
                    f"`{argument}` must have a tag for each word; received {count} "
                    f"words and {len(tags)} tags in row {number}."
                )
            rows.append(tags)
        return ragged_ids(rows)

    def _to_inputs(self, sources: Data) -> Data:
        from keras_transformer.dataset.encoder_inputs import encode_words
        from keras_transformer.dataset.labelled_batches import word_inputs

        tokenizer = self._require_tokenizer("x")
        return word_inputs(
            encode_words(tokenizer, sources, self.max_length),
            self.pad_token_id,
            self.row_lengths(),
            lambda: warn_of_cut_data(self.max_length, "sentences"),
        )

    def _to_targets(self, labels: Data, sources: Data, inputs: Data) -> Data:
        from keras_transformer.dataset.labelled_batches import tag_targets

        return tag_targets(labels, sources, inputs["first_pieces"], self.class_names)


def split_words(sentences: str | Sequence[Data], argument: str) -> list[list[str]]:
    """Returns the words of sentences, which are texts or lists of words."""
    entries = [sentences] if isinstance(sentences, str) else list(sentences)
    found: list[list[str]] = []
    for number, entry in enumerate(entries):
        words = entry.split() if isinstance(entry, str) else list(entry)
        words = [
            word.decode("utf-8", "replace") if isinstance(word, bytes) else word
            for word in words
        ]
        if not all(isinstance(word, str) for word in words):
            raise ValueError(
                f"`{argument}` must be texts or lists of words; received "
                f"{entry!r:.80} in row {number}."
            )
        for word in words:
            check_unicode(word, argument, f"row {number}")
        found.append([str(word) for word in words])
    return found
