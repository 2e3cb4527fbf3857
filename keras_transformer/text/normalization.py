"""Treatment of invisible characters by the normalization of SentencePiece."""

import functools
from typing import Any

import sentencepiece

from keras_transformer.backend.sentencepiece import edited_normalization
from keras_transformer_runtime.tokenizers.invisible_characters import replacements


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
