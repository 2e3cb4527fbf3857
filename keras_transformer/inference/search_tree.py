"""All that a beam search looked at on its way to an output."""

from typing import Any, NamedTuple

from keras import ops

from keras_transformer.decoding import BeamSearch
from keras_transformer.inference.request import Request
from keras_transformer.inference.streaming import is_empty_text


class SearchTree(NamedTuple):
    """The hypotheses of a beam search, to be drawn by `plotting.plot_search_tree`.

    Attributes:
        paths: list of tuples, each the tokens of a hypothesis that was kept at some
            step, as texts if the input was one: the unfinished ones and those that
            have ended, which have the end token last.
        scores: list of floats, one for each path: the log-probability of an
            unfinished one, the score of one that has ended.
        best: list of ints, which of the paths are the result, best first.
    """

    paths: list[tuple[Any, ...]]
    scores: list[float]
    best: list[int]


def search_tree(
    model: Any,
    inputs: Any,
    search: BeamSearch | None = None,
    max_length: Any = None,
    *,
    min_length: Any = 0,
    prefix: Any = None,
) -> SearchTree:
    """Searches for the output of one input, and keeps what was looked at.

    It is the search that `generate` makes, step by step; of an empty text there is
    none.

    Args:
        model: the `Seq2Seq`.
        inputs: a text, if the model has tokenizers; or a list of token ids with its
            end token.
        search: a `BeamSearch`, `BeamSearch()` if `None`.
        max_length: see `generate`.
        min_length: see `generate`.
        prefix: a text, or a list of token ids, that the output begins with.

    Returns:
        A `SearchTree`.

    Raises:
        ValueError: if the search is none with beams, or an argument is out of its
            range.

    Example:

    ```python
    from keras_transformer import plotting

    tree = model.search_tree("A man sleeps.", BeamSearch(num_beams=3))
    plotting.plot_search_tree(*tree).savefig("search.png")
    ```
    """
    search = search or BeamSearch()
    if not isinstance(search, BeamSearch):
        raise ValueError(
            "`search` must be a `BeamSearch`, as others have no tree; received "
            f"`search={search}`."
        )
    request = Request(search, max_length, min_length)
    steps = model._stepper(inputs, request, prefix, seed=0)
    if is_empty_text(model, inputs):
        return SearchTree([], [], [])
    scores: dict[tuple[int, ...], float] = {}
    for progress in steps:
        scores |= _unfinished(progress)
        result = search.result(model.step_model(), progress)
        ended = _ended(result)
        scores |= ended
    paths = list(scores)
    best = [paths.index(path) for path in ended]
    named = paths
    if isinstance(inputs, str | bytes):
        tokens = dict(enumerate(model.target_tokenizer.get_vocabulary()))
        unknown = tokens[model.target_tokenizer.unknown_token_id]
        named = [tuple(tokens.get(token, unknown) for token in path) for path in paths]
    return SearchTree(named, list(scores.values()), best)


def _unfinished(progress: Any) -> dict[tuple[int, ...], float]:
    length = int(progress.index)
    rows = ops.convert_to_numpy(progress.token_ids)[0, :, :length].tolist()
    scores = ops.convert_to_numpy(progress.log_probs)[0].tolist()
    return _kept(rows, scores)


def _ended(result: Any) -> dict[tuple[int, ...], float]:
    token_ids, lengths, scores = (ops.convert_to_numpy(part)[0] for part in result)
    rows = [
        row[:length].tolist() for row, length in zip(token_ids, lengths, strict=True)
    ]
    return _kept(rows, scores.tolist())


def _kept(rows: list[list[int]], scores: list[float]) -> dict[tuple[int, ...], float]:
    """Without the places that hold no hypothesis."""
    pairs = zip(map(tuple, rows), scores, strict=True)
    return {path: score for path, score in pairs if score > -float("inf")}
