"""Texts or token ids to a compiled search, and its result back to texts."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from keras import ops

from keras_transformer.backend.compiling import compile_function
from keras_transformer.decoding import SearchInputs, SearchResult, SearchState
from keras_transformer.decoding.loop import (
    check_finds_phrases,
    first_part,
    mark_truncated,
    run_rest,
)
from keras_transformer.inference.alignment import Aligner, Alignment
from keras_transformer.inference.batch_search import (
    max_length_and_capacity,
    prepare_search,
    search_batch,
)
from keras_transformer.inference.constraints import (
    Constraints,
    pad_phrases,
    phrase_rows,
)
from keras_transformer.inference.request import (
    Request,
    check_probabilities,
    check_request,
    check_seed,
    seed_or_random,
)
from keras_transformer.inference.sequence_model import (
    SequenceModel,
    check_cross_attention,
)
from keras_transformer.inference.sources import (
    SourceRows,
    batch_indices,
    batch_of_sources,
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
from keras_transformer_runtime.engines.engine import warn_of_truncation
from keras_transformer_runtime.engines.generation_options import check_stop, cut_text

T = TypeVar("T")


class CompiledSearch(NamedTuple):
    """A search in compiled functions.

    The first part suffices for small batches with outputs of usual lengths, and
    compiles in half the time. A search with phrases is two searches, the second for
    what the first lacks.
    """

    first_part: Callable[..., tuple[SearchResult, Tensor, SearchInputs, SearchState]]
    rest: Callable[[SearchInputs, SearchState], SearchResult]
    with_phrases: Callable[..., SearchResult]


class Generator:
    """Decodes with one model, and caches the compiled searches.

    Inputs are sorted by length and decoded in batches of few shapes: the sizes are
    powers of two, the lengths are those of `length_buckets`.
    """

    def __init__(self, model: SequenceModel, aligner: Aligner):
        self._model = model
        self._aligner = aligner
        self._compiled: dict[Request, CompiledSearch] = {}

    def generate(
        self,
        inputs: Sequences,
        request: Request,
        *,
        batch_size: int = 64,
        return_scores: bool = False,
        return_truncated: bool = False,
        return_alignments: bool = False,
        prefix: Sequences | None = None,
        seed: int | None = None,
        distinct_texts: bool = False,
        constraints: Constraints | None = None,
        stop: Sequence[str] = (),
        include_source: bool = False,  # whether each text begins with its input
    ) -> Any:
        """Decodes; see `GenerativeModel.generate`."""
        if return_alignments:
            check_cross_attention(self._model, "`return_alignments`")
        check_request(request, batch_size)
        check_stop(stop)
        check_seed(seed)
        single = is_text(inputs)
        prefix = [prefix] if single and is_text(prefix) else prefix
        if single and constraints is not None:
            constraints = [constraints]
        entries, gives_texts = self._entries(inputs)
        _check_gives_texts(gives_texts, distinct_texts, stop, return_alignments)
        rows = source_rows(self._model, entries, "inputs")
        if return_alignments and self._model.source_spec is None:
            _check_not_empty(rows)
        prefixes = self.prefix_rows(prefix, rows, request)
        phrases = self._phrase_rows(constraints, rows, prefixes, request)
        result = self._search(rows, prefixes, phrases, request, seed, batch_size)
        if gives_texts:
            result = self._empty_outputs(result, entries, rows)
        check_probabilities(np.asarray(result.scores))
        texts = None
        if gives_texts:
            sources = rows if include_source else None
            texts = self._detokenize(result, sources)
            if stop:
                result, texts = self._cut(result, texts, stop, sources)
        if texts is not None and distinct_texts:
            result, texts = _distinct_results(result, texts, self._model.pad_token_id)
        one = request.search.num_hypotheses == 1
        outputs: list[Any] = [result if texts is None else _squeeze(texts, one)]
        if texts is not None and return_scores:
            outputs.append(result.scores[:, 0] if one else result.scores)
        if texts is not None and return_truncated:
            outputs.append(result.truncated[:, 0] if one else result.truncated)
        elif texts is not None and request.max_length is None:
            self._warn_of_truncation(result)
        if return_alignments:
            alignments = self._align(rows, result, batch_size)
            if texts is not None:  # Fewer, if the texts are distinct.
                pairs = zip(alignments, texts, strict=True)
                alignments = [row[: len(of_input)] for row, of_input in pairs]
            outputs.append(_squeeze(alignments, one))
        if single:
            outputs = [output[0] for output in outputs]
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def _warn_of_truncation(self, result: SearchResult) -> None:
        if self._model.forces_end_token:
            best = np.asarray(result.truncated)[:, 0]
            remedy = (
                "Pass a greater `max_length` to `generate`, or build the model with a "
                "greater `output_length_ratio`."
            )
            warn_of_truncation(int(best.sum()), len(best), remedy)

    def _entries(self, inputs: Sequences) -> tuple[Any, bool]:
        """Returns the inputs as a list, and whether their outputs are texts."""
        model = self._model
        if model.source_spec is not None:
            return inputs, model.target_tokenizer is not None
        entries = as_entries(inputs, "inputs")
        if len(entries) > 0:
            return entries, any(map(is_text, entries))
        are_ints = "int" in str(getattr(entries, "dtype", ""))
        return entries, not are_ints and model.source_tokenizer is not None

    def prefix_rows(
        self, prefix: Sequences | None, rows: SourceRows, request: Request
    ) -> Rows:
        """Converts one prefix for each input to a list of token ids, and checks it."""
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
        for index, (row, length) in enumerate(zip(prefixes, lengths, strict=True)):
            steps = model.max_output_lengths(length, request.max_length)
            if model.end_token_id in row or len(row) >= steps:
                raise ValueError(
                    "`prefix` must be shorter than the maximum output length and "
                    f"without the end token; received {len(row)} tokens in row "
                    f"{index}, whose output has at most {steps}: {row}."
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
        steps = (
            model.max_output_lengths(length, request.max_length) for length in lengths
        )
        ends = int(model.forces_end_token)
        pairs = zip(steps, prefixes, strict=True)
        room = [count - len(prefix) - ends for count, prefix in pairs]
        return phrase_rows(model, constraints, room)

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
        compiled = self._compile(request)
        seed_value = seed_or_random(seed)
        results, order = [], []
        # Inputs without phrases need one search, so they have batches of their own.
        keys = [*zip(map(bool, phrases), map(len, rows), strict=True)]
        for indices, size in batch_indices(model, rows, keys, batch_size):
            order += indices
            batch = batch_of_sources(model, [rows[i] for i in indices], size)
            begin = pad_prefixes([prefixes[i] for i in indices], size, pad)
            arguments: dict[str, Any] = {"prefixes": begin, "seed": seed_value}
            chosen = [phrases[i] for i in indices]
            if any(chosen):
                arguments["phrases"] = pad_phrases(chosen, size, pad)
            tensors = {name: ops.convert_to_tensor(x) for name, x in arguments.items()}
            sources = ops.convert_to_tensor(batch)
            if any(chosen):
                found = compiled.with_phrases(sources, **tensors)
            else:
                found, ended, inputs, now = compiled.first_part(sources, **tensors)
                found = found if ended else compiled.rest(inputs, now)
            arrays = map(ops.convert_to_numpy, found)
            results.append(SearchResult(*(array[: len(indices)] for array in arrays)))
        return _concatenate(results, np.argsort(order), pad)

    def _compile(self, request: Request) -> CompiledSearch:
        if request in self._compiled:
            return self._compiled[request]
        model, search = self._model, request.search

        def first(
            sources: Tensor, **named: Any
        ) -> tuple[SearchResult, Tensor, SearchInputs, SearchState]:
            prepared = prepare_search(model, sources, request, **named)
            inputs = prepared.inputs
            now = first_part(search, model, *prepared)
            result = mark_truncated(search.result(model, now), model, inputs)
            return result, ops.all(now.done), inputs, now

        def rest(inputs: SearchInputs, now: SearchState) -> SearchResult:
            source_length = ops.shape(inputs.source_mask)[1]
            sizes = max_length_and_capacity(model, source_length, request.max_length)
            end = run_rest(search, model, inputs, now, *sizes)
            return mark_truncated(search.result(model, end), model, inputs)

        def with_phrases(sources: Tensor, **named: Any) -> SearchResult:
            return search_batch(model, sources, request, **named)

        compiled = CompiledSearch(
            compile_function(first, model),
            compile_function(rest, model),
            compile_function(with_phrases, model),
        )
        self._compiled[request] = compiled
        return compiled

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

    def _cut(
        self,
        result: SearchResult,
        texts: list[list[str]],
        stop: Sequence[str],
        sources: Rows | None,
    ) -> tuple[SearchResult, list[list[str]]]:
        """Ends each output in front of the first text of `stop`."""
        starts = [0] * len(texts)
        if sources is not None:
            no_tokens = result._replace(token_ids=result.token_ids[:, :1, :0])
            begins = self._detokenize(no_tokens, sources)
            starts = [len(text) for [text] in begins]
        cut, truncated = [], np.array(result.truncated)
        for index, (row, start) in enumerate(zip(texts, starts, strict=True)):
            pairs = [cut_text(text, stop, start) for text in row]
            cut.append([text for text, _ in pairs])
            truncated[index] &= [not has_ended for _, has_ended in pairs]
        return result._replace(truncated=truncated), cut

    def _empty_outputs(
        self, result: SearchResult, entries: Sequence[Any], rows: Rows
    ) -> SearchResult:
        """Replaces the outputs of texts without words by empty texts."""
        tokenizer = self._model.source_tokenizer
        if tokenizer is None or self._model.source_spec is not None:
            return result
        pairs = zip(entries, rows, strict=True)
        empty = np.array([not tokenizer.has_words(*pair) for pair in pairs], bool)
        empty, pad = empty[:, None], np.int32(self._model.pad_token_id)
        return SearchResult(
            np.where(empty[..., None], pad, np.asarray(result.token_ids)),
            lengths=np.where(empty, np.int32(0), np.asarray(result.lengths)),
            scores=np.where(empty, np.float32(0), np.asarray(result.scores)),
            truncated=np.asarray(result.truncated) & ~empty,
        )

    def _align(
        self, rows: Rows, result: SearchResult, batch_size: int
    ) -> list[list[Alignment]]:
        sources, targets = [], []
        token_ids, lengths = np.asarray(result.token_ids), np.asarray(result.lengths)
        for row, hypotheses, sizes in zip(rows, token_ids, lengths, strict=True):
            for hypothesis, size in zip(hypotheses, sizes, strict=True):
                sources.append(row)
                targets.append(hypothesis[:size].tolist())
        alignments = self._aligner.align(sources, targets, None, batch_size)
        return _group(alignments, lengths.shape[1])


def _check_not_empty(rows: Rows) -> None:
    if not all(rows):
        raise ValueError(
            "`inputs` must have at least one token each, the end token, to be aligned; "
            f"received no token in row {rows.index([])}."
        )


def _check_gives_texts(
    gives_texts: bool, distinct_texts: bool, stop: Sequence[str], has_alignments: bool
) -> None:
    """Raises `ValueError` if an option requires outputs that are texts."""
    if distinct_texts and not gives_texts:
        raise ValueError(
            "`distinct_texts` must be `False` for token ids, whose hypotheses are "
            f"distinct; received `distinct_texts={distinct_texts}`. Pass texts."
        )
    if stop and (has_alignments or not gives_texts):
        received = "`return_alignments=True`" if gives_texts else "token ids"
        raise ValueError(
            "`stop` must be given for texts without alignments, since it cuts texts "
            f"and not tokens; received `stop={stop!r}` and {received}. Remove one."
        )


def _distinct_results(
    result: SearchResult, texts: list[list[str]], pad_token_id: int
) -> tuple[SearchResult, list[list[str]]]:
    """Keeps the best hypothesis of each text; the others have no tokens, as missing."""
    token_ids, lengths, scores, truncated = (np.array(part) for part in result)
    kept = []
    for index, row in enumerate(texts):
        found = scores[index] > -np.inf
        first = {text: i for i, text in reversed([*enumerate(row)]) if found[i]}
        places = sorted(first.values()) or [0]
        count = len(places)
        for part in (token_ids, lengths, scores, truncated):
            part[index, :count] = part[index, places]
        token_ids[index, count:] = pad_token_id
        lengths[index, count:] = 0
        scores[index, count:] = -np.inf
        truncated[index, count:] = False
        kept.append([row[place] for place in places])
    return SearchResult(token_ids, lengths, scores, truncated), kept


def _squeeze(rows: list[list[T]], one: bool) -> list[Any]:
    """Replaces the lists with the hypothesis if the search returns one."""
    return [row[0] if one else row for row in rows]


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
