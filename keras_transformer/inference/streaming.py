"""One output, token by token, as it is decoded."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.backend.compiling import compile_function
from keras_transformer.decoding import BeamSearch, GreedySearch, Search
from keras_transformer.inference.request import Request, check_request, check_seed
from keras_transformer.inference.token_ids import (
    check_rows,
    pad_prefixes,
    pad_rows,
    token_rows,
)

REPLACEMENT = "\ufffd"  # of bytes that are not yet a whole character


def stream(
    model: Any,
    inputs: Any,
    search: Search | None = None,
    max_length: Any = None,
    *,
    min_length: Any = 0,
    prefix: Any = None,
    seed: int | None = None,
) -> Iterator[Any]:
    """Decodes one input and yields its output piece by piece.

    The pieces of a text, joined, are what `generate` gives, unless the rules of the
    search leave a hypothesis nothing to go on with, of which `generate` gives nothing.
    The search and each of its steps are compiled once.

    Args:
        model: the `Seq2Seq`.
        inputs: a text, if the model has tokenizers; or a list of token ids with its
            end token.
        search: a search of one hypothesis that never takes a token back:
            `GreedySearch()` if `None`, or `Sampling()`.
        max_length: see `generate`.
        min_length: see `generate`.
        prefix: a text, or a list of token ids, that the output begins with.
        seed: see `generate`.

    Yields:
        For a text, texts; for token ids, ints, the end token last.

    Raises:
        ValueError: if the search is one by beams, or an argument is out of its range.

    Example:

    ```python
    for piece in model.stream("A man sleeps."):
        print(piece, end="", flush=True)
    ```
    """
    search = search or GreedySearch()
    request = Request(search, max_length, min_length)
    check_request(request)
    if search.num_beams != 1 or isinstance(search, BeamSearch):
        raise ValueError(
            "`search` must have one output and take no token of it back; received "
            f"`search={search}`. Stream with `GreedySearch()` or `Sampling()`."
        )
    is_text = isinstance(inputs, str | bytes)
    steps = model._stepper(inputs, request, prefix, seed)
    tokens = (int(ops.convert_to_numpy(step.tokens)[0, 0]) for step in steps)
    if not is_text:
        return tokens
    if is_empty_text(model, inputs):
        return iter(())
    return _texts(tokens, model.target_tokenizer)


class Stepper:
    """Searches for one output step by step; keeps what it has compiled.

    Args:
        model: a `Seq2Seq`.
    """

    def __init__(self, model: Any):
        self._model = model
        self._compiled: dict[Request, tuple[Any, Any]] = {}

    def __call__(
        self, inputs: Any, request: Request, prefix: Any, seed: int | None
    ) -> Iterator[Any]:
        """Checks the arguments, which are those of `stream`.

        Returns:
            An iterator of the search's `Progress` after each step.
        """
        model = self._model
        check_request(request)
        check_seed(seed)
        pad, limit = model.pad_token_id, model.max_source_length
        rows = token_rows([inputs], "inputs", model.source_tokenizer, pad)
        check_rows(rows, "inputs", "source", model.source_vocabulary_size, limit)
        given = None if prefix is None else [prefix]
        prefixes = model._generator.prefixes(given, rows, request)
        arguments = (
            pad_rows(rows, 1, limit, pad),
            pad_prefixes(prefixes, 1, pad),
            np.int32(np.random.randint(2**31 - 1) if seed is None else seed),
        )
        return self._steps(request, arguments)

    def _steps(self, request: Request, arguments: tuple[Any, ...]) -> Iterator[Any]:
        if request not in self._compiled:
            self._compiled[request] = self._compile(request)
        begin, advance = self._compiled[request]
        sentences, progress = begin(*map(ops.convert_to_tensor, arguments))
        while not ops.convert_to_numpy(progress.done).all():
            progress = advance(sentences, progress)
            yield progress

    def _compile(self, request: Request) -> tuple[Any, Any]:
        model, search = self._model, request.search

        def begin(token_ids: Any, prefixes: Any, seed: Any) -> Any:
            return model.begin_search(token_ids, *request, prefixes, seed)

        def advance(sentences: Any, progress: Any) -> Any:
            return search.advance(model.step_model(), sentences, progress)

        return compile_function(begin, model), compile_function(advance, model)


def is_empty_text(model: Any, inputs: Any) -> bool:
    """Whether an input is a text without a token, of which `generate` makes nothing.

    Args:
        model: a `Seq2Seq`.
        inputs: a text or token ids.

    Returns:
        bool.
    """
    if not isinstance(inputs, str | bytes):
        return False
    return not model.source_tokenizer.tokenize([inputs]).row_lengths().numpy()[0]


def _texts(tokens: Iterator[int], tokenizer: Any) -> Iterator[str]:
    """What each token adds to the text; half a character waits for its other half."""
    token_ids: list[int] = []
    said = ""
    for token in tokens:
        token_ids.append(token)
        text = tokenizer.detokenize([token_ids]).numpy()[0].decode("utf-8", "replace")
        ended = token == tokenizer.end_token_id
        if text.startswith(said) and (ended or not text.endswith(REPLACEMENT)):
            if len(text) > len(said):
                yield text[len(said) :]
            said = text
