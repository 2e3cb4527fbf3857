"""From a user's texts or token ids to compiled searches and back."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.backend.compiling import compile_function
from keras_transformer.decoding import Search, SearchResult

SMALLEST_LENGTH = 16


class Generator:
    """Decodes with one model; keeps what it has compiled.

    Inputs are sorted by length and decoded in batches whose two sizes are
    powers of two, so that few shapes are ever compiled.

    Args:
        model: a `Seq2Seq`.
    """

    def __init__(self, model: Any):
        self._model = model
        self._compiled: dict[tuple[Search, int | None], Any] = {}

    def __call__(
        self,
        inputs: Any,
        search: Search,
        max_length: int | None,
        batch_size: int,
        return_scores: bool,
    ) -> Any:
        """Decodes; see `Seq2Seq.generate`."""
        numbers = {"batch_size": batch_size, "max_length": max_length}
        for name, number in numbers.items():
            if number is not None and number < 1:
                raise ValueError(
                    f"`{name}` must be at least 1; received `{name}={number}`."
                )
        if isinstance(inputs, str):
            texts, scores = self._texts([inputs], search, max_length, batch_size)
            texts, scores = texts[0], scores[0]
        elif _are_texts(inputs, self._model):
            texts, scores = self._texts(inputs, search, max_length, batch_size)
        else:
            return self._ids(_rows(inputs, self._model), search, max_length, batch_size)
        return (texts, scores) if return_scores else texts

    def _texts(
        self,
        texts: Sequence[str],
        search: Search,
        max_length: int | None,
        batch_size: int,
    ) -> tuple[list[Any], np.ndarray]:
        source, target = self._model.source_tokenizer, self._model.target_tokenizer
        if source is None:
            raise ValueError(
                "`inputs` must be token ids for a model without tokenizers; received "
                "texts. Give the model `source_tokenizer` and `target_tokenizer`."
            )
        rows = source.tokenize(list(texts), add_end=True).to_list()
        result = self._ids(rows, search, max_length, batch_size)
        count, hypotheses, length = result.token_ids.shape
        token_ids = result.token_ids.reshape(count * hypotheses, length)
        flat = target.detokenize(token_ids).numpy()
        flat = np.array([text.decode("utf-8") for text in flat], dtype=object)
        outputs = flat.reshape(count, hypotheses)
        empty = np.array([len(row) == 1 for row in rows], dtype=bool)
        outputs[empty] = ""
        scores = np.where(empty[:, None], np.float32(0), result.scores)
        if hypotheses == 1:
            return outputs[:, 0].tolist(), scores[:, 0]
        return outputs.tolist(), scores

    def _ids(
        self,
        rows: list[list[int]],
        search: Search,
        max_length: int | None,
        batch_size: int,
    ) -> SearchResult:
        if not rows:
            return _no_result(search.num_hypotheses)
        _check_rows(rows, self._model)
        compiled = self._compiled_search(search, max_length)
        order = np.argsort([len(row) for row in rows], kind="stable")
        size = min(batch_size, _power_of_two(len(rows)))
        results = []
        for start in range(0, len(rows), size):
            chosen = [rows[i] for i in order[start : start + size]]
            batch = _pad(chosen, size, self._model)
            result = compiled(keras.ops.convert_to_tensor(batch))
            results.append(
                [keras.ops.convert_to_numpy(part)[: len(chosen)] for part in result]
            )
        return _join(results, np.argsort(order), self._model.pad_token_id)

    def _compiled_search(self, search: Search, max_length: int | None) -> Any:
        key = (search, max_length)
        if key not in self._compiled:
            model = self._model

            def run(encoder_token_ids: Any) -> SearchResult:
                return model.search(encoder_token_ids, search, max_length)

            self._compiled[key] = compile_function(run, model)
        return self._compiled[key]


def _are_texts(inputs: Any, model: Any) -> bool:
    """Tells texts from token ids; an empty list is what the model takes."""
    if len(inputs) > 0:
        return isinstance(inputs[0], (str, bytes))
    return isinstance(inputs, list) and model.source_tokenizer is not None


def _rows(inputs: Any, model: Any) -> list[list[int]]:
    """Makes lists of token ids, without padding, of what the user gave."""
    rows = [np.asarray(row) for row in inputs]
    for row in rows:
        if row.ndim != 1 or (row.size and not np.issubdtype(row.dtype, np.integer)):
            raise ValueError(
                "`inputs` must be texts, lists of int token ids or an int array "
                f"(batch, source_length); received a row {row!r}."
            )
    return [row[row != model.pad_token_id].tolist() for row in rows]


def _check_rows(rows: list[list[int]], model: Any) -> None:
    size, limit = model.source_vocabulary_size, model.max_source_length
    for number, row in enumerate(rows):
        if row and not 0 <= min(row) <= max(row) < size:
            raise ValueError(
                f"`inputs` must hold token ids from 0 to {size - 1} (the source "
                f"vocabulary has {size} entries); received "
                f"{[t for t in row if not 0 <= t < size]} in row {number}."
            )
        if limit is not None and len(row) > limit:
            raise ValueError(
                f"`inputs` must have at most `max_source_length={limit}` tokens each; "
                f"received {len(row)} tokens in row {number}. Shorten or split it, or "
                "build the model with a larger `max_source_length`."
            )


def _power_of_two(number: int, smallest: int = 1) -> int:
    return max(smallest, 1 << (max(number, 1) - 1).bit_length())


def _pad(rows: list[list[int]], batch: int, model: Any) -> np.ndarray:
    length = _power_of_two(max(map(len, rows)), SMALLEST_LENGTH)
    length = min(length, model.max_source_length or length)
    padded = np.full((batch, length), model.pad_token_id, "int32")
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded


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
