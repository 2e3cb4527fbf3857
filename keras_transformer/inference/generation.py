"""From a user's texts or token ids to compiled searches and back."""

from typing import Any

import keras
import numpy as np

from keras_transformer.backend.compiling import compile_function
from keras_transformer.decoding import (
    BeamSearch,
    RelativeLength,
    Search,
    SearchResult,
)
from keras_transformer.inference.request import Request, check_request, check_seed
from keras_transformer.inference.token_ids import (
    check_rows,
    entries,
    pad_prefixes,
    pad_rows,
    power_of_two,
    token_rows,
)


def generate(
    model: Any,
    inputs: Any,
    search: Search | None = None,
    max_length: int | RelativeLength | None = None,
    batch_size: int = 64,
    return_scores: bool = False,
    *,
    return_alignments: bool = False,
    min_length: int | RelativeLength = 0,
    prefix: Any = None,
    seed: int | None = None,
) -> Any:
    """Decodes texts or token ids with the compiled search.

    The result of one input does not depend on the others. An empty text
    gives an empty text.

    Args:
        model: the `Seq2Seq`.
        inputs: a text or a list of texts, if the model has tokenizers; or
            token ids, each with its end token: a list of lists of ints, or
            an int array `(batch, source_length)` with padding.
        search: how to search; `BeamSearch()` (4 beams, length penalty 0.6)
            if `None`.
        max_length: int or `RelativeLength`, greatest output length in tokens,
            the end token included; 50 more than the source's if `None`.
        batch_size: int, inputs decoded together.
        return_scores: for texts, whether to return the scores as well.
        return_alignments: whether to return for each hypothesis an `Alignment` of
            its tokens with the input's; see `Seq2Seq.align`.
        min_length: int or `RelativeLength`, least output length likewise.
        prefix: what each output begins with: a text for a text; or one entry
            for each input, texts or token ids without end token, empty for
            none. The scores are those of the whole output.
        seed: int from -2**31 to 2**31 - 1, where `Sampling` starts; drawn at random
            if `None`, by NumPy, so that `keras.utils.set_random_seed` fixes it.

    Returns:
        For token ids a `SearchResult` of NumPy arrays. For texts a list of
        texts (for a single text, a text), or of lists of texts if the
        search returns several hypotheses. With `return_scores=True` a float32
        array of scores `(batch,)` or `(batch, num_hypotheses)` comes behind it,
        with `return_alignments=True` a list of `Alignment`s, or of lists of
        them, comes last: a tuple.

    Raises:
        ValueError: if a token id is not in the vocabulary, a source is
            longer than `max_source_length`, texts come to a model without
            tokenizers, an argument is out of its range, or alignments are asked
            for an input without a token.

    Example:

    ```python
    model.generate(["A man sleeps.", "Two dogs run."])
    model.generate("A man sleeps.", prefix="Ein Mann")
    model.generate([[17, 25, 3]], search=GreedySearch()).token_ids
    text, alignment = model.generate("A man sleeps.", return_alignments=True)
    ```
    """
    request = Request(search or BeamSearch(), max_length, min_length)
    wanted = return_scores, return_alignments
    return model._generator(inputs, request, prefix, seed, batch_size, *wanted)


class Generator:
    """Decodes with one model; keeps what it has compiled.

    Inputs are sorted by length and decoded in batches of few sizes: powers of two
    and, for the length, `length_buckets`. Few shapes are ever compiled.

    Args:
        model: a `Seq2Seq`.
    """

    def __init__(self, model: Any):
        self._model = model
        self._compiled: dict[Request, Any] = {}

    def __call__(
        self,
        inputs: Any,
        request: Request,
        prefix: Any,
        seed: int | None,
        batch_size: int,
        return_scores: bool,
        return_alignments: bool,
    ) -> Any:
        """Decodes; see `Seq2Seq.generate`."""
        check_request(request, batch_size)
        check_seed(seed)
        model = self._model
        single = isinstance(inputs, str | bytes)
        inputs = entries(inputs, "inputs")
        prefix = [prefix] if single and isinstance(prefix, str | bytes) else prefix
        are_texts = _are_texts(inputs, model)
        tokenizer = model.source_tokenizer if are_texts else None
        rows = token_rows(inputs, "inputs", tokenizer, model.pad_token_id)
        if return_alignments:
            _check_alignable(rows)
        prefixes = self.prefixes(prefix, rows, request)
        result = self._ids(rows, prefixes, request, seed, batch_size)
        outputs: list[Any] = [result]
        if are_texts:
            result = _nothing_of_nothing(result, rows, model.pad_token_id)
            outputs = [_best(self._texts(result).tolist())]
            if return_scores:
                outputs.append(_best(result.scores))
        if return_alignments:
            outputs.append(_best(self._alignments(rows, result, batch_size)))
        if single:
            outputs = [output[0] for output in outputs]
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def _texts(self, result: SearchResult) -> np.ndarray:
        count, hypotheses, length = result.token_ids.shape
        token_ids = result.token_ids.reshape(count * hypotheses, length)
        flat = self._model.target_tokenizer.detokenize(token_ids).numpy()
        flat = np.array([text.decode("utf-8") for text in flat], dtype=object)
        return flat.reshape(count, hypotheses)

    def _alignments(
        self, rows: list[list[int]], result: SearchResult, batch_size: int
    ) -> list[list[Any]]:
        sources, targets = [], []
        for row, *hypotheses in zip(
            rows, result.token_ids, result.lengths, strict=True
        ):
            for token_ids, length in zip(*hypotheses, strict=True):
                sources.append(row)
                targets.append(token_ids[:length].tolist())
        flat = self._model.align(sources, targets, batch_size=batch_size)
        size = result.lengths.shape[1]
        return [flat[i : i + size] for i in range(0, len(flat), size)]

    def prefixes(
        self, prefix: Any, rows: list[list[int]], request: Request
    ) -> list[list[int]]:
        """Makes the token ids that each output begins with, and checks them."""
        if prefix is None:
            return [[] for _ in rows]
        model = self._model
        tokenizer = model.target_tokenizer
        prefixes = token_rows(
            prefix, "prefix", tokenizer, model.pad_token_id, add_end=False
        )
        if len(prefixes) != len(rows):
            raise ValueError(
                "`prefix` must have one entry for each input; received "
                f"{len(prefixes)} prefixes and {len(rows)} inputs."
            )
        size, longest = model.target_vocabulary_size, model.max_target_length
        check_rows(prefixes, "prefix", "target", size, longest)
        for number, (row, source) in enumerate(zip(prefixes, rows, strict=True)):
            most = model.max_steps(len(source), request.max_length)
            if model.end_token_id in row or len(row) >= most:
                raise ValueError(
                    "`prefix` must be shorter than the greatest output length and "
                    f"without the end token; received {len(row)} tokens in row "
                    f"{number}, whose output has at most {most}: {row}."
                )
        return prefixes

    def _ids(
        self,
        rows: list[list[int]],
        prefixes: list[list[int]],
        request: Request,
        seed: int | None,
        batch_size: int,
    ) -> SearchResult:
        if not rows:
            return _no_result(request.search.num_hypotheses)
        model = self._model
        limit, pad = model.max_source_length, model.pad_token_id
        check_rows(rows, "inputs", "source", model.source_vocabulary_size, limit)
        compiled = self._compiled_search(request)
        seed = int(np.random.randint(2**31 - 1)) if seed is None else seed
        order = np.argsort([len(row) for row in rows], kind="stable")
        size = min(batch_size, power_of_two(len(rows)))
        results = []
        for start in range(0, len(rows), size):
            chosen = order[start : start + size]
            batch = pad_rows([rows[i] for i in chosen], size, limit, pad)
            begin = pad_prefixes([prefixes[i] for i in chosen], size, pad)
            arguments = (batch, begin, np.array(seed, "int32"))
            result = compiled(*map(keras.ops.convert_to_tensor, arguments))
            results.append(
                [keras.ops.convert_to_numpy(part)[: len(chosen)] for part in result]
            )
        return _join(results, np.argsort(order), pad)

    def _compiled_search(self, request: Request) -> Any:
        if request not in self._compiled:
            model = self._model

            def run(encoder_token_ids: Any, prefixes: Any, seed: Any) -> SearchResult:
                return model.search(
                    encoder_token_ids, *request, prefixes=prefixes, seed=seed
                )

            self._compiled[request] = compile_function(run, model)
        return self._compiled[request]


def _are_texts(inputs: Any, model: Any) -> bool:
    """Tells texts from token ids; nothing is what the model takes, but an int array."""
    if len(inputs) > 0:
        return any(isinstance(entry, str | bytes) for entry in inputs)
    are_ints = "int" in str(getattr(inputs, "dtype", ""))
    return not are_ints and model.source_tokenizer is not None


def _check_alignable(rows: list[list[int]]) -> None:
    if not all(rows):
        raise ValueError(
            "`inputs` must have a token each, the end token at least, to be aligned; "
            f"received none in row {rows.index([])}."
        )


def _nothing_of_nothing(
    result: SearchResult, rows: list[list[int]], pad_token_id: int
) -> SearchResult:
    """Gives an empty text, of which there is but the end token, an empty output."""
    empty = np.array([len(row) == 1 for row in rows], dtype=bool)[:, None]
    return SearchResult(
        token_ids=np.where(empty[..., None], np.int32(pad_token_id), result.token_ids),
        lengths=np.where(empty, np.int32(0), result.lengths),
        scores=np.where(empty, np.float32(0), result.scores),
    )


def _best(outputs: Any) -> Any:
    """Of lists or an array with one hypothesis an input, the hypotheses themselves."""
    if isinstance(outputs, np.ndarray):
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs
    return [row[0] if len(row) == 1 else row for row in outputs]


def _no_result(num_hypotheses: int) -> SearchResult:
    return SearchResult(
        token_ids=np.zeros((0, num_hypotheses, 0), "int32"),
        lengths=np.zeros((0, num_hypotheses), "int32"),
        scores=np.zeros((0, num_hypotheses), "float32"),
    )


def _join(
    results: list[list[np.ndarray]], order: np.ndarray, pad_token_id: int
) -> SearchResult:
    longest = max(int(lengths.max()) for _, lengths, _ in results)
    token_ids = [
        np.pad(
            ids[:, :, :longest],
            ((0, 0), (0, 0), (0, max(0, longest - ids.shape[2]))),
            constant_values=pad_token_id,
        )
        for ids, _, _ in results
    ]
    lengths = np.concatenate([lengths for _, lengths, _ in results])
    scores = np.concatenate([scores for _, _, scores in results])
    return SearchResult(np.concatenate(token_ids)[order], lengths[order], scores[order])
