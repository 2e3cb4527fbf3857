"""Base class of attention patterns."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from keras_transformer.types import Config, Mask, Tensor


class AttentionPattern(ABC):
    """Attention pattern: which positions attend to which.

    `mask` defines the pattern. `attend` computes self-attention blockwise: time and
    memory are proportional to the length, and no tensor is `length × length`. Both
    give the same result. A pattern is a frozen dataclass; patterns of one class with
    the same arguments are equal.

    References:
        - [Child et al., 2019](https://arxiv.org/abs/1904.10509), section 4
    """

    @abstractmethod
    def mask(self, query_positions: Tensor, key_positions: Tensor) -> Mask:
        """Computes the mask of the pattern, without a causal mask.

        Args:
            query_positions: int tensor `(…, query_length)`.
            key_positions: int tensor `(…, key_length)`.

        Returns:
            Boolean tensor `(…, query_length, key_length)`, `True` = attend.
        """

    @abstractmethod
    def is_worthwhile(self, length: int | None) -> bool:
        """Returns whether `attend` is faster than dense attention with `mask`.

        Args:
            length: int, number of positions, or `None` if it is unknown.

        Returns:
            bool; `True` for an unknown length.
        """

    @abstractmethod
    def attend(
        self,
        attend: Callable[..., Any],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_mask: Mask | None = None,
        use_causal_mask: bool = False,
    ) -> Tensor:
        """Computes the self-attention of positions `0, …, length - 1` blockwise.

        Args:
            attend: function `attend(query, key, value, query_positions,
                key_positions, key_mask)` that computes dense attention with `mask`,
                with the causal mask if `use_causal_mask`, and with `key_mask`. Each
                sequence is split into `rows` blocks of queries, each with a window
                of keys: `query (batch * rows, block, num_heads, key_dim)`, `key` and
                `value (batch * rows, window, …)`, int32 `query_positions
                (rows, block)` and `key_positions (rows, window)`, and boolean
                `key_mask (batch * rows, window)` or `None`. `key_mask` is `False` for
                padding outside the sequence too. The function returns
                `(batch * rows, block, num_heads, value_dim)`.
            query: float tensor `(batch, length, num_heads, key_dim)`.
            key: float tensor `(batch, length, num_key_value_heads, key_dim)`.
            value: float tensor `(batch, length, num_key_value_heads, value_dim)`.
            key_mask: boolean tensor `(batch, length)`, `True` = attend.
            use_causal_mask: bool, whether `attend` masks the keys after each query.
                The windows then contain no keys after the block.

        Returns:
            Float tensor `(batch, length, num_heads, value_dim)`.
        """

    def get_config(self) -> Config:
        return dict(vars(self))

    @classmethod
    def from_config(cls, config: Config) -> "AttentionPattern":
        """Creates the pattern from its configuration."""
        return cls(**config)
