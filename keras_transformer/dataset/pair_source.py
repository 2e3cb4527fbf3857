"""The interface of `MemoryPairs` and `StreamedPairs`."""

from typing import Protocol

from keras_transformer.dataset.filters import Account
from keras_transformer.dataset.token_rows import TokenPairs

Limits = tuple[float, float]


class PairSource(Protocol):
    """A source of the pairs of each window.

    Attributes:
        account: counts of the pairs read.
        limits: most tokens of a source and of a target that the filter lets through.
        varies: whether windows differ.
    """

    account: Account
    limits: Limits
    varies: bool

    @property
    def longest(self) -> Limits:
        """Tokens of the longest source and target, as the tokenizers split them."""

    def draw(self, number: int, limits: Limits) -> TokenPairs:
        """Returns the pairs of window `number`, regardless of earlier calls.

        A text that is split at random has at most `limits` tokens, for source and
        target, unless the tokenizer's own split has more.
        """
