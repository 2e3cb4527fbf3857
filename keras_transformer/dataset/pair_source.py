"""What gives the pairs of a window."""

from typing import Protocol

from keras_transformer.dataset.filters import Account
from keras_transformer.dataset.token_rows import TokenPairs

Limits = tuple[float, float]


class PairSource(Protocol):
    """Gives the pairs of each window that are kept.

    Attributes:
        account: Counts of the pairs read.
        limits: Most tokens of a source and of a target that a filter lets through.
        varies: Whether windows differ.
    """

    account: Account
    limits: Limits
    varies: bool

    @property
    def longest(self) -> Limits:
        """Most tokens that a source and a target have as the tokenizers split them."""

    def draw(self, number: int, limits: Limits) -> TokenPairs:
        """The pairs of the window of this number, whichever came before.

        A text that is split at random has no more tokens than `limits` say for source
        and target, unless it has as the tokenizer splits it.
        """
