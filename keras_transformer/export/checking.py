"""Checks of a model before its export, and of the export against the model."""

import contextlib
import json
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_transformer.backend.compiling import compile_function
from keras_transformer.decoding import OutputLength, Search, SearchResult
from keras_transformer.export.model_support import (
    array_input,
    source_kind,
    tokenizers_of,
)
from keras_transformer.export.tensorflow_process import run_python
from keras_transformer.inference.batch_search import search_batch
from keras_transformer.inference.request import Request, check_probabilities
from keras_transformer.models import GenerativeModel
from keras_transformer.text import Tokenizer
from keras_transformer.types import Tensor

# Maximum differences of log-probabilities per token; the second, of rounded weights.
SCORE_TOLERANCE = 1e-4
ROUNDING_TOLERANCE = 0.5
MAX_CHECKED_LENGTH = 64
SEED = 1
ARRAY_LENGTH = 16  # of arrays whose sizes a model leaves open

# Texts, rows of token ids, or an array `(batch, ...)`.
Sources: TypeAlias = Sequence[str] | Sequence[list[int]] | np.ndarray

# Outputs of a signature by name, a list for each source.
Outputs: TypeAlias = dict[str, list[Any]]

# Calls a signature; an input is a list or the path of a file.
_CALL_SIGNATURE = """
import json, sys
import numpy as np
import tensorflow as tf
import tensorflow_text
folder, name, inputs = json.load(sys.stdin)
signature = tf.saved_model.load(folder).signatures[name]
arrays = {key: np.load(x) if isinstance(x, str) else x for key, x in inputs.items()}
outputs = signature(**{key: tf.constant(x) for key, x in arrays.items()})
assert "keras_transformer" not in sys.modules
found = {key: value.numpy().tolist() for key, value in outputs.items()}
print(json.dumps(found, default=bytes.decode))
"""


def check_weights(model: keras.Model) -> None:
    """Raises `FloatingPointError` for a NaN or `inf`; a bias can have `-inf`."""
    for weight in model.weights:
        if not np.all(ops.convert_to_numpy(weight) < np.inf):
            raise FloatingPointError(
                f"The weights of the model must be finite; `{weight.path}` has NaN or "
                "infinity. Nothing was written."
            )


def sample_texts(model: GenerativeModel) -> list[str]:
    """Creates texts from tokens of the whole source vocabulary, and an empty text.

    There are up to nine, of at most `max_source_length` tokens.
    """
    return texts_of_vocabulary(tokenizers_of(model).source, model.max_source_length)


def texts_of_vocabulary(tokenizer: Tokenizer, limit: int | None) -> list[str]:
    """Creates texts of at most `limit` tokens with their end; see `sample_texts`."""
    length = max(1, min(6, (limit or 12) // 2))
    ids = np.linspace(4, tokenizer.vocabulary_size - 1, 8 * 6).astype("int32")
    texts = tokenizer.detokenize(ids.reshape(8, 6)[:, :length])
    # A byte of a character becomes a character of three bytes.
    rows = tokenizer.tokenize(texts, add_end=True).to_list()
    fits = [len(row) <= (limit or len(row)) for row in rows]
    pairs = zip(texts.numpy().tolist(), fits, strict=True)
    return [text.decode("utf-8") for text, short in pairs if short] + [""]


def sample_tokens(model: GenerativeModel) -> list[list[int]]:
    """Creates rows of token ids of the whole source vocabulary; see `sample_texts`."""
    if model.source_tokenizer is not None:
        texts = sample_texts(model)
        rows: list[list[int]] = model.source_tokenizer.tokenize(
            texts, add_end=True
        ).to_list()
        return rows
    special = (model.pad_token_id, model.start_token_id, model.end_token_id)
    ids = [n for n in range(model.source_vocabulary_size) if n not in special]
    length = max(1, min(6, (model.max_source_length or 12) // 2))
    places = np.linspace(0, len(ids) - 1, 8 * length).astype(int).reshape(8, length)
    end = [] if model.empty_source else [model.end_token_id]
    return [[*(ids[place] for place in row), *end] for row in places]


def checked_length(model: GenerativeModel, rows: list[list[int]]) -> int:
    """Returns the maximum length of the hypotheses that a check compares.

    It is 64 tokens, or the limit of the model for one of the sources if that is less.
    """
    limits = [
        int(model.max_output_lengths(len(row), MAX_CHECKED_LENGTH)) for row in rows
    ]
    return max(1, min(limits))  # `generate` refuses a source over the limit


def best_hypotheses(
    model: GenerativeModel,
    rows: list[list[int]],
    search: Search,
    max_length: OutputLength | None,
    min_length: OutputLength = 0,
    seed: int | None = None,
) -> list[list[int]]:
    """Returns the token ids of the best hypotheses, each with its end token."""
    result = model.generate(rows, search, max_length, min_length=min_length, seed=seed)
    return _best_tokens(result)


def _best_tokens(result: SearchResult) -> list[list[int]]:
    token_ids, lengths = np.asarray(result.token_ids), np.asarray(result.lengths)
    best = zip(token_ids[:, 0], lengths[:, 0], strict=True)
    return [row[:length].tolist() for row, length in best]


def check_log_probabilities(
    engine: str,
    model: GenerativeModel,
    sources: list[list[int]],
    targets: list[list[int]],
    found: np.ndarray,
    tolerance: float,
) -> None:
    """Compares log-probabilities `(targets,)` of an engine with those of `score`.

    Raises `RuntimeError` if they differ by more than `tolerance` per token.
    """
    expected, lengths, _ = model.score(sources, targets)
    errors = _errors_per_token(found, expected, lengths)
    if not np.all(errors <= tolerance):
        worst = int(np.argmax(errors))
        raise RuntimeError(
            f"{engine} gives the token ids {targets[worst]} a log-probability of "
            f"{found[worst]} after {sources[worst]}, but `score` gives "
            f"{expected[worst]}; nothing was written."
        )


def compare_texts(
    model: GenerativeModel,
    folder: pathlib.Path,
    request: Request,
    texts: Sequence[str],
) -> None:
    """Compares the texts of a SavedModel with those of `generate`.

    Raises `RuntimeError` if a text differs and its score differs by more than 1e-4 or
    is NaN, and `FloatingPointError` if the logits of the model are not finite.
    """
    count = len(texts)
    inputs = {"text": list(texts), "prefix": [""] * count, "seed": [SEED] * count}
    with _called_signature(folder, "nbest", inputs) as called:
        expected_texts, expected_scores, _ = model.generate(
            list(texts),
            request.search,
            request.max_length,
            min_length=request.min_length,
            return_scores=True,
            return_truncated=True,
            seed=SEED,
        )
    if np.ndim(expected_scores) == 2:
        expected_texts = [best for best, *_ in expected_texts]
        expected_scores = expected_scores[:, 0]
    served = _best(called.result())
    names = [repr(text) for text in texts]
    _compare(names, served["text"], expected_texts, served["score"], expected_scores)


@contextlib.contextmanager
def _called_signature(
    folder: pathlib.Path, name: str, inputs: Mapping[str, object]
) -> Iterator["Future[Outputs]"]:
    """Yields the outputs of `call_signature`, computed while the block runs."""
    with ThreadPoolExecutor(1) as executor:
        yield executor.submit(call_signature, folder, name, inputs)


def call_signature(
    folder: pathlib.Path, name: str, inputs: Mapping[str, object]
) -> Outputs:
    """Returns the outputs of a SavedModel that a child process loads.

    An input is a list, or the path of a file of an array.
    """
    output = run_python(_CALL_SIGNATURE, [str(folder), name, inputs])
    found: Outputs = json.loads(output.splitlines()[-1])
    return found


def _best(outputs: Outputs) -> Outputs:
    """Returns the outputs of the best hypothesis of each source."""
    return {name: [row[0] for row in rows] for name, rows in outputs.items()}


def sample_arrays(model: GenerativeModel) -> np.ndarray:
    """Creates sources `(4, ...)` of standard normal numbers; unknown sizes are 16.

    Raises `ValueError` if the sources are ints, of which only some may be valid.
    """
    shape, dtype = array_input(model)
    if "float" not in dtype:
        raise ValueError(
            "`check_sources` must be given for a model whose sources are arrays of "
            f"{dtype}; received `check_sources=None`."
        )
    sizes = [ARRAY_LENGTH if size is None else size for size in shape]
    return np.random.default_rng(SEED).normal(size=(4, *sizes)).astype(dtype)


def search_arrays(
    model: GenerativeModel, request: Request, arrays: np.ndarray
) -> SearchResult:
    """Decodes arrays `(batch, ...)`, and returns a `SearchResult` of NumPy arrays.

    Raises `FloatingPointError` if the logits of the model are not finite.
    """

    def search(sources: Tensor) -> SearchResult:
        return search_batch(model, sources, request, seed=SEED)

    found = compile_function(search, model)(ops.convert_to_tensor(arrays))
    result = SearchResult(*map(ops.convert_to_numpy, found))
    check_probabilities(np.asarray(result.scores))
    return result


def compare_tokens(
    model: GenerativeModel, folder: pathlib.Path, request: Request, sources: Sources
) -> None:
    """Compares the token ids of a SavedModel with the model's; see `compare_texts`.

    `sources` are rows of token ids or an array.
    """
    seeds = [SEED] * len(sources)
    if isinstance(sources, np.ndarray):
        file = folder.with_suffix(".npy")
        np.save(file, sources)
        inputs = {"source": str(file), "seed": seeds}
    else:
        rows = keras.utils.pad_sequences(
            sources, padding="post", value=model.pad_token_id
        )
        inputs = {"token_ids": rows.tolist(), "seed": seeds}
    with _called_signature(folder, "tokens", inputs) as called:
        expected = _own_result(model, request, sources)
    served = _best(called.result())
    found = zip(served["token_ids"], served["length"], strict=True)
    found_ids = [row[:length] for row, length in found]
    names = [f"source {number} of the check" for number in range(len(sources))]
    own_scores = np.asarray(expected.scores)[:, 0].tolist()
    _compare(names, found_ids, _best_tokens(expected), served["score"], own_scores)


def _own_result(
    model: GenerativeModel, request: Request, sources: Sources
) -> SearchResult:
    if isinstance(sources, np.ndarray):
        return search_arrays(model, request, sources)
    search, max_length, min_length = request
    return model.generate(sources, search, max_length, min_length=min_length, seed=SEED)


def _compare(
    names: Sequence[str],
    served: Sequence[object],
    expected: Sequence[object],
    served_scores: Sequence[float],
    expected_scores: Sequence[float],
) -> None:
    """Raises `RuntimeError` if an output differs and its score by more than 1e-4."""
    ties = 0
    rows = names, served, expected, served_scores, expected_scores
    for name, output, own, score, own_score in zip(*rows, strict=True):
        is_tie = abs(score - own_score) <= SCORE_TOLERANCE  # not if one is NaN
        if not is_tie and (output != own or np.isnan(score)):
            raise RuntimeError(
                f"The SavedModel gives {output!r} (score {score}) for {name}, but "
                f"`generate` gives {own!r} (score {own_score}); nothing was written."
            )
        ties += output != own
    if ties:
        warnings.warn(
            f"{ties} of {len(names)} outputs differ from those of `generate`, with "
            f"scores that differ by less than {SCORE_TOLERANCE}.",
            stacklevel=4,
        )


def rounding_error(
    model: GenerativeModel, rounded: GenerativeModel, request: Request, sources: Sources
) -> float:
    """Compares the log-probabilities of a model before and after rounding its weights.

    Returns the maximum difference per token of the best hypotheses of `rounded`.
    """
    rows = sources
    if source_kind(model) == "texts":
        tokenizer = tokenizers_of(model).source
        rows = tokenizer.tokenize(list(sources), add_end=True).to_list()
    targets = _best_tokens(_own_result(rounded, request, rows))
    scores, lengths, _ = rounded.score(rows, targets)
    expected = model.score(rows, targets).scores
    worst = float(np.max(_errors_per_token(scores, expected, lengths)))
    if not worst <= ROUNDING_TOLERANCE:
        raise RuntimeError(
            "`quantization` must change log-probabilities by at most "
            f"{ROUNDING_TOLERANCE} per token; the given one changes them by {worst}. "
            "Nothing was written. Store the weights in more bits."
        )
    return worst


def _errors_per_token(
    found: np.ndarray, expected: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    return np.abs(found - expected) / np.maximum(lengths, 1)
