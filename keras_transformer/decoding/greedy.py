"""Greedy search: the most probable token at every step."""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from typing import Any, ClassVar

from keras_transformer.arguments import renamed_argument
from keras_transformer.decoding import walk
from keras_transformer.decoding.logits_processors import LogitsProcessor, as_rules
from keras_transformer.decoding.search import SearchResult, Sentences, StepModel
from keras_transformer.decoding.wide_top_k import highest


@dataclass(frozen=True)
class GreedySearch:
    """Takes the most probable token at every step, until the end token.

    It gives one hypothesis a sentence, scored by the sum of its log-probabilities.

    Args:
        logits_processors: rules that change the scores of the next token
            (`LogitsProcessor`), in their order.
        processors: deprecated name of `logits_processors`.

    Example:

    ```python
    texts = model.generate(["hello"], search=GreedySearch())
    ```
    """

    logits_processors: Sequence[LogitsProcessor] = ()
    processors: InitVar[Sequence[LogitsProcessor] | None] = None
    num_beams: ClassVar[int] = 1
    num_hypotheses: ClassVar[int] = 1
    needs_attention: ClassVar[bool] = False

    def __post_init__(self, processors: Sequence[LogitsProcessor] | None) -> None:
        rules = renamed_argument(
            "processors", processors, "logits_processors", self.logits_processors
        )
        object.__setattr__(self, "logits_processors", as_rules(rules))

    def start(
        self, model: StepModel, sentences: Sentences, state: Any, max_length: Any
    ) -> walk.Walk:
        """Makes the state before the first step; see `Search`."""
        return walk.start(model, sentences, state, max_length, self.num_beams)

    def advance(
        self, model: StepModel, sentences: Sentences, progress: walk.Walk
    ) -> walk.Walk:
        """Makes one step; see `Search`."""
        return walk.advance(
            model, sentences, progress, self.logits_processors, _highest
        )

    def result(self, model: StepModel, progress: walk.Walk) -> SearchResult:
        """Returns the hypotheses; see `Search`."""
        return walk.result(model, progress)


def _highest(logits: Any, index: Any) -> Any:
    return highest(logits)
