"""What every attention pattern is: a mask, and a way to do without it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


class AttentionPattern(ABC):
    """Which positions attend to which, by two routes that agree.

    `mask` is the definition. `attend` computes self-attention block by block:
    its time and memory are proportional to the length, and no tensor is
    `length × length`. A pattern is a frozen dataclass, equal to any other of
    its class with the same arguments.

    References:
        - [Child et al., 2019](https://arxiv.org/abs/1904.10509), section 4
    """

    @abstractmethod
    def mask(self, query_positions: Any, key_positions: Any) -> Any:
        """Tells which keys each query attends to, a causal mask apart.

        Args:
            query_positions: int tensor `(…, query_length)`.
            key_positions: int tensor `(…, key_length)`.

        Returns:
            Boolean tensor `(…, query_length, key_length)`, `True` = attend.
        """

    @abstractmethod
    def pays(self, length: int | None) -> bool:
        """Tells whether `attend` costs less than dense attention under `mask`.

        Args:
            length: int, number of positions; `None` = not known yet.

        Returns:
            Whether it does; `True` for an unknown length.
        """

    @abstractmethod
    def attend(
        self,
        attend: Callable[..., Any],
        query: Any,
        key: Any,
        value: Any,
        key_mask: Any = None,
        use_causal_mask: bool = False,
    ) -> Any:
        """Computes the self-attention of positions `0, …, length - 1` in blocks.

        Args:
            attend: `attend(query, key, value, query_positions, key_positions,
                key_mask)`, dense attention under `mask`, under the causal mask
                if there is one, and under `key_mask`. Each sequence comes cut
                into `rows` blocks of queries, each with the keys in its reach:
                `query (batch * rows, block, num_heads, key_dim)`, `key` and
                `value (batch * rows, window, …)`, int32 `query_positions
                (rows, block)` and `key_positions (rows, window)`, and boolean
                `key_mask (batch * rows, window)`, or `None`, `False` also
                where there is no key. It returns
                `(batch * rows, block, num_heads, value_dim)`.
            query: float tensor `(batch, length, num_heads, key_dim)`.
            key: float tensor `(batch, length, num_heads, key_dim)`.
            value: float tensor `(batch, length, num_heads, value_dim)`; keys
                and values may have fewer heads than the queries.
            key_mask: boolean tensor `(batch, length)`, `True` = attend.
            use_causal_mask: whether `attend` hides the keys after each query;
                most of them are then not even handed to it.

        Returns:
            Float tensor `(batch, length, num_heads, value_dim)`.
        """

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AttentionPattern":
        """Makes the pattern whose `get_config()` is `config`."""
        return cls(**config)
