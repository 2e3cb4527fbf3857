"""The corpora of a text of a run: their files, and their weights."""

import math
import pathlib
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from keras_transformer_runtime.text_rows import table_form


class CorpusFiles(NamedTuple):
    """The files of a corpus."""

    files: list[str]  # source and target, or one file; or files of running text
    weight: float | None = None


def split_corpora(
    name: str, entries: Sequence[str], has_running_text: bool
) -> list[CorpusFiles]:
    """Divides the files of a text into corpora.

    A corpus of parallel text consists of two files, source and target, or of one file
    with columns. A number above 0, after a colon at the end of its last file, is its
    weight; a corpus without one has the weight 1 if another one has a weight. Running
    text is one corpus or, with weights, one corpus for each file.

    Args:
        name: name of the option, for error messages.
        entries: paths, some with a weight.
        has_running_text: whether the text is running text.

    Returns:
        A list of `CorpusFiles`.

    Raises:
        ValueError: if a weight is no number above 0, if a source file has no target, or
            if a text that is not `train` has weights.
    """
    found: list[CorpusFiles] = []
    source: str | None = None
    for entry in entries:
        path, weight = _split_weight(name, entry)
        if weight is not None and name != "train":
            raise ValueError(
                f"`{name}` must have no weights, which are for the training text; "
                f"received {entry!r}. Remove `:{entry.rpartition(':')[2]}`."
            )
        if has_running_text:
            found.append(CorpusFiles([path], weight))
        elif source is not None:
            if table_form(path):
                _raise_no_target(name, entries, source)
            found.append(CorpusFiles([source, path], weight))
            source = None
        elif table_form(path) or weight is not None or len(entries) == 1:
            found.append(CorpusFiles([path], weight))
        else:
            source = path
    if source is not None:
        _raise_no_target(name, entries, source)
    if all(corpus.weight is None for corpus in found):
        return [CorpusFiles([*map(_first, found)])] if has_running_text else found
    return [CorpusFiles(files, weight or 1.0) for files, weight in found]


def weights_of(corpora: Sequence[CorpusFiles]) -> list[float] | None:
    """Returns the weights of corpora; `None` if they have none."""
    weights = [corpus.weight for corpus in corpora if corpus.weight is not None]
    return weights or None


def _first(corpus: CorpusFiles) -> str:
    return corpus.files[0]


def _split_weight(name: str, entry: str) -> tuple[str, float | None]:
    """Returns a path and its weight. A file whose name has a colon is a path."""
    path, colon, number = entry.rpartition(":")
    if not colon or "/" in number or pathlib.Path(entry).exists():
        return entry, None
    try:
        weight = float(number)
    except ValueError:
        if not pathlib.Path(path).is_file():
            return entry, None  # a file that does not exist
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ValueError(
            f"The weight of a corpus of `{name}` must be a number above 0; received "
            f"{number!r} after {path}. Remove a corpus that gets no share."
        )
    return path, weight


def _raise_no_target(name: str, entries: Sequence[str], source: str) -> NoReturn:
    raise ValueError(
        f"`{name}` must be source and target files in turn, or .tsv, .csv or .jsonl "
        f"files with both; received `{name}={[*entries]}`, where {source} has no "
        "target. End the name of a file with a tab between the sides with .tsv."
    )
