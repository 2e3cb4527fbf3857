"""A model that is known by heart, for the tests of the searches."""

import functools
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.decoding import (
    DecodingModel,
    SearchInputs,
    StateAxes,
    run_search,
)

PAD, END, START = 0, 1, 2
TOKENS = {"pad_token_id": PAD, "end_token_id": END, "start_token_id": START}

_calls: list[int] = []  # the sentences of each step of the search that runs


class ScriptedStep:
    """A step whose logits depend on every token so far, looked up in a table.

    Its state is the node of each beam's history in the tree of all histories, so it
    gives nonsense unless the search reorders the state as it reorders the tokens.

    Args:
        logits: array `(batch, num_nodes, vocabulary_size)`; node 0 is the history
            without tokens, `node * vocabulary_size + 1 + token` what follows a node.
    """

    def __init__(self, logits: np.ndarray):
        self.logits = np.array(logits, "float32")
        self.batch, _, self.vocabulary_size = self.logits.shape
        self.calls: list[int] = []

    def __getitem__(self, rows: Any) -> "ScriptedStep":
        return ScriptedStep(self.logits[rows])

    def search(
        self,
        search: Any,
        limits: Any,
        max_length: int | None = None,
        min_lengths: Any = 0,
        prefixes: Any = None,
        attention: Any = None,
        seed: int = 0,
        room: int | None = None,
        phrases: Any = None,
        **tokens: int,
    ) -> Any:
        """Returns the result of a search, its parts NumPy arrays.

        `calls` then has the number of sentences in each step.
        `attention` is `(batch, vocabulary_size, source_length)`, what each newest
        token attends to. `phrases` has the phrases of each sentence.
        """
        limits = np.broadcast_to(np.asarray(limits, "int32"), (self.batch,))
        max_length = int(limits.max()) if max_length is None else max_length
        tokens = {**TOKENS, **tokens}
        compiled = _compiled(search, max_length, room, tuple(tokens.items()))
        if prefixes is None:
            prefixes = np.zeros((self.batch, 0), "int32")
        if attention is None:
            attention = np.ones((self.batch, self.vocabulary_size, 1))
        inputs = SearchInputs(
            limits=limits,
            min_lengths=np.broadcast_to(np.asarray(min_lengths, "int32"), limits.shape),
            prefixes=np.asarray(prefixes, "int32"),
            source_mask=np.any(attention > 0, axis=1),
            keys=(1000 * self.logits[:, 0].sum(axis=1)).astype("int32") + seed,
            phrases=padded(phrases or [[]] * self.batch),
        )
        tensors = map(ops.convert_to_tensor, inputs)
        attention = ops.convert_to_tensor(np.asarray(attention, "float32"))
        table = ops.convert_to_tensor(self.logits)
        _calls.clear()
        result = compiled(table, attention, SearchInputs(*tensors))
        result = type(result)(*map(ops.convert_to_numpy, result))
        self.calls = list(_calls)
        return result

    def states(self, search: Any, max_length: int) -> list[Any]:
        """Returns the state of a search after each step, for the first sentence."""
        model = ScriptedModel(**TOKENS)
        inputs, state = self[:1].inputs_and_state(search, [max_length])
        now, states = search.start(model, inputs, state, max_length), []
        while not ops.convert_to_numpy(now.done).all():
            now = search.advance(model, inputs, now)
            states.append(now)
        return states

    def inputs_and_state(self, search: Any, limits: Any) -> tuple[Any, Any]:
        """The constraints of a search, and the state of the model before it."""
        inputs = SearchInputs.of_batch(self.batch, max(limits))
        keys = (1000 * self.logits[:, 0].sum(axis=1)).astype("int32")
        limits = ops.convert_to_tensor(np.asarray(limits, "int32"))
        mask = ops.ones((self.batch, 1), "bool")
        state = {
            "nodes": ops.zeros((self.batch, search.num_beams), "int32"),
            "table": ops.convert_to_tensor(self.logits),
            "attends": ops.ones((self.batch, self.vocabulary_size, 1)),
            "attention": ops.ones((self.batch, search.num_beams, 1)),
        }
        keys = ops.convert_to_tensor(keys)
        return inputs._replace(limits=limits, source_mask=mask, keys=keys), state

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


def padded(phrases: list[list[Any]]) -> np.ndarray:
    """The phrases of each sentence as an array; no phrase has more than 4 tokens."""
    array = np.full((len(phrases), max(map(len, phrases)), 4), PAD, "int32")
    for row, entry in zip(array, phrases, strict=True):
        for phrase, tokens in zip(row, entry, strict=False):
            phrase[: len(tokens)] = tokens
    return array


@functools.cache
def _compiled(search: Any, max_length: int, room: int | None, tokens: tuple) -> Any:
    model = ScriptedModel(**dict(tokens))

    def search_table(table: Any, attention: Any, inputs: Any) -> Any:
        nodes = ops.zeros((table.shape[0], search.num_beams), "int32")
        state = {"nodes": nodes, "table": table, "attends": attention}
        seen = ops.shape(attention)[2]
        state["attention"] = ops.zeros((*nodes.shape, seen), "float32")
        return run_search(search, model, inputs, state, max_length, room)

    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(search_table)
    return search_table


class ScriptedModel(DecodingModel):
    """The model of a `ScriptedStep`, whose table is part of the state."""

    def __init__(self, **tokens: int):
        self.pad_token_id = tokens["pad_token_id"]
        self.end_token_id = tokens["end_token_id"]
        self.start_token_id = tokens["start_token_id"]

    def decode_step(
        self, token_ids: Any, index: Any, state: dict[str, Any]
    ) -> tuple[Any, Any]:
        _note_call(token_ids.shape[0])
        _, num_nodes, vocabulary_size = state["table"].shape
        children = state["nodes"] * vocabulary_size + 1 + token_ids
        nodes = ops.where(index > 0, ops.minimum(children, num_nodes - 1), 0)
        logits = ops.take_along_axis(state["table"], nodes[:, :, None], axis=1)
        attention = ops.take_along_axis(state["attends"], token_ids[:, :, None], axis=1)
        return logits, {**state, "nodes": nodes, "attention": attention}

    def state_axes(self, state: dict[str, Any]) -> dict[str, Any]:
        kinds = dict.fromkeys(state, StateAxes())
        return {**kinds, "nodes": StateAxes(has_beams=True)}


def _note_call(sentences: int) -> None:
    """JAX calls a step once, to trace it, but a callback whenever it runs."""
    if keras.backend.backend() == "jax":
        import jax

        jax.debug.callback(lambda: _calls.append(sentences), ordered=True)
    else:
        _calls.append(sentences)


def random_step(
    batch: int, vocabulary_size: int = 5, max_length: int = 4, seed: int = 5
) -> ScriptedStep:
    """A step whose logits are random after every history."""
    nodes = sum(vocabulary_size**length for length in range(max_length))
    rng = np.random.default_rng(seed)
    return ScriptedStep(rng.normal(0.0, 1.5, (batch, nodes, vocabulary_size)))


def written_step(
    *scripts: dict[tuple[int, ...], dict[int, float]], otherwise: float = 1e-6
) -> ScriptedStep:
    """A step that follows one script a sentence.

    A script maps a history to the probabilities of the next tokens, which sum to 1;
    the others have the probability `otherwise`. After a history it does not name,
    the end token is certain.
    """
    step = random_step(len(scripts))
    step.logits[:] = np.log(otherwise)
    step.logits[:, :, END] = 0.0
    for row, script in enumerate(scripts):
        for history, probabilities in script.items():
            node = step.logits[row, step.node(history)]
            node[:] = np.log(otherwise)
            for token, probability in probabilities.items():
                node[token] = np.log(probability)
    return step


def spell(*words: list[int], otherwise: float = 1e-6) -> ScriptedStep:
    """A step that spells one word a sentence and then ends."""
    scripts = [
        {tuple(word[:index]): {token: 1.0} for index, token in enumerate(word)}
        for word in words
    ]
    return written_step(*scripts, otherwise=otherwise)
