"""A search for one input, step by step: streams of tokens and search trees."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.backend.compiling import compile_function
from keras_transformer.decoding import (
    BeamSearch,
    SearchInputs,
    SearchResult,
    SearchState,
)
from keras_transformer.decoding.beam_state import BeamState
from keras_transformer.decoding.independent_search import IndependentState
from keras_transformer.inference.batch_search import prepare_search
from keras_transformer.inference.generation import Generator
from keras_transformer.inference.request import (
    Request,
    check_probabilities,
    check_request,
    check_seed,
    seed_or_random,
)
from keras_transformer.inference.sequence_model import SequenceModel
from keras_transformer.inference.sources import (
    batch_of_sources,
    check_sources,
    source_rows,
)
from keras_transformer.inference.token_ids import (
    Sequences,
    as_entries,
    is_text,
    pad_prefixes,
)
from keras_transformer.types import Tensor, TokenIds
from keras_transformer_runtime.engines.generation_options import (
    REPLACEMENT,
    check_stop,
    cut_pieces,
)

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


class SearchTree(NamedTuple):
    """The hypotheses of a beam search, which `plotting.plot_search_tree` draws.

    Attributes:
        paths: list of tuples, the tokens of each hypothesis that the search kept at
            some step, as texts if the input is a text. Finished hypotheses have the
            end token.
        scores: list of floats, one for each path: the log-probability of an
            unfinished hypothesis, the score of a finished one.
        best: list of ints, the indices of the paths of the result, best first.
    """

    paths: list[tuple[int, ...]] | list[tuple[str, ...]]
    scores: list[float]
    best: list[int]


class Stepper:
    """Searches for one output step by step, and caches the compiled steps."""

    def __init__(self, model: SequenceModel, generator: Generator):
        self._model = model
        self._generator = generator
        self._compiled: dict[Request, tuple[Callable[..., Any], ...]] = {}

    def stream(
        self,
        inputs: Sequences,
        request: Request,
        prefix: Sequences | None,
        seed: int | None,
        stop: Sequence[str] = (),
    ) -> Iterator[Any]:
        """Yields the tokens of one output; see `GenerativeModel.stream`."""
        check_stop(stop)
        states = self.steps(inputs, request, prefix, seed)
        tokens = self._final_tokens(request, states)
        tokenizer = self._model.target_tokenizer
        if not self._gives_text(inputs) or tokenizer is None:
            if stop:
                raise ValueError(
                    "`stop` must be given for a text, since it cuts texts and not "
                    f"tokens; received `stop={stop!r}` and token ids. Remove it."
                )
            return tokens
        if self._is_empty(inputs):
            return iter(())
        return cut_pieces(_pieces(tokens, tokenizer), stop)

    def _final_tokens(self, request: Request, states: Iterator[Any]) -> Iterator[int]:
        """Yields each token as soon as all hypotheses that can win agree on it."""
        count, state = 0, None
        for state in states:
            agreed = os.path.commonprefix(_possible_outputs(state))
            yield from agreed[count:]
            count = max(count, len(agreed))
        if state is not None:
            result = request.search.result(self._model, state)
            check_probabilities(ops.convert_to_numpy(result.scores))
            token_ids, lengths = (ops.convert_to_numpy(x)[0, 0] for x in result[:2])
            yield from token_ids[count:lengths].tolist()

    def search_tree(
        self, inputs: Sequences, request: Request, prefix: Sequences | None
    ) -> SearchTree:
        """Returns the hypotheses of a search; see `GenerativeModel.search_tree`."""
        search, model = request.search, self._model
        if not isinstance(search, BeamSearch):
            raise ValueError(
                "`search` must be a `BeamSearch`, since other searches have no tree; "
                f"received `search={search}`."
            )
        states = self.steps(inputs, request, prefix, seed=0)
        if self._is_empty(inputs):
            return SearchTree([], [], [])
        scores: dict[tuple[int, ...], float] = {}
        finished: dict[tuple[int, ...], float] = {}
        for state in states:
            scores |= _unfinished_paths(state)
            result = search.result(model, state)
            check_probabilities(ops.convert_to_numpy(result.scores))
            finished = _finished_paths(result)
            scores |= finished
        paths = list(scores)
        best = [paths.index(path) for path in finished]
        named: list[tuple[Any, ...]] = [*paths]
        if self._gives_text(inputs) and model.target_tokenizer is not None:
            vocabulary = dict(enumerate(model.target_tokenizer.get_vocabulary()))
            unknown = vocabulary[model.target_tokenizer.unknown_token_id]
            named = [tuple(vocabulary.get(i, unknown) for i in path) for path in paths]
        return SearchTree(named, list(scores.values()), best)

    def steps(
        self,
        inputs: Sequences,
        request: Request,
        prefix: Sequences | None,
        seed: int | None,
    ) -> Iterator[Any]:
        """Checks the arguments, and returns the `SearchState` after each step."""
        check_request(request)
        check_seed(seed)
        model = self._model
        rows = source_rows(model, [inputs], "inputs")
        check_sources(model, rows, "inputs")
        given = None if prefix is None else [prefix]
        prefixes = self._generator.prefix_rows(given, rows, request)
        arguments = (
            batch_of_sources(model, rows, 1),
            pad_prefixes(prefixes, 1, model.pad_token_id),
            seed_or_random(seed),
        )
        return self._run(request, arguments)

    def _run(
        self, request: Request, arguments: Iterable[np.ndarray | np.int32]
    ) -> Iterator[Any]:
        if request not in self._compiled:
            self._compiled[request] = self._compile(request)
        start, advance = self._compiled[request]
        inputs, state = start(*map(ops.convert_to_tensor, arguments))
        while not ops.convert_to_numpy(state.done).all():
            state = advance(inputs, state)
            yield state

    def _compile(self, request: Request) -> tuple[Callable[..., Any], ...]:
        model, search = self._model, request.search

        def start(
            token_ids: TokenIds, prefixes: TokenIds, seed: Tensor
        ) -> tuple[SearchInputs, SearchState]:
            inputs, state, max_length, _ = prepare_search(
                model, token_ids, request, prefixes, seed, full_capacity=True
            )
            return inputs, search.start(model, inputs, state, max_length)

        def advance(inputs: SearchInputs, state: SearchState) -> SearchState:
            return search.advance(model, inputs, state)

        return compile_function(start, model), compile_function(advance, model)

    def _gives_text(self, inputs: object) -> bool:
        """Returns whether the output of an input is a text, given a tokenizer."""
        return self._model.source_spec is not None or is_text(inputs)

    def _is_empty(self, inputs: Sequences) -> bool:
        """Returns whether an input is a text without words, whose output is empty."""
        tokenizer = self._model.source_tokenizer
        if not is_text(inputs) or tokenizer is None:
            return False
        [text] = as_entries(inputs, "inputs")
        return not tokenizer.has_words(text, tokenizer.tokenize([text]).to_list()[0])


def _pieces(tokens: Iterator[int], tokenizer: "Tokenizer") -> Iterator[str]:
    """Yields the text of each token, once its last character is complete."""
    # The end of an output yields an incomplete character as well.
    token_ids: list[int] = []
    text = yielded = ""
    for token in tokens:
        token_ids.append(token)
        text = tokenizer.detokenize([token_ids]).numpy()[0].decode("utf-8", "replace")
        if text.startswith(yielded) and not text.endswith(REPLACEMENT):
            if len(text) > len(yielded):
                yield text[len(yielded) :]
            yielded = text
    if text.startswith(yielded) and len(text) > len(yielded):
        yield text[len(yielded) :]


def _possible_outputs(state: BeamState | IndependentState) -> list[list[int]]:
    """Returns the hypotheses that the best output is equal to or begins with."""
    token_ids = ops.convert_to_numpy(state.token_ids)[0].tolist()
    log_probs = ops.convert_to_numpy(state.log_probs)[0].tolist()
    lengths = [int(ops.convert_to_numpy(state.index))] * len(token_ids)
    if isinstance(state, IndependentState):
        lengths = ops.convert_to_numpy(state.lengths)[0].tolist()
    rows = [
        row[:length]
        for row, length, log_prob in zip(token_ids, lengths, log_probs, strict=True)
        if log_prob > -np.inf
    ]
    if isinstance(state, IndependentState):
        return rows
    scores = ops.convert_to_numpy(state.finished_scores)[0]
    best = scores.argmax()  # not the first if there are groups of beams
    if scores[best] > -np.inf:
        tokens = ops.convert_to_numpy(state.finished_ids)[0, best]
        length = ops.convert_to_numpy(state.finished_lengths)[0, best]
        rows.append(tokens[:length].tolist())
    return rows


def _unfinished_paths(state: BeamState) -> dict[tuple[int, ...], float]:
    length = int(ops.convert_to_numpy(state.index))
    rows = ops.convert_to_numpy(state.token_ids)[0, :, :length].tolist()
    scores = ops.convert_to_numpy(state.log_probs)[0].tolist()
    return _found_paths(rows, scores)


def _finished_paths(result: SearchResult) -> dict[tuple[int, ...], float]:
    token_ids, lengths, scores = (ops.convert_to_numpy(part)[0] for part in result[:3])
    rows = [
        row[:length].tolist() for row, length in zip(token_ids, lengths, strict=True)
    ]
    return _found_paths(rows, scores.tolist())


def _found_paths(
    rows: list[list[int]], scores: list[float]
) -> dict[tuple[int, ...], float]:
    """Removes the entries without a hypothesis, whose score is `-inf`."""
    pairs = zip(map(tuple, rows), scores, strict=True)
    return {path: score for path, score in pairs if score > -np.inf}
