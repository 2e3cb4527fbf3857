"""What the exports have in common: a folder whole or absent, texts to check it with."""

import base64
import contextlib
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from keras_transformer.seq2seq import Seq2Seq

_LOAD_AND_CALL = """
import base64, json, pickle, sys
import keras
import keras_transformer
path, function, settings = pickle.loads(base64.b64decode(json.load(sys.stdin)))
function(keras.saving.load_model(path, compile=False), **settings)
"""


@contextlib.contextmanager
def new_folder(
    filepath: str | os.PathLike, name: str = "filepath"
) -> Iterator[pathlib.Path]:
    """Lets a folder be written under another name, and gives it its own at the end.

    If something is raised in between, nothing is left, not even the folders above it
    that were made for it.

    Args:
        filepath: the folder; it must not exist or be empty.
        name: the argument that it is, for the error message.

    Yields:
        A path that does not exist yet, where the folder is to be written.

    Raises:
        FileExistsError: if `filepath` exists and is not an empty folder.
        ValueError: if it is where a disk is mounted.
    """
    target = pathlib.Path(os.path.realpath(filepath))
    if os.path.ismount(target) or target == pathlib.Path.cwd():
        raise ValueError(
            f"`{name}` must be a folder that can be replaced, not the root of a disk "
            f"or the working folder; received `{name}={str(filepath)!r}`. Choose one "
            "in it."
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(
            f"`{name}` must not exist or be an empty folder; received "
            f"`{name}={str(target)!r}`, which is not empty. Choose the next version "
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


def check_has_tokenizers(model: Seq2Seq) -> None:
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


def run_python(code: str, standard_input: Any) -> str:
    """Runs code in a fresh process with the TensorFlow backend.

    Args:
        code: Python code.
        standard_input: what it reads there, as JSON.

    Returns:
        What it printed.

    Raises:
        RuntimeError: if it failed.
    """
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    process = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(standard_input),
        env=environment,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise RuntimeError(
            "a child process of the export failed; its last words: "
            f"{process.stderr.strip()[-2000:]}"
        )
    return process.stdout


def in_tensorflow(
    write: Callable[..., None], model: Any, folder: pathlib.Path, **settings: Any
) -> None:
    """Writes a folder with a model of the TensorFlow backend.

    Args:
        write: function of a module, which takes a model, `folder` and `settings`.
        model: a `Seq2Seq` or an `Ensemble`; on other backends it is saved, and loaded
            in a child process.
        folder: the new folder.
        **settings: whatever can be pickled.
    """
    if keras.backend.backend() == "tensorflow":
        write(model, folder=folder, **settings)
        return
    file = folder.with_suffix(".keras")
    model.save(file)
    call = pickle.dumps((str(file), write, {"folder": folder, **settings}))
    run_python(_LOAD_AND_CALL, base64.b64encode(call).decode())


def check_log_probabilities(
    engine: str,
    model: Seq2Seq,
    rows: list[list[int]],
    targets: list[list[int]],
    found: Any,
    tolerance: float,
) -> None:
    """Compares the log-probabilities that an engine finds with those of `score`.

    Args:
        engine: its name.
        model: what was exported.
        rows: the sources' token ids.
        targets: the targets' token ids.
        found: float array `(len(targets),)`.
        tolerance: how far apart they may be, a token.

    Raises:
        RuntimeError: if they are farther apart.
    """
    wanted, lengths, _ = model.score(rows, targets)
    differences = np.abs(found - wanted) / np.maximum(lengths, 1)
    if not np.all(differences <= tolerance):
        worst = int(np.argmax(differences))
        raise RuntimeError(
            f"{engine} gives the token ids {targets[worst]} a log-probability of "
            f"{found[worst]} after {rows[worst]}, but `score` gives {wanted[worst]}; "
            "nothing was written."
        )
