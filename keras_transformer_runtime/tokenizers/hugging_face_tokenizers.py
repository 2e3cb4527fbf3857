"""Tokenizers of the package `tokenizers`, in the form of its `tokenizer.json`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from keras_transformer_runtime.packages import require_modules
from keras_transformer_runtime.tokenizers.text_tokenizer import TextTokenizer
from keras_transformer_runtime.tokenizers.token_vocabulary import SPECIAL_TOKENS

UNUSED = "<unused {}>"  # The token of an id that a vocabulary lacks.


class HuggingFaceVocabulary(NamedTuple):
    """The tokens of a `tokenizer.json` and its special ids.

    Attributes:
        tokens: list of str, all tokens in the order of their ids, new ones included.
        special_ids: list of int, those of padding, unknown text, start and end.
        own_size: int, number of tokens without new ones.
        hidden: set of int, ids of tokens that do not occur in texts.
    """

    tokens: list[str]
    special_ids: list[int]
    own_size: int
    hidden: set[int]


def read_vocabulary(
    content: Mapping[str, Any], given: Sequence[int | None]
) -> HuggingFaceVocabulary:
    """Returns the tokens of a `tokenizer.json`, and its special ids.

    Args:
        content: the content of the file.
        given: ids of the tokens of padding, unknown text, start and end; `None` for a
            new id after the vocabulary.

    Returns:
        The vocabulary.

    Raises:
        ValueError: if two tokens have the same id, or an id is out of range.
    """
    found = content["model"]["vocab"]
    ids = (
        dict(found)
        if isinstance(found, Mapping)
        else {token: id for id, (token, _) in enumerate(found)}
    )
    ids |= {token["content"]: token["id"] for token in content["added_tokens"]}
    count = max(ids.values(), default=-1) + 1
    if count > 2 * len(ids) + 1000 or min(ids.values(), default=0) < 0:
        raise ValueError(
            f"The ids of {len(ids)} tokens must be from 0 on without large gaps; "
            f"received ids up to {count - 1}."
        )
    tokens = [*map(UNUSED.format, range(count))]
    for token, id in ids.items():
        if tokens[id] != UNUSED.format(id):
            raise ValueError(
                f"Each token must have its own id; received the id {id} of both "
                f"{tokens[id]!r:.80} and {token!r:.80}."
            )
        tokens[id] = token
    special_ids = []
    for id, token in zip(given, SPECIAL_TOKENS, strict=True):
        if id is not None and not 0 <= id < count:
            raise ValueError(
                f"The id of `{token}` must be from 0 to {count - 1}, or `None` for a "
                f"new id; received {id}."
            )
        special_ids.append(len(tokens) if id is None else id)
        tokens += [token] if id is None else []
    hidden = {token["id"] for token in content["added_tokens"] if token["special"]}
    return HuggingFaceVocabulary(tokens, special_ids, count, hidden)


def host_tokenizer(content: str) -> Any:
    """Returns the tokenizer of the package `tokenizers` for a `tokenizer.json`."""
    require_modules(["tokenizers"], "This tokenizer")
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the package raises `Exception` itself
        raise ValueError(
            "`tokenizer` must be the content of a `tokenizer.json`; the package "
            f"tokenizers cannot read it ({error!s:.200})."
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


class HuggingFaceTokenizer(TextTokenizer):
    """Splits texts as the package `tokenizers` does.

    Args:
        tokenizer: str, the content of a `tokenizer.json`.
        pad_token_id: int, the id in the vocabulary; `None` = a new one after it.
        unknown_token_id: the same.
        start_token_id: the same.
        end_token_id: the same.
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
        self._host = host_tokenizer(tokenizer)
        vocabulary = read_vocabulary(json.loads(tokenizer), given)
        super().__init__(vocabulary.tokens, vocabulary.special_ids)
        self._own_size = vocabulary.own_size
        self._framing = {self.pad_token_id, self.start_token_id, self.end_token_id}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._host.encode(text, add_special_tokens=False).ids
        framing, unknown = self._framing, self.unknown_token_id
        return [unknown if id in framing else id for id in ids]

    def _decode(self, token_ids: list[int]) -> str:
        own = [id for id in token_ids if id < self._own_size]
        text: str = self._host.decode(own, skip_special_tokens=True)
        return text
