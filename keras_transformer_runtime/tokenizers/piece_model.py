"""A SentencePiece model, with the results of tensorflow-text."""

import array
from typing import Any

import sentencepiece

UNKNOWN_PENALTY = 10.0  # of SentencePiece, for a character that is not a piece


class PieceModel:
    """Splits texts into the pieces of a SentencePiece model.

    Args:
        proto: bytes, the serialised model.

    Attributes:
        pieces: list of str, the pieces in the order of their ids.

    Raises:
        ValueError: if `proto` is not a model.
    """

    def __init__(self, proto: bytes) -> None:
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(
                f"`proto` must be a serialised SentencePiece model; received "
                f"{len(proto)} bytes that are not. Export the model again."
            ) from error
        count = self._processor.vocab_size()
        self.pieces: list[str] = self._processor.id_to_piece([*range(count)])
        self._unigrams = _unigrams(proto)

    def encode(self, text: str) -> list[int]:
        """Returns the ids of the pieces of a text."""
        if self._unigrams is not None:
            return [id for _, id in self._unigrams.split(self._normalize(text))]
        token_ids: list[int] = self._processor.encode(text)
        return token_ids

    def split(self, text: str) -> list[str]:
        """Returns the pieces of a text. Unknown text is a piece."""
        if self._unigrams is not None:
            return [piece for piece, _ in self._unigrams.split(self._normalize(text))]
        pieces: list[str] = self._processor.encode(text, out_type=str)
        return pieces

    def decode(self, tokens: list[int] | list[str]) -> str:
        """Joins pieces, or pieces with certain ids, to a text."""
        text: str = self._processor.decode(tokens)
        return text

    def _normalize(self, text: str) -> str:
        normalized: str = self._processor.normalize(text)
        return normalized


def _unigrams(proto: bytes) -> "_Unigrams | None":
    from sentencepiece import sentencepiece_model_pb2

    kind: Any = sentencepiece_model_pb2.ModelProto  # type: ignore[attr-defined]
    model = kind.FromString(proto)
    is_unigram = model.trainer_spec.model_type == model.trainer_spec.UNIGRAM
    return _Unigrams(model) if is_unigram else None


class _Unigrams:
    """The pieces of a unigram model, and their best sequence for a text.

    The package sentencepiece compares scores in float32. The older version that is part
    of tensorflow-text compares a score in float64 with the best one so far in float32.
    Therefore the two choose different ones of sequences with equal scores, such as
    "a", "aa" and "aa", "a".
    """

    def __init__(self, model: Any) -> None:
        kinds = [(piece, type(piece)) for piece in model.pieces]
        normal = [piece.score for piece, t in kinds if piece.type == t.NORMAL]
        unknown = [id for id, (piece, t) in enumerate(kinds) if piece.type == t.UNKNOWN]
        self._unknown_id = unknown[0]
        self._unknown_score = _float32(min(normal, default=0.0) - UNKNOWN_PENALTY)
        # The id and the score of a piece; `None` for the beginning of a longer piece.
        self._table: dict[str, tuple[int, float] | None] = {}
        for id, (piece, t) in enumerate(kinds):
            if piece.type in (t.NORMAL, t.USER_DEFINED, t.UNUSED):
                for end in range(1, len(piece.piece)):
                    self._table.setdefault(piece.piece[:end])
                score = -0.1 if piece.type == t.USER_DEFINED else piece.score
                found = None if piece.type == t.UNUSED else (id, score)
                self._table[piece.piece] = found
        self._bytes: list[tuple[str, int]] = []
        if model.trainer_spec.byte_fallback:
            ids = {piece.piece: id for id, (piece, _) in enumerate(kinds)}
            names = [f"<0x{byte:02X}>" for byte in range(256)]
            self._bytes = [(name, ids.get(name, self._unknown_id)) for name in names]

    def split(self, text: str) -> list[tuple[str, int]]:
        """Returns the pieces of a normalized text, and their ids."""
        size, table = len(text), self._table
        missing: tuple[()] = ()
        scores = array.array("f", bytes(4 * size + 4))  # rounds to float32
        starts, ids = [-1] * (size + 1), [self._unknown_id] * (size + 1)
        for start in range(size):
            before, is_known = scores[start], False
            for end in range(start + 1, size + 1):
                found = table.get(text[start:end], missing)
                if not found:
                    if found is None:
                        continue
                    break
                is_known |= end == start + 1
                score = found[1] + before
                if starts[end] < 0 or score > scores[end]:
                    scores[end], starts[end], ids[end] = score, start, found[0]
            if not is_known:
                end = start + 1
                score = _float32(self._unknown_score + before)
                if starts[end] < 0 or score > scores[end]:
                    scores[end], starts[end] = score, start
                    ids[end] = self._unknown_id
        pieces, end = [], size
        while end > 0:
            pieces.append((text[starts[end] : end], ids[end]))
            end = starts[end]
        return [*self._joined(pieces[::-1])]

    def _joined(self, pieces: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Joins unknown characters in a row, or splits them into bytes."""
        joined: list[tuple[str, int]] = []
        for piece, id in pieces:
            if id != self._unknown_id:
                joined.append((piece, id))
            elif self._bytes:
                joined += [self._bytes[byte] for byte in piece.encode()]
            elif joined and joined[-1][1] == id:
                joined[-1] = (joined[-1][0] + piece, id)
            else:
                joined.append((piece, id))
        return joined


def _float32(number: float) -> float:
    return array.array("f", [number])[0]
