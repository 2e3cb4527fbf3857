"""Subword tokenizer with a SentencePiece model."""

import array
import base64
import functools
import io
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Self, final

import keras
import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.backend.sentencepiece import edited_normalization, keep_model
from keras_transformer.text.tokenizer import PACKAGE, Tokenizer
from keras_transformer.text.training_text import sample_items, training_lines
from keras_transformer.types import Config
from keras_transformer_runtime.arguments import (
    check_character_coverage,
    check_ints,
    check_one_of,
    normalization_rule,
)
from keras_transformer_runtime.text_files import Paths
from keras_transformer_runtime.tokenizers.invisible_characters import replacements
from keras_transformer_runtime.tokenizers.token_vocabulary import SPECIAL_TOKENS


class Subwords(NamedTuple):
    """Tokens of a SentencePiece model and their properties, in the order of their ids.

    Attributes:
        model_type: `"bpe"`, `"unigram"`, `"word"` or `"char"`.
        tokens: list of str.
        scores: list of float. In a BPE model, merges whose token has a higher score
            are applied first. In a unigram model, the score is the log-probability of
            the token.
        ordinary: list of bool, whether a token is a piece of text and not a special
            token, a byte or a user-defined symbol.
    """

    model_type: str
    tokens: list[str]
    scores: list[float]
    ordinary: list[bool]


@final
@keras.saving.register_keras_serializable(PACKAGE)
class SentencePieceTokenizer(Tokenizer):
    """Splits texts into subwords with a SentencePiece model.

    Args:
        proto: the serialised SentencePiece model, as `bytes` or as a base64 string. It
            must contain the special tokens `<pad>`, `<unk>`, `<s>` and `</s>`, with any
            ids.

    Raises:
        ValueError: if `proto` is not a SentencePiece model or lacks a special token.

    Example:

    ```python
    from keras_transformer.text import SentencePieceTokenizer

    lines = ["the cat sat on the mat", "the dog sat on the log"]
    tokenizer = SentencePieceTokenizer.train(lines=lines, vocabulary_size=30)
    token_ids = tokenizer.tokenize(["the cat"], add_end=True)
    print(tokenizer.detokenize(token_ids).numpy())  # [b'the cat']
    ```

    References:
        - [Kudo and Richardson, 2018](https://arxiv.org/abs/1808.06226)
    """

    assets: ClassVar[dict[str, str]] = {"proto": ".model"}

    def __init__(self, proto: bytes | str) -> None:
        self._proto, self._model = load_pieces(proto, tf.int32, self.special_tokens)
        count = self._model.vocab_size()
        pieces = self._model.id_to_string(tf.range(count)).numpy()
        super().__init__(piece.decode() for piece in pieces)
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=self._proto)
        self._is_unigram = model_type(self._proto) == "unigram"

    @classmethod
    def train(
        cls,
        files: Paths | None = None,
        vocabulary_size: int = 8000,
        *,
        lines: Iterable[str] | None = None,
        model_type: str = "bpe",
        lowercase: bool = False,
        normalization: str = "nmt_nfkc",
        character_coverage: float = 1.0,
        byte_fallback: bool = False,
        user_defined_symbols: Sequence[str] = (),
        keep_whitespace: bool = False,
        max_sentences: int = 1_000_000,
        seed: int = 0,
    ) -> Self:
        r"""Trains a SentencePiece model.

        The text is read once, line by line, so it may be larger than the memory.

        Args:
            files: one path or several paths of files, plain or gzip (`.gz`), with one
                sentence per line. Pass the source and target files together to train a
                joint vocabulary.
            vocabulary_size: int, number of tokens, special tokens included.
            lines: iterable of str, the lines of the text, instead of `files`.
            model_type: `"bpe"` or `"unigram"`.
            lowercase: bool, whether texts are lower-cased, for training and in
                `tokenize` (SentencePiece's normalisations `nmt_nfkc_cf` and `nfkc_cf`).
            normalization: normalisation of texts, for training and in `tokenize`.
                `"nfkc"`: NFKC of Unicode, which replaces `，` by `,`, `½` by `1⁄2` and
                `™` by `TM`. `"nmt_nfkc"`: NFKC and a table of the invisible characters
                of Unicode (`docs/data.md`): those that separate words become spaces,
                those that scripts or emoji need are kept if the text has them, the
                others are removed. Everything else is as in SentencePiece's rule of
                this name. `"identity"`: characters are not replaced; this excludes
                `lowercase`. Every normalisation merges consecutive spaces and removes
                spaces at both ends, unless `keep_whitespace` is true.
            character_coverage: float in [0.98, 1], the share of the characters of the
                text that the vocabulary covers. The rarest characters are converted to
                `<unk>`. 0.9995 suits scripts of thousands of characters.
            byte_fallback: bool, whether a character that the vocabulary lacks is
                split into its bytes instead of `<unk>`. The vocabulary then has 256
                tokens for bytes.
            user_defined_symbols: list of str, texts that are always one token, such as
                `["<name>", "<number>"]`.
            keep_whitespace: bool, whether spaces and line breaks are kept, as running
                text requires: each "\n" is one token, and a text does not begin with
                a space that it lacks.
            max_sentences: int of at least 1, the maximum number of lines. If the text
                has more, this many lines are sampled at random, which limits the
                memory.
            seed: int, seed of the sample.

        Returns:
            The trained tokenizer. Equal arguments give an equal tokenizer.

        Raises:
            ValueError: if an argument is out of range, if both or neither of `files`
                and `lines` are given, if the text is blank or not UTF-8, or if
                `vocabulary_size` does not suit the text.
            OSError: if a file cannot be read.

        Example:

        ```python
        lines = ["½ kilo，please", "½ a litre，please"]
        exact = SentencePieceTokenizer.train(
            lines=lines, vocabulary_size=24, normalization="identity"
        )
        token_ids = exact.tokenize(["½ litre，please"])
        print(exact.detokenize(token_ids).numpy()[0].decode())  # ½ litre，please
        ```

        References:
            - [Sennrich et al., 2016](https://arxiv.org/abs/1508.07909) (BPE)
            - [Kudo, 2018](https://arxiv.org/abs/1804.10959) (unigram)
        """
        remedy = (
            "For words and characters, use `WordTokenizer` or `CharacterTokenizer`."
        )
        check_one_of(("bpe", "unigram"), model_type=model_type, remedy=remedy)
        remedy = "Use as many as fit into memory."
        check_ints(1, max_sentences=max_sentences, remedy=remedy)
        check_character_coverage(character_coverage)
        is_text = isinstance(user_defined_symbols, str)
        if is_text or not all(map(_is_word, user_defined_symbols)):
            raise ValueError(
                "`user_defined_symbols` must be a list of strings without spaces; "
                f"received `user_defined_symbols={user_defined_symbols!r}`."
            )
        special = set(SPECIAL_TOKENS).intersection(user_defined_symbols)
        if special:
            raise ValueError(
                "`user_defined_symbols` must differ from the special tokens, to which "
                "text is never converted; received "
                f"`user_defined_symbols={user_defined_symbols!r}`. Remove "
                f"{sorted(special)}."
            )
        rule = normalization_rule(normalization, lowercase)
        sample = sample_items(training_lines(files, lines), max_sentences, seed)
        options: Config = {
            "vocab_size": vocabulary_size,
            "model_type": model_type,
            "character_coverage": character_coverage,
            "byte_fallback": byte_fallback,
            "user_defined_symbols": [*user_defined_symbols],
        }
        if keep_whitespace:
            sample = [part for line in sample for part in line.split("\n") if part]
            options["user_defined_symbols"].append("\n")
            options |= {"add_dummy_prefix": False, "remove_extra_whitespaces": False}
        return cls(_train_model(sample, rule, options))

    @property
    def proto(self) -> bytes:
        """The serialised SentencePiece model, as in a `.model` file."""
        return self._proto

    def subwords(self) -> Subwords:
        """Returns the tokens of the model with their scores and types."""
        model = parse_model(self._proto)
        return Subwords(
            model_type=model_type(self._proto),
            tokens=self.get_vocabulary(),
            scores=[piece.score for piece in model.pieces],
            ordinary=[piece.type == piece.NORMAL for piece in model.pieces],
        )

    def token_texts(self) -> list[bytes]:
        texts = super().token_texts()
        for id, token in enumerate(self._vocabulary):
            if self._processor.is_byte(id):  # such as <0xE2>, a byte of a character
                texts[id] = bytes([int(token[1:-1], 16)])
        return texts

    def _settings(self) -> dict[str, object]:
        return {"model_type": model_type(self._proto)}

    def get_config(self) -> Config:
        return {"proto": base64.b64encode(self._proto).decode()}

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if self._is_unigram or not tf.executing_eagerly():
            return self._model.tokenize(texts)
        # Outside graphs, sentencepiece is twice as fast as tensorflow-text. For unigram
        # models, the two choose different ones of sequences with equal scores.
        return _to_ragged(self._processor.encode(texts.numpy().tolist()))

    def _decode(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        return self._model.detokenize(token_ids)


def model_type(proto: bytes) -> str:
    """Returns the type of a serialised SentencePiece model, such as `"bpe"`."""
    spec = parse_model(proto).trainer_spec
    name: str = spec.ModelType.Name(spec.model_type)
    return name.lower()


def load_pieces(
    proto: bytes | str,
    out_type: tf.DType = tf.int32,
    special_tokens: Sequence[str] = (),
) -> tuple[bytes, tf_text.SentencepieceTokenizer]:
    """Loads a SentencePiece model, given as `bytes` or as a base64 string.

    Returns it as `bytes`, and as a tokenizer of tensorflow-text with the given output,
    ids or pieces. No text is converted to `special_tokens`, whatever their type is.
    """
    if not isinstance(proto, bytes | str):
        raise ValueError(
            "`proto` must be a serialised SentencePiece model, bytes or a base64 "
            f"string; received an object of type {type(proto).__name__}."
        )
    try:
        content = base64.b64decode(proto) if isinstance(proto, str) else proto
        sentencepiece.SentencePieceProcessor(model_proto=content)
        content = _with_control_pieces(content, special_tokens)
        model = tf_text.SentencepieceTokenizer(content, out_type=out_type)
        model.vocab_size().numpy()  # which reads it
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        raise ValueError(
            "`proto` must be a serialised SentencePiece model; received "
            f"{len(proto)} bytes that are not. Pass the complete content of a "
            "`.model` file."
        ) from error
    keep_model(model, content)
    return content, model


def _with_control_pieces(proto: bytes, tokens: Sequence[str]) -> bytes:
    """Returns a model in which text is not converted to certain pieces."""
    # Programs train models with special tokens as user-defined symbols.
    model = parse_model(proto)
    pieces = [piece for piece in model.pieces if piece.piece in tokens]
    found = [piece for piece in pieces if piece.type == piece.USER_DEFINED]
    for piece in found:
        piece.type = piece.CONTROL
    content: bytes = model.SerializeToString() if found else proto
    return content


def _to_ragged(rows: list[list[int]]) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(
        tf.constant(array.array("i", itertools.chain.from_iterable(rows)), tf.int32),
        tf.constant(array.array("q", map(len, rows)), tf.int64),
        validate=False,
    )


def _is_word(symbol: object) -> bool:
    return isinstance(symbol, str) and symbol.split() == [symbol]


def _train_model(sample: list[str], normalization: str, options: Config) -> bytes:
    """Trains a SentencePiece model with the special ids of this library."""
    # `normalization` is SentencePiece's name of it, and `options` are those of its
    # trainer.
    if normalization.startswith("nmt_nfkc"):
        sample = normalize_lines(sample, normalization_rules(normalization))
        proto = _train_model(sample, "identity", options)
        return with_normalization(proto, normalization)
    # SentencePiece skips lines with this character, which it uses for unknown text.
    sample = [line.replace("\u2585", " ") for line in sample]
    written = io.BytesIO()
    longest = max(len(line.encode()) for line in sample)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=written,
            normalization_rule_name=normalization,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            minloglevel=2,
            max_sentence_length=max(4192, longest),  # Longer lines would be skipped.
            **options,
        )
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2] or str(error)
        needed = re.search(r"required_chars\. \d+ vs (\d+)", reason)
        if needed:
            raise ValueError(
                "`vocabulary_size` must have room for each character of the training "
                f"text, {needed[1]} tokens with the special tokens; received "
                f"`vocabulary_size={options['vocab_size']}`. Increase it, or use a "
                "lower `character_coverage`, which excludes the rarest characters; "
                f"received `character_coverage={options['character_coverage']}`."
            ) from error
        raise ValueError(
            "`vocabulary_size` must suit the training text; received "
            f"`vocabulary_size={options['vocab_size']}`. SentencePiece reports: "
            f"{reason}"
        ) from error
    return written.getvalue()


@functools.cache
def normalization_rules(rule: str, lacking: frozenset[str] = frozenset()) -> bytes:
    """Returns the rules of `"nmt_nfkc"`, or `"nmt_nfkc_cf"`, that follow the table.

    They are the field `precompiled_charsmap` of a SentencePiece model.
    """
    return edited_normalization(rule, replacements(lacking))


def parse_model(proto: bytes = b"") -> Any:
    """Returns the message of a serialised SentencePiece model."""
    from sentencepiece import sentencepiece_model_pb2

    return sentencepiece_model_pb2.ModelProto.FromString(proto)  # type: ignore[attr-defined]


def normalize_lines(lines: list[str], rules: bytes) -> list[str]:
    """Normalizes lines by `normalization_rules`, without merging spaces."""
    model = parse_model()
    spec = model.normalizer_spec
    spec.precompiled_charsmap = rules
    spec.add_dummy_prefix = spec.escape_whitespaces = False
    spec.remove_extra_whitespaces = False
    normalizer = sentencepiece.SentencePieceNormalizer(
        model_proto=model.SerializeToString()
    )
    normalized: list[str] = normalizer.normalize(lines)
    return normalized


def with_normalization(proto: bytes, rule: str) -> bytes:
    """Sets the rules of a serialised SentencePiece model; see `normalization_rules`."""
    model = parse_model(proto)
    model.normalizer_spec.name = "user_defined"  # as of rules from a file
    known = set("".join(piece.piece for piece in model.pieces))
    rules = normalization_rules(rule, frozenset(replacements()) - known)
    model.normalizer_spec.precompiled_charsmap = rules
    content: bytes = model.SerializeToString()
    return content
