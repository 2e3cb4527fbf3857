"""Greedy search: the most probable token at every step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from keras_transformer.decoding import walk
from keras_transformer.decoding.processors import LogitsProcessor, as_rules
from keras_transformer.decoding.search import SearchResult, Sentences, StepModel
from keras_transformer.decoding.wide_top_k import highest


@dataclass(frozen=True)
class GreedySearch:
    """Takes the most probable token at every step, until the end token.

    It gives one hypothesis a sentence, scored by the sum of its log-probabilities.

    Args:
        processors: rules for what may come next (`LogitsProcessor`).

    Example:

    ```python
    texts = model.generate(["hello"], search=GreedySearch())
    ```
    """

    processors: Sequence[LogitsProcessor] = ()
    num_beams: ClassVar[int] = 1
    num_hypotheses: ClassVar[int] = 1
    needs_attention: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "processors", as_rules(self.processors))

    def start(
        self, model: StepModel, sentences: Sentences, state: Any, max_length: Any
    ) -> walk.Walk:
        """Makes the state before the first step; see `Search`."""
        return walk.start(model, sentences, state, max_length, self.num_beams)

    def advance(
        self, model: StepModel, sentences: Sentences, progress: walk.Walk
    ) -> walk.Walk:
        """Makes one step; see `Search`."""
        return walk.advance(model, sentences, progress, self.processors, _highest)

    def result(self, model: StepModel, progress: walk.Walk) -> SearchResult:
        """Returns the hypotheses; see `Search`."""
        return walk.result(model, progress)


def _highest(logits: Any, index: Any) -> Any:
    return highest(logits)
