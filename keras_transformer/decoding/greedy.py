"""Greedy search: the most probable token at every step."""

from dataclasses import dataclass
from typing import Any, ClassVar

from keras import ops

from keras_transformer.decoding.search import (
    Reorder,
    SearchResult,
    Step,
    restrict_logits,
)


@dataclass(frozen=True)
class GreedySearch:
    """Takes the most probable token at every step, until the end token.

    Its arguments and result are those of every `Search`; it gives one
    hypothesis a sentence, scored by the sum of its log-probabilities.

    Example:

    ```python
    texts = model.generate(["hello"], search=GreedySearch())
    ```
    """

    num_beams: ClassVar[int] = 1
    num_hypotheses: ClassVar[int] = 1

    def __call__(
        self,
        step: Step,
        reorder: Reorder,
        state: Any,
        limits: Any,
        max_length: Any,
        *,
        start_token_id: int,
        end_token_id: int,
        pad_token_id: int,
    ) -> SearchResult:
        """Searches; see `Search`."""
        batch = ops.shape(limits)[0]

        def running(index, tokens, token_ids, log_probs, finished, lengths, state):
            return ops.logical_and(
                index < max_length, ops.logical_not(ops.all(finished))
            )

        def advance(index, tokens, token_ids, log_probs, finished, lengths, state):
            logits, state = step(tokens, index, state)
            logits = ops.cast(logits, "float32")
            normalizer = ops.logsumexp(logits, axis=-1)
            logits = restrict_logits(logits, index, limits, end_token_id, pad_token_id)
            best = ops.cast(ops.argmax(logits, axis=-1), "int32")
            log_prob = ops.max(logits, axis=-1) - normalizer
            tokens = ops.where(finished, pad_token_id, best)
            token_ids = ops.slice_update(token_ids, (0, 0, index), tokens[:, :, None])
            log_probs = ops.where(finished, log_probs, log_probs + log_prob)
            lengths = ops.where(finished, lengths, index + 1)
            finished = ops.logical_or(finished, ops.equal(tokens, end_token_id))
            return index + 1, tokens, token_ids, log_probs, finished, lengths, state

        _, _, token_ids, log_probs, _, lengths, _ = ops.while_loop(
            running,
            advance,
            (
                ops.convert_to_tensor(0, "int32"),
                ops.full((batch, 1), start_token_id, "int32"),
                ops.full((batch, 1, max_length), pad_token_id, "int32"),
                ops.zeros((batch, 1), "float32"),
                ops.zeros((batch, 1), "bool"),
                ops.zeros((batch, 1), "int32"),
                state,
            ),
        )
        return SearchResult(token_ids, lengths, log_probs)
