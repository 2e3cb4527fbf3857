"""A model that is known by heart, for the tests of the searches."""

import contextlib
from typing import Any

import keras
import numpy as np
from keras import ops

PAD, END, START = 0, 1, 2
TOKENS = {"pad_token_id": PAD, "end_token_id": END, "start_token_id": START}


class ScriptedStep:
    """A step whose logits depend on every token so far, looked up in a table.

    Its state is the node of each beam's history in the tree of all histories, so it
    gives nonsense unless the search reorders the state as it reorders the tokens.

    Args:
        logits: array `(batch, num_nodes, vocabulary_size)`; node 0 is the history
            without tokens, `node * vocabulary_size + 1 + token` what follows a node.
    """

    def __init__(self, logits: np.ndarray):
        self.logits = np.asarray(logits, "float32")
        self.batch, self.num_nodes, self.vocabulary_size = self.logits.shape
        self.calls = 0

    def __getitem__(self, rows: slice) -> "ScriptedStep":
        return ScriptedStep(self.logits[rows])

    def search(
        self, search: Any, limits: Any, max_length: int | None = None, **tokens: int
    ) -> Any:
        """Returns the result of a search, its parts NumPy arrays."""
        limits = np.broadcast_to(np.asarray(limits, "int32"), (self.batch,))
        result = search(
            self.step,
            self.reorder,
            ops.zeros((self.batch, search.num_beams), "int32"),
            ops.convert_to_tensor(limits),
            int(limits.max()) if max_length is None else max_length,
            **{**TOKENS, **tokens},
        )
        return type(result)(*map(ops.convert_to_numpy, result))

    def step(self, token_ids: Any, index: Any, nodes: Any) -> tuple[Any, Any]:
        self.calls += 1
        nodes = ops.where(index > 0, nodes * self.vocabulary_size + 1 + token_ids, 0)
        nodes = ops.minimum(nodes, self.num_nodes - 1)
        logits = ops.take_along_axis(
            ops.convert_to_tensor(self.logits), nodes[:, :, None], axis=1
        )
        return logits, nodes

    def reorder(self, nodes: Any, parents: Any) -> Any:
        return ops.take_along_axis(nodes, parents, axis=1)

    def log_probs(self, row: int, history: tuple[int, ...]) -> np.ndarray:
        """The float64 log-probabilities of the token after a history."""
        logits = self.logits[row, self.node(history)].astype("float64")
        return logits - np.logaddexp.reduce(logits)

    def score(self, row: int, token_ids: Any) -> float:
        """The float64 log-probability of a sequence."""
        tokens = [int(token) for token in token_ids]
        return sum(
            self.log_probs(row, tuple(tokens[:index]))[token]
            for index, token in enumerate(tokens)
        )

    def node(self, history: tuple[int, ...]) -> int:
        node = 0
        for token in history:
            node = node * self.vocabulary_size + 1 + int(token)
        return node


def random_step(
    batch: int, vocabulary_size: int, max_length: int, seed: int = 5
) -> ScriptedStep:
    """A step whose logits are random after every history."""
    nodes = sum(vocabulary_size**length for length in range(max_length))
    rng = np.random.default_rng(seed)
    return ScriptedStep(rng.normal(0.0, 1.5, (batch, nodes, vocabulary_size)))


def written_step(
    *scripts: dict[tuple[int, ...], dict[int, float]],
    vocabulary_size: int = 5,
    max_length: int = 4,
    otherwise: float = 1e-6,
) -> ScriptedStep:
    """A step that follows one script a sentence.

    A script maps a history to the probabilities of the next tokens; the end token is
    certain after a history it does not name, and a token it does not name has the
    probability `otherwise`.
    """
    step = random_step(len(scripts), vocabulary_size, max_length)
    step.logits[:] = np.log(otherwise)
    step.logits[:, :, END] = 0.0
    for row, script in enumerate(scripts):
        for history, probabilities in script.items():
            node = step.logits[row, step.node(history)]
            node[:] = np.log(otherwise)
            for token, probability in probabilities.items():
                node[token] = np.log(probability)
    return step


def spell(*words: list[int], **options: Any) -> ScriptedStep:
    """A step that spells one word a sentence and then ends."""
    return written_step(
        *({tuple(word[:i]): {word[i]: 1.0} for i in range(len(word))} for word in words),
        **options,
    )


def step_by_step() -> contextlib.AbstractContextManager:
    """Where loops call a step once a step: JAX else calls it once, to trace it."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.disable_jit()
    return contextlib.nullcontext()
