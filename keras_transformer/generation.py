"""From a user's texts or token ids to compiled searches and back."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_transformer.backend.compiling import compile_function
from keras_transformer.decoding import Search, SearchResult
from keras_transformer.token_ids import check_rows, pad_rows, power_of_two, token_rows


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
            rows = token_rows(inputs, "inputs", None, self._model.pad_token_id)
            return self._ids(rows, search, max_length, batch_size)
        return (texts, scores) if return_scores else texts

    def _texts(
        self,
        texts: Sequence[str],
        search: Search,
        max_length: int | None,
        batch_size: int,
    ) -> tuple[list[Any], np.ndarray]:
        model = self._model
        target = model.target_tokenizer
        rows = token_rows(texts, "inputs", model.source_tokenizer, model.pad_token_id)
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
        model = self._model
        limit = model.max_source_length
        check_rows(rows, "inputs", "source", model.source_vocabulary_size, limit)
        compiled = self._compiled_search(search, max_length)
        order = np.argsort([len(row) for row in rows], kind="stable")
        size = min(batch_size, power_of_two(len(rows)))
        results = []
        for start in range(0, len(rows), size):
            chosen = [rows[i] for i in order[start : start + size]]
            batch = pad_rows(chosen, size, limit, model.pad_token_id)
            result = compiled(keras.ops.convert_to_tensor(batch))
            results.append(
                [keras.ops.convert_to_numpy(part)[: len(chosen)] for part in result]
            )
        return _join(results, np.argsort(order), model.pad_token_id)

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
