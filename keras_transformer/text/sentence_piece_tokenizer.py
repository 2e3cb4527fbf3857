"""Subwords."""

import array
import base64
import hashlib
import io
import itertools
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple, Self, final

import keras
import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow_text.python.ops import sentencepiece_tokenizer as tf_text_ops

from keras_transformer.text.lines import Paths, sample_lines, training_lines
from keras_transformer.text.tokenizer import PACKAGE, Tokenizer


class Subwords(NamedTuple):
    """What a SentencePiece model knows of its tokens, in the order of their ids.

    Attributes:
        model_type: `"bpe"`, `"unigram"`, `"word"` or `"char"`.
        tokens: The tokens.
        scores: BPE: the higher, the earlier two tokens merge into this one. Unigram:
            logarithm of the token's probability.
        ordinary: Whether a token stands for a piece of text, and is not special, a
            byte or given by the user.
    """

    model_type: str
    tokens: list[str]
    scores: list[float]
    ordinary: list[bool]


class _SharedModel(tf.saved_model.experimental.TrackableResource):
    """The model's resource under a name, which outlives TensorFlow's kernel cache.

    tensorflow-text leaves it to the cached kernel, so that `tf.random.set_seed` and
    `keras.utils.clear_session` would destroy it (tensorflow/text, issue 570).
    """

    def __init__(self, proto: bytes):
        super().__init__()
        self._proto = proto
        _ = self.resource_handle  # Made now, not inside the first graph that uses it.

    def _create_resource(self):
        return tf_text_ops.gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._proto, shared_name=hashlib.sha256(self._proto).hexdigest()
        )


@final
@keras.saving.register_keras_serializable(PACKAGE)
class SentencePieceTokenizer(Tokenizer):
    """Splits texts into subwords with a SentencePiece model.

    Args:
        proto: The serialised SentencePiece model: `bytes`, or the same as a base64
            string. It must have all four special tokens, by the names `<pad>`,
            `<unk>`, `<s>` and `</s>`, with any ids.

    Raises:
        ValueError: If `proto` is no SentencePiece model or lacks a special token.

    Example:

    ```python
    from keras_transformer.text import SentencePieceTokenizer

    lines = ["the cat sat on the mat", "the dog sat on the log"]
    tokenizer = SentencePieceTokenizer.train(lines=lines, vocabulary_size=30)
    token_ids = tokenizer.tokenize(["the cat"], add_end=True)
    tokenizer.detokenize(token_ids).numpy()  # [b"the cat"]
    ```

    References:
        Kudo and Richardson, 2018, "SentencePiece: A simple and language independent
        subword tokenizer and detokenizer for Neural Text Processing".
    """

    assets: ClassVar[dict[str, str]] = {"proto": ".model"}

    def __init__(self, proto: bytes | str):
        self._proto, self._model = load_pieces(proto, tf.int32)
        count = self._model.vocab_size()
        pieces = self._model.id_to_string(tf.range(count)).numpy()
        super().__init__(piece.decode() for piece in pieces)
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=self._proto)

    @classmethod
    def train(
        cls,
        files: Paths | None = None,
        vocabulary_size: int = 8000,
        *,
        lines: Iterable[str] | None = None,
        model_type: str = "bpe",
        lowercase: bool = False,
        character_coverage: float = 1.0,
        max_sentences: int = 1_000_000,
        seed: int = 0,
    ) -> Self:
        """Learns a SentencePiece model from text of any size.

        Args:
            files: One path or several, plain or gzip (`.gz`), a sentence a line; the
                source and the target file together give a joint vocabulary.
            vocabulary_size: Number of tokens, the special ones included.
            lines: The text itself, in place of `files`.
            model_type: `"bpe"` or `"unigram"`.
            lowercase: Whether texts are lower-cased, here and by `tokenize`
                (SentencePiece's `nmt_nfkc_cf` normalisation, else `nmt_nfkc`).
            character_coverage: Share of the text's characters, above 0 and up to 1,
                that the vocabulary covers.
            max_sentences: Learn from a random sample of this many lines when there
                are more. It bounds the memory used.
            seed: Seed of the sample.

        Returns:
            The trained tokenizer. Equal arguments give an equal tokenizer.

        Raises:
            ValueError: If an argument is out of its range, if the text is empty or not
                UTF-8, or if `vocabulary_size` does not suit it.
        """
        if model_type not in ("bpe", "unigram"):
            raise ValueError(
                '`model_type` must be "bpe" or "unigram"; received '
                f"`model_type={model_type!r}`. Words and characters have tokenizers "
                "of their own."
            )
        if max_sentences < 1:
            raise ValueError(
                "`max_sentences` must be 1 or more; received "
                f"`max_sentences={max_sentences}`. Use as many as memory allows."
            )
        if not 0 < character_coverage <= 1:
            raise ValueError(
                "`character_coverage` must be above 0 and at most 1; received "
                f"`character_coverage={character_coverage}`."
            )
        sample = sample_lines(training_lines(files, lines), max_sentences, seed)
        proto = _learn(
            sample,
            vocab_size=vocabulary_size,
            model_type=model_type,
            normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc",
            character_coverage=character_coverage,
        )
        return cls(proto)

    @property
    def proto(self) -> bytes:
        """The serialised SentencePiece model: the content of a `.model` file."""
        return self._proto

    def subwords(self) -> "Subwords":
        """What the model knows of its tokens."""
        from sentencepiece import sentencepiece_model_pb2

        model = sentencepiece_model_pb2.ModelProto.FromString(  # type: ignore[attr-defined]
            self._proto
        )
        kinds = model.trainer_spec.ModelType
        return Subwords(
            model_type=kinds.Name(model.trainer_spec.model_type).lower(),
            tokens=self.get_vocabulary(),
            scores=[piece.score for piece in model.pieces],
            ordinary=[piece.type == piece.NORMAL for piece in model.pieces],
        )

    def get_config(self) -> dict[str, Any]:
        return {"proto": base64.b64encode(self._proto).decode()}

    def _encode(self, texts):
        if not tf.executing_eagerly():
            return self._model.tokenize(texts)
        # Outside of graphs sentencepiece itself is twice as fast.
        return _ragged(self._processor.encode(texts.numpy().tolist()))

    def _decode(self, token_ids):
        return self._model.detokenize(token_ids)


def load_pieces(proto: bytes | str, out_type: tf.DType) -> tuple[bytes, Any]:
    """Loads a SentencePiece model.

    Args:
        proto: The serialised model: `bytes`, or the same as a base64 string.
        out_type: What a piece is: `tf.int32`, its id, or `tf.string`.

    Returns:
        The serialised model as `bytes`, and tensorflow-text's tokenizer.

    Raises:
        ValueError: If `proto` is no SentencePiece model.
    """
    try:
        content = base64.b64decode(proto) if isinstance(proto, str) else proto
        model = tf_text.SentencepieceTokenizer(content, out_type=out_type)
        model.vocab_size().numpy()  # which reads it
    except (ValueError, tf.errors.OpError) as error:
        raise ValueError(
            "`proto` must be a serialised SentencePiece model; received "
            f"{len(proto)} bytes that are not. Pass the whole content of a "
            "`.model` file."
        ) from error
    model._model_resource = _SharedModel(content)
    return content, model


def _ragged(rows: list[list[int]]) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(
        tf.constant(array.array("i", itertools.chain.from_iterable(rows)), tf.int32),
        tf.constant(array.array("q", map(len, rows)), tf.int64),
        validate=False,
    )


def _learn(sample: list[str], **options: Any) -> bytes:
    """Learns a model with the library's special ids, quietly."""
    proto = io.BytesIO()
    longest = max(len(line.encode()) for line in sample)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=proto,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            minloglevel=2,
            max_sentence_length=max(4192, longest),  # It leaves longer ones out.
            **options,
        )
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2] or str(error)
        raise ValueError(
            "`vocabulary_size` must suit the training text; received "
            f"`vocabulary_size={options['vocab_size']}`. SentencePiece says: {reason}"
        ) from error
    return proto.getvalue()
