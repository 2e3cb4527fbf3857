"""Texts or token ids to a compiled search, and its result back to texts."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import keras
import numpy as np
from keras import ops

from keras_transformer.backend.compiling import compile_function
from keras_transformer.decoding import (
    SearchResult,
)
from keras_transformer.decoding.loop import (
    check_finds_phrases,
    end_search,
    has_ended,
    mark_truncated,
)
from keras_transformer.decoding.search import SearchInputs, SearchState
from keras_transformer.inference.alignment import Alignment
from keras_transformer.inference.constraints import (
    Constraints,
    pad_phrases,
    phrase_rows,
)
from keras_transformer.inference.protocols import SequenceModel
from keras_transformer.inference.request import (
    Request,
    check_probabilities,
    check_request,
    check_seed,
    seed_or_random,
)
from keras_transformer.inference.sources import (
    SourceRows,
    batch_of_sources,
    batches_of_numbers,
    check_sources,
    source_lengths,
    source_rows,
)
from keras_transformer.inference.token_ids import (
    Rows,
    Sequences,
    as_entries,
    check_rows,
    is_text,
    pad_prefixes,
    pad_rows,
    token_rows,
)
from keras_transformer.types import Tensor

T = TypeVar("T")


class Generation(NamedTuple):
    """The outputs of a batch, a row for each input.

    Attributes:
        result: token ids, lengths and scores, as NumPy arrays.
        texts: lists of texts, a text for each hypothesis; `None` if the inputs are
            token ids, or arrays and the model has no tokenizer.
        alignments: lists of alignments, likewise; `None` if they are not requested.
    """

    result: SearchResult
    texts: list[list[str]] | None
    alignments: list[list[Alignment]] | None


class _CompiledSearch:
    """A search of one model in two compiled functions.

    Small batches with outputs of usual lengths need only the first, so that their
    compilation takes half of the time.

    Args:
        model: the model.
        request: the search and the lengths.
    """

    def __init__(self, model: SequenceModel, request: Request):
        self._model, self._request = model, request
        options = request._asdict()
        self._begin = compile_function(self._first_part, model)
        self._end = compile_function(self._last_part, model)
        # A search with phrases is two searches, the second for what the first lacks.
        self._all = compile_function(functools.partial(model.search, **options), model)

    def __call__(self, sources: Tensor, **named: Any) -> SearchResult:
        if "phrases" in named:
            return self._all(sources, **named)
        result, ended, *rest = self._begin(sources, **named)
        return result if ended else self._end(*rest)

    def _first_part(
        self, sources: Tensor, **named: Tensor
    ) -> tuple[SearchResult, Tensor, SearchInputs, SearchState]:
        model, request = self._model, self._request
        begin: Callable[..., tuple[SearchInputs, SearchState]] = functools.partial(
            model.begin_search, **request._asdict()
        )
        inputs, state = begin(sources, **named)
        result = mark_truncated(request.search.result(model, state), model, inputs)
        return result, has_ended(state), inputs, state

    def _last_part(self, inputs: SearchInputs, state: SearchState) -> SearchResult:
        model, (search, max_length, _) = self._model, self._request
        steps = model.longest_output(ops.shape(inputs.source_mask)[1], max_length)
        result = end_search(search, model, inputs, state, steps)
        return mark_truncated(result, model, inputs)


class Generator:
    """Decodes with one model, and caches the compiled searches.

    Inputs are sorted by length and decoded in batches of few shapes: the sizes are
    powers of two, the lengths are those of `length_buckets`.

    Args:
        model: the model.
    """

    def __init__(self, model: SequenceModel):
        self._model = model
        self._compiled: dict[Request, _CompiledSearch] = {}

    def generate(
        self,
        inputs: Sequences,
        request: Request,
        prefix: Sequences | None,
        seed: int | None,
        batch_size: int,
        return_alignments: bool,
        distinct_texts: bool = False,
        include_source: bool = False,
        constraints: Constraints | None = None,
    ) -> Generation:
        """Decodes a batch; see `GenerativeModel.generate`.

        Args:
            inputs: texts or token ids.
            request: the search and the lengths.
            prefix: the beginnings of the outputs, or `None`.
            seed: int or `None`.
            batch_size: int.
            return_alignments: whether to align the hypotheses with the inputs.
            distinct_texts: whether each text of an input is returned once.
            include_source: whether each text begins with its input.
            constraints: the phrases that must occur in the outputs, or `None`.

        Returns:
            A `Generation`.
        """
        check_request(request, batch_size)
        check_seed(seed)
        model, pad = self._model, self._model.pad_token_id
        are_arrays, tokenizer = model.source_spec is not None, model.source_tokenizer
        entries = inputs if are_arrays else as_entries(inputs, "inputs")
        are_texts = not are_arrays and self._are_texts(entries)
        gives_texts = are_texts or (are_arrays and model.target_tokenizer is not None)
        if distinct_texts and not gives_texts:
            raise ValueError(
                "`distinct_texts` must be `False` for token ids, whose hypotheses are "
                f"distinct; received `distinct_texts={distinct_texts}`. Pass texts."
            )
        rows = source_rows(model, entries, "inputs")
        if return_alignments and not are_arrays:
            _check_not_empty(rows)
        prefixes = self.prefix_rows(prefix, rows, request)
        phrases = self._phrase_rows(constraints, rows, prefixes, request)
        result = self._search(rows, prefixes, phrases, request, seed, batch_size)
        texts = alignments = None
        if are_texts:
            assert tokenizer is not None
            pairs = zip(entries, rows, strict=True)
            empty = [not tokenizer.has_words(text, row) for text, row in pairs]
            result = _empty_outputs(result, empty, pad)
        check_probabilities(np.asarray(result.scores))
        if gives_texts:
            texts = self._detokenize(result, rows if include_source else None)
            if distinct_texts:
                result, texts = _distinct(result, texts, pad)
        if return_alignments:
            alignments = self._align(rows, result, batch_size)
            if texts is not None:
                counts = map(len, texts)
                pairs = zip(alignments, counts, strict=True)
                alignments = [row[:count] for row, count in pairs]
        return Generation(result, texts, alignments)

    def prefix_rows(
        self, prefix: Sequences | None, rows: SourceRows, request: Request
    ) -> Rows:
        """Converts prefixes to lists of token ids, and checks them.

        Args:
            prefix: texts or token ids, one for each input, or `None`.
            rows: token ids of the inputs, or arrays.
            request: the search and the lengths.

        Returns:
            Lists of ints, one for each input.

        Raises:
            ValueError: if their number is not that of the inputs, a token id is not in
                the vocabulary, or one is too long.
        """
        if prefix is None:
            return [[] for _ in rows]
        model = self._model
        prefixes = token_rows(
            prefix, "prefix", model.target_tokenizer, model.pad_token_id, add_end=False
        )
        if len(prefixes) != len(rows):
            raise ValueError(
                "`prefix` must have one entry for each input; received "
                f"{len(prefixes)} prefixes and {len(rows)} inputs."
            )
        size, longest = model.target_vocabulary_size, model.max_target_length
        limit_name = model.length_arguments[1]
        check_rows(prefixes, "prefix", "target", size, longest, limit_name)
        lengths = source_lengths(model, rows)
        for number, (row, length) in enumerate(zip(prefixes, lengths, strict=True)):
            steps = model.max_steps(length, request.max_length)
            if model.end_token_id in row or len(row) >= steps:
                raise ValueError(
                    "`prefix` must be shorter than the maximum output length and "
                    f"without the end token; received {len(row)} tokens in row "
                    f"{number}, whose output has at most {steps}: {row}."
                )
        return prefixes

    def _phrase_rows(
        self,
        constraints: Constraints | None,
        rows: SourceRows,
        prefixes: Rows,
        request: Request,
    ) -> list[Rows]:
        """Converts the phrases of the inputs to lists of token ids."""
        if constraints is None:
            return [[] for _ in rows]
        model = self._model
        check_finds_phrases(request.search)
        lengths = source_lengths(model, rows)
        steps = (model.max_steps(length, request.max_length) for length in lengths)
        ends = int(getattr(model, "forces_end_token", True))
        pairs = zip(steps, prefixes, strict=True)
        room = [count - len(prefix) - ends for count, prefix in pairs]
        return phrase_rows(model, constraints, room)

    def _are_texts(self, entries: Any) -> bool:
        """Returns whether the inputs are texts; if there are none, by the model."""
        if len(entries) > 0:
            return any(map(is_text, entries))
        are_ints = "int" in str(getattr(entries, "dtype", ""))
        return not are_ints and self._model.source_tokenizer is not None

    def _search(
        self,
        rows: SourceRows,
        prefixes: Rows,
        phrases: list[Rows],
        request: Request,
        seed: int | None,
        batch_size: int,
    ) -> SearchResult:
        if not rows:
            return _no_results(request.search.num_hypotheses)
        model = self._model
        pad = model.pad_token_id
        check_sources(model, rows, "inputs")
        seed_value = seed_or_random(seed)
        results, order = [], []
        # Inputs without phrases need one search, so they have batches of their own.
        keys = [*zip(map(bool, phrases), map(len, rows), strict=True)]
        for numbers, size in batches_of_numbers(model, rows, keys, batch_size):
            order += numbers
            batch = batch_of_sources(model, [rows[i] for i in numbers], size)
            begin = pad_prefixes([prefixes[i] for i in numbers], size, pad)
            arguments: dict[str, Any] = {"prefixes": begin, "seed": seed_value}
            chosen = [phrases[i] for i in numbers]
            if any(chosen):
                arguments["phrases"] = pad_phrases(chosen, size, pad)
            tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, arguments)
            compiled = self._compile(request)
            found = compiled(keras.ops.convert_to_tensor(batch), **tensors)
            arrays = map(keras.ops.convert_to_numpy, found)
            results.append(SearchResult(*(array[: len(numbers)] for array in arrays)))
        return _concatenate(results, np.argsort(order), pad)

    def _compile(self, request: Request) -> _CompiledSearch:
        if request not in self._compiled:
            self._compiled[request] = _CompiledSearch(self._model, request)
        return self._compiled[request]

    def _detokenize(
        self, result: SearchResult, sources: Rows | None
    ) -> list[list[str]]:
        tokenizer = self._model.target_tokenizer
        assert tokenizer is not None  # `Seq2Seq` has both tokenizers or none
        token_ids = np.asarray(result.token_ids)
        count, hypotheses, length = token_ids.shape
        token_ids = token_ids.reshape(count * hypotheses, length)
        if sources is not None:
            pad = self._model.pad_token_id
            # The start token of a prompt can be the end token, which ends a text.
            special = tokenizer.start_token_id, tokenizer.end_token_id
            sources = [[t for t in row if t not in special] for row in sources]
            begin = pad_rows(sources, count, None, pad).repeat(hypotheses, axis=0)
            token_ids = np.concatenate([begin, token_ids], axis=1)
        texts = [text.decode() for text in tokenizer.detokenize(token_ids).numpy()]
        return _group(texts, hypotheses)

    def _align(
        self, rows: Rows, result: SearchResult, batch_size: int
    ) -> list[list[Alignment]]:
        sources, targets = [], []
        token_ids, lengths = np.asarray(result.token_ids), np.asarray(result.lengths)
        for row, hypotheses, sizes in zip(rows, token_ids, lengths, strict=True):
            for hypothesis, size in zip(hypotheses, sizes, strict=True):
                sources.append(row)
                targets.append(hypothesis[:size].tolist())
        alignments = self._model.align(sources, targets, batch_size=batch_size)
        return _group(alignments, lengths.shape[1])


def _check_not_empty(rows: Rows) -> None:
    if not all(rows):
        raise ValueError(
            "`inputs` must have at least one token each, the end token, to be aligned; "
            f"received no token in row {rows.index([])}."
        )


def _empty_outputs(
    result: SearchResult, are_empty: Sequence[bool], pad_token_id: int
) -> SearchResult:
    """Replaces the outputs of texts without words."""
    empty = np.array(are_empty, dtype=bool)[:, None]
    return SearchResult(
        token_ids=np.where(
            empty[..., None], np.int32(pad_token_id), np.asarray(result.token_ids)
        ),
        lengths=np.where(empty, np.int32(0), np.asarray(result.lengths)),
        scores=np.where(empty, np.float32(0), np.asarray(result.scores)),
        truncated=np.asarray(result.truncated) & ~empty,
    )


def _distinct(
    result: SearchResult, texts: list[list[str]], pad_token_id: int
) -> tuple[SearchResult, list[list[str]]]:
    """Keeps the best hypothesis of each text; the others have no tokens, as missing."""
    token_ids, lengths, scores, truncated = (np.array(part) for part in result)
    kept = []
    for number, row in enumerate(texts):
        found = scores[number] > -np.inf
        first = {text: i for i, text in reversed([*enumerate(row)]) if found[i]}
        places = sorted(first.values()) or [0]
        count = len(places)
        for part in (token_ids, lengths, scores, truncated):
            part[number, :count] = part[number, places]
        token_ids[number, count:] = pad_token_id
        lengths[number, count:] = 0
        scores[number, count:] = -np.inf
        truncated[number, count:] = False
        kept.append([row[place] for place in places])
    return SearchResult(token_ids, lengths, scores, truncated), kept


def _group(values: Sequence[T], size: int) -> list[list[T]]:
    return [list(values[i : i + size]) for i in range(0, len(values), size)]


def _no_results(num_hypotheses: int) -> SearchResult:
    return SearchResult(
        token_ids=np.zeros((0, num_hypotheses, 0), "int32"),
        lengths=np.zeros((0, num_hypotheses), "int32"),
        scores=np.zeros((0, num_hypotheses), "float32"),
        truncated=np.zeros((0, num_hypotheses), "bool"),
    )


def _concatenate(
    results: list[SearchResult], order: np.ndarray, pad_token_id: int
) -> SearchResult:
    """Joins the results of batches, and restores the order of the inputs."""
    longest = max(int(np.asarray(result.lengths).max()) for result in results)
    token_ids = []
    for result in results:
        missing = max(0, longest - result.token_ids.shape[2])
        padding = ((0, 0), (0, 0), (0, missing))
        cut = np.asarray(result.token_ids)[:, :, :longest]
        token_ids.append(np.pad(cut, padding, constant_values=pad_token_id))
    others = zip(*(result[1:] for result in results), strict=True)
    parts = [token_ids, *others]
    return SearchResult(*(np.concatenate(part)[order] for part in parts))
