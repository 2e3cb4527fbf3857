"""A logits processor that bans texts in every segmentation into tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from keras import ops

from keras_transformer.decoding.logits_processors import History
from keras_transformer.types import Tensor

MAX_ENTRIES = 1 << 27


class TargetTokenizer(Protocol):
    """The methods of a `keras_transformer.text.Tokenizer` that `BannedTexts` calls."""

    @property
    def unknown_token_id(self) -> int:
        """Id of the token that replaces unknown text."""
        ...

    def tokenize(self, texts: Sequence[str]) -> Any:
        """Returns the token ids of texts."""
        ...

    def detokenize(self, token_ids: Any) -> Any:
        """Returns the texts of token ids."""
        ...

    def token_texts(self) -> list[bytes]:
        """Returns the text of each token."""
        ...


@dataclass(frozen=True)
class BannedTexts:
    """Bans texts: no output contains one of them.

    A text is banned at every place, also within a word, and in every segmentation into
    tokens. Letter case matters. The texts are normalized as the tokenizer does. A text
    with a character that the vocabulary lacks cannot be generated and is skipped.

    An automaton over the bytes of the texts has a state for each beginning of a text
    (Aho and Corasick, 1975). Two tables have an entry for each state and token, 5 bytes
    together.

    Args:
        texts: list of str, the banned texts.
        tokenizer: the target tokenizer of the model.

    Raises:
        ValueError: if there are no texts, a text is blank, the tables would have over
            134 million entries, or the texts of the tokens cannot be determined.

    Example:

    ```python
    banned = BannedTexts(["New York", "York"], model.target_tokenizer)
    model.generate(texts, BeamSearch(logits_processors=[banned]))
    ```

    References:
        - [Aho and Corasick, 1975](https://doi.org/10.1145/360825.360855)
    """

    texts: Sequence[str]
    tokenizer: TargetTokenizer = field(repr=False)
    _next_states: np.ndarray = field(init=False, repr=False, compare=False)
    _completes: np.ndarray = field(init=False, repr=False, compare=False)
    _count: int = field(init=False, repr=False, compare=False)
    only_lowers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        is_one = isinstance(self.texts, str | bytes)
        texts = () if is_one else tuple(map(str, self.texts))
        if not texts or not all(text.strip() for text in texts):
            raise ValueError(
                "`texts` must be a list of at least one text that is not blank; "
                f"received `texts={self.texts!r}`."
            )
        object.__setattr__(self, "texts", texts)
        patterns = _normalized(texts, self.tokenizer)
        next_states, completes = _tables(patterns, self.tokenizer.token_texts())
        object.__setattr__(self, "_next_states", next_states)
        object.__setattr__(self, "_completes", completes)
        # Each token has at least a byte, so no more tokens decide on the state.
        count = max([len(pattern) - 1 for pattern in patterns], default=0)
        object.__setattr__(self, "_count", count)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Changes the logits; see `LogitsProcessor`."""
        next_states, completes = self._padded(logits.shape[-1])
        size = next_states.shape[1]
        flat = ops.convert_to_tensor(next_states.reshape(-1))
        last = history.last(self._count)
        state = ops.zeros(ops.shape(last)[:2], "int32")
        for place in range(self._count):
            token = last[:, :, place]
            following = ops.take(flat, state * size + ops.maximum(token, 0))
            state = ops.where(token < 0, 0, following)
        banned = ops.take(ops.convert_to_tensor(completes), state, axis=0)
        return ops.where(banned, -float("inf"), logits)

    def _padded(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tables for a vocabulary that was rounded up to `size` tokens."""
        tables: list[np.ndarray] = []
        for table in (self._next_states, self._completes):
            if size < table.shape[1]:
                raise ValueError(
                    "`tokenizer` must be the target tokenizer of the model; received "
                    f"one of {table.shape[1]} tokens for a vocabulary of {size}."
                )
            unknown = table[:, [self.tokenizer.unknown_token_id]]
            rest = np.repeat(unknown, size - table.shape[1], axis=1)
            tables.append(np.concatenate([table, rest], axis=1))
        return tables[0], tables[1]


def _normalized(texts: Sequence[str], tokenizer: TargetTokenizer) -> list[bytes]:
    """Returns the texts that can be generated, as in an output, in UTF-8."""
    rows = tokenizer.tokenize(texts)
    outputs = tokenizer.detokenize(rows).numpy().tolist()
    unknown = tokenizer.unknown_token_id
    pairs = zip(rows.to_list(), outputs, strict=True)
    return [text.strip() for row, text in pairs if unknown not in row and text.strip()]


def _tables(
    patterns: list[bytes], token_texts: list[bytes]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tables of the automaton for tokens, `(states, tokens)`."""
    # They hold the state after a token, int32, and whether a text is complete at a byte
    # of the token, boolean.
    beginnings = {pattern[:n] for pattern in patterns for n in range(len(pattern))}
    states = [b"", *sorted(beginnings - {b""})]
    numbers = {state: number for number, state in enumerate(states)}
    if len(states) * len(token_texts) > MAX_ENTRIES:
        raise ValueError(
            f"`texts` must have at most {MAX_ENTRIES // len(token_texts)} different "
            f"beginnings for {len(token_texts)} tokens; received {len(states)}. Pass "
            "fewer or shorter texts."
        )
    after_byte = np.zeros((len(states), 256), "int32")
    ends = np.zeros((len(states), 256), bool)
    for number, state in enumerate(states):
        for byte in range(256):
            text = state + bytes([byte])
            while text not in numbers:
                text = text[1:]
            after_byte[number, byte] = numbers[text]
        for pattern in patterns:
            if state.endswith(pattern[:-1]):
                ends[number, pattern[-1]] = True
    lengths = np.array([len(text) for text in token_texts])
    longest = lengths.max()
    padded = b"".join(text.ljust(longest, b"\0") for text in token_texts)
    columns = np.frombuffer(padded, "uint8").reshape(len(token_texts), longest)
    shape = (len(states), len(token_texts))
    current = np.broadcast_to(np.arange(len(states), dtype="int32")[:, None], shape)
    completes = np.zeros(shape, bool)
    for place in range(longest):
        used, column = lengths > place, columns[:, place]
        completes |= used & ends[current, column]
        current = np.where(used, after_byte[current, column], current)
    return current, completes
