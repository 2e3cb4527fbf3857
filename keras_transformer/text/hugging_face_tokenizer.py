"""Tokenizers of Hugging Face, with the interface of the tokenizers of this library."""

import json
from collections.abc import Callable
from typing import final

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.text.pipeline import (
    NoGraphForm,
    TokenizerPipeline,
    TokenTexts,
    token_texts,
)
from keras_transformer.text.tokenizer import PACKAGE, Tokenizer
from keras_transformer.types import Config
from keras_transformer_runtime.tokenizers.hugging_face_tokenizers import (
    host_tokenizer,
    read_vocabulary,
)


@final
@keras.saving.register_keras_serializable(PACKAGE)
class HuggingFaceTokenizer(Tokenizer):
    """Splits texts into tokens as the package `tokenizers` of Hugging Face does.

    The tokenizer is described by the content of a `tokenizer.json`. TensorFlow computes
    its parts inside graphs: byte pairs of bytes (GPT-2, Llama 3, Qwen, BART) and of
    characters (Llama 2, NLLB), WordPiece (BERT) and unigrams (T5, mBART), with their
    normalizers and pre-tokenizers. The package `tokenizers` is then not needed. A
    tokenizer with another part runs on the host, by this package: in Python and in
    `tf.data`, but not in a SavedModel. `in_graph` tells which.

    A text is never converted to the id of padding, start or end. If it contains such a
    token, such as `</s>`, the id is `unknown_token_id`. Other added tokens, such as
    `<mask>` and `<|im_start|>`, are converted to their ids. `detokenize` drops the
    tokens that the file marks as special. Bytes that are not valid UTF-8 become "�".

    The tables of Unicode differ between programs: TensorFlow does not lower-case some
    letters of Unicode 14 and later, and does not decompose some of Unicode 16.

    Args:
        tokenizer: str, the content of a `tokenizer.json`. Its `truncation`, `padding`
            and `post_processor` have no effect.
        pad_token_id: int, id of padding, which no text may contain; `None` = a new id
            after the vocabulary, also for the following ones.
        unknown_token_id: int, id of text that has no other id.
        start_token_id: int, first id of the decoder; it may be that of padding.
        end_token_id: int, last id of a text.

    Raises:
        ValueError: if `tokenizer` is not such a content, or an id is out of range.
        ModuleNotFoundError: if the tokenizer runs on the host, and the package
            `tokenizers` is not installed.

    Example:

    ```python
    import tokenizers

    own = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    own.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(special_tokens=["[UNK]", "[END]"])
    own.train_from_iterator(["a cat sat", "a cat"], trainer)
    tokenizer = HuggingFaceTokenizer(
        own.to_str(), unknown_token_id=0, start_token_id=1, end_token_id=1
    )
    ids = tokenizer.tokenize(["a cat"], add_end=True)
    print(tokenizer.in_graph, tokenizer.detokenize(ids).numpy())  # True [b'a cat']
    ```

    References:
        - [Hugging Face, tokenizers](https://huggingface.co/docs/tokenizers)
    """

    def __init__(
        self,
        tokenizer: str,
        pad_token_id: int | None = None,
        unknown_token_id: int | None = None,
        start_token_id: int | None = None,
        end_token_id: int | None = None,
    ) -> None:
        given = (pad_token_id, unknown_token_id, start_token_id, end_token_id)
        try:
            content = json.loads(tokenizer)
            vocabulary = read_vocabulary(content, given)
            form = _graph_form(content, vocabulary.tokens[: vocabulary.own_size])
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(
                "`tokenizer` must be the content of a `tokenizer.json`; received a "
                f"text of {len(tokenizer)} characters that is not ({error!r:.200})."
            ) from error
        super().__init__(vocabulary.tokens, vocabulary.special_ids)
        self._content, self._kind = tokenizer, content["model"]["type"]
        self._own_size = vocabulary.own_size
        self._is_shown = tf.constant(
            [id not in vocabulary.hidden for id in range(self._own_size)]
            + [False] * (self.vocabulary_size - self._own_size)
        )
        self._ids: Callable[[tf.Tensor], tf.RaggedTensor] = self._ids_on_host
        self._pipeline, self._obstacle = None, ""
        if isinstance(form, NoGraphForm):
            self._host, self._obstacle = host_tokenizer(tokenizer), str(form)
            return
        self._pipeline, texts = form
        self._ids = tf.function(
            self._pipeline.tokenize,
            input_signature=[tf.TensorSpec([None], tf.string)],
            autograph=False,
        )
        unused = [b""] * (self.vocabulary_size - self._own_size)
        self._first_texts = tf.constant([*texts.first, *unused])
        self._other_texts = tf.constant([*texts.others, *unused])
        self._strips_space = texts.strips_space

    @property
    def content(self) -> str:
        """The content of the `tokenizer.json`."""
        return self._content

    @property
    def in_graph(self) -> bool:
        return self._pipeline is not None

    def _settings(self) -> dict[str, object]:
        if self.in_graph:
            return {"model": self._kind, "runs": "in graphs"}
        return {"model": self._kind, "runs": "on the host", "due_to": self._obstacle}

    def get_config(self) -> Config:
        names = ("pad_token_id", "unknown_token_id", "start_token_id", "end_token_id")
        ids = dict(zip(names, self._special_ids, strict=True))
        own = {name: id for name, id in ids.items() if id < self._own_size}
        return {"tokenizer": self._content, **own}

    def token_texts(self) -> list[bytes]:
        if not self.in_graph:
            return super().token_texts()
        shown = self._is_shown.numpy()
        texts = self._other_texts.numpy().tolist()
        return [text if shown[id] else b"" for id, text in enumerate(texts)]

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        rows = self._ids(texts)
        ids = rows.flat_values
        framing = [self.pad_token_id, self.start_token_id, self.end_token_id]
        special = tf.reduce_any(ids[:, None] == tf.constant(framing), axis=1)
        return rows.with_flat_values(tf.where(special, self.unknown_token_id, ids))

    def _decode(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        shown = token_ids.with_flat_values(
            tf.gather(self._is_shown, token_ids.flat_values)
        )
        rows = tf.ragged.boolean_mask(token_ids, shown)
        if not self.in_graph:
            return self._texts_on_host(rows)
        ids = rows.flat_values
        is_first = tf.ragged.range(rows.row_lengths()).flat_values == 0
        texts = tf.where(
            is_first,
            tf.gather(self._first_texts, ids),
            tf.gather(self._other_texts, ids),
        )
        joined = tf.strings.reduce_join(rows.with_flat_values(texts), axis=1)
        if self._strips_space:
            joined = tf.strings.regex_replace(joined, r"\A ", "")
        return tf.strings.unicode_transcode(joined, "UTF-8", "UTF-8")

    def _ids_on_host(self, texts: tf.Tensor) -> tf.RaggedTensor:
        def encode(batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            decoded = [text.decode("utf-8", "replace") for text in batch]
            found = self._host.encode_batch(decoded, add_special_tokens=False)
            lengths = np.array([len(each.ids) for each in found], "int64")
            return np.array([id for each in found for id in each.ids], "int32"), lengths

        ids, lengths = tf.numpy_function(encode, [texts], [tf.int32, tf.int64])
        ids, lengths = tf.ensure_shape(ids, [None]), tf.ensure_shape(lengths, [None])
        return tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)

    def _texts_on_host(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        def decode(ids: np.ndarray, splits: np.ndarray) -> np.ndarray:
            rows = [row.tolist() for row in np.split(ids, splits[1:-1])]
            texts = self._host.decode_batch(rows[: len(splits) - 1])
            return np.array([text.encode() for text in texts], object)

        inputs = [token_ids.flat_values, token_ids.row_splits]
        return tf.ensure_shape(tf.numpy_function(decode, inputs, tf.string), [None])


def _graph_form(
    content: Config, tokens: list[str]
) -> tuple[TokenizerPipeline, TokenTexts] | NoGraphForm:
    """Returns the operations of a tokenizer, or the part that has none."""
    try:
        texts = token_texts(content["decoder"], tokens)
        return TokenizerPipeline(content), texts
    except NoGraphForm as error:
        return error
