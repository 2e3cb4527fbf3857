"""Greedy search: the most probable token at every step."""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from typing import ClassVar

from keras_transformer.decoding.independent_search import IndependentSearch
from keras_transformer.decoding.logits_processors import (
    LogitsProcessor,
    as_logits_processors,
)
from keras_transformer.decoding.search import SearchInputs
from keras_transformer.decoding.wide_top_k import argmax
from keras_transformer.types import Tensor, TokenIds
from keras_transformer_runtime.arguments import renamed_argument


@dataclass(frozen=True)
class GreedySearch(IndependentSearch):
    """Chooses the most probable token at every step, until the end token.

    It returns one hypothesis for each sequence. Its score is the sum of the
    log-probabilities of its tokens.

    Args:
        logits_processors: rules that change the scores of the next token
            (`LogitsProcessor`), in the order of their application.
        processors: deprecated name of `logits_processors`.

    Example:

    ```python
    texts = model.generate(["hello"], search=GreedySearch())
    ```
    """

    logits_processors: Sequence[LogitsProcessor] = ()
    processors: InitVar[Sequence[LogitsProcessor] | None] = None
    num_hypotheses: ClassVar[int] = 1
    needs_attention: ClassVar[bool] = False

    def __post_init__(self, processors: Sequence[LogitsProcessor] | None) -> None:
        given = renamed_argument(
            "processors", processors, "logits_processors", self.logits_processors
        )
        object.__setattr__(self, "logits_processors", as_logits_processors(given))

    def choose(self, logits: Tensor, index: Tensor, inputs: SearchInputs) -> TokenIds:
        """Chooses the most probable token; of equal tokens the one of the lowest id."""
        return argmax(logits)
