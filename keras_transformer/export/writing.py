"""What the exports have in common: a folder whole or absent, texts to check it with."""

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator

import numpy as np

from keras_transformer.seq2seq import Seq2Seq


@contextlib.contextmanager
def new_folder(filepath: str | os.PathLike) -> Iterator[pathlib.Path]:
    """Lets a folder be written under another name, and gives it its own at the end.

    If something is raised in between, nothing is left, not even the folders above it
    that were made for it.

    Args:
        filepath: the folder; it must not exist or be empty.

    Yields:
        A path that does not exist yet, where the folder is to be written.

    Raises:
        FileExistsError: if `filepath` exists and is not an empty folder.
    """
    target = pathlib.Path(filepath)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(
            f"`filepath` must not exist or be an empty folder; received "
            f"`filepath={str(target)!r}`, which is not empty. Choose the next version "
            "number, or remove it."
        )
    made = [parent for parent in target.parents if not parent.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(
            prefix=".export-", dir=target.parent
        ) as folder:
            written = pathlib.Path(folder, "written")
            yield written
            os.replace(written, target)
    except BaseException:
        with contextlib.suppress(OSError):  # others may have written there
            for parent in made:
                parent.rmdir()
        raise


def check_tokenizers(model: Seq2Seq) -> None:
    """Makes sure that a model takes texts.

    Args:
        model: a `Seq2Seq`.

    Raises:
        ValueError: if it has no tokenizers.
    """
    if model.source_tokenizer is None:
        raise ValueError(
            "`model` must have tokenizers to be exported; received a model without "
            "`source_tokenizer`. Give it tokenizers when you build it."
        )


def sample_texts(model: Seq2Seq) -> list[str]:
    """Makes texts of tokens from all over the source vocabulary, and an empty one.

    Args:
        model: a `Seq2Seq` with tokenizers.

    Returns:
        Nine texts, short enough for the model.
    """
    tokenizer = model.source_tokenizer
    longest = max(1, min(6, (model.max_source_length or 12) // 2))
    ids = np.linspace(4, tokenizer.vocabulary_size - 1, 8 * 6).astype("int32")
    texts = tokenizer.detokenize(ids.reshape(8, 6)[:, :longest])
    return [text.decode("utf-8") for text in texts.numpy()] + [""]
