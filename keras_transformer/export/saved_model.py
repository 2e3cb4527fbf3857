"""Writes a trained model as a SavedModel: strings in, strings out."""

import json
import os
import pathlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_transformer.decoding import RelativeLength, Search
from keras_transformer.export import card as model_card
from keras_transformer.export import checking
from keras_transformer.export import quantization as rounding
from keras_transformer.export.compact_graph import compact
from keras_transformer.export.served import LENGTH_WITHOUT_LIMIT, Served
from keras_transformer.export.signatures import describe_signatures
from keras_transformer.export.warmup import check_warmup, write_warmup
from keras_transformer.export.writing import in_tensorflow
from keras_transformer.files import new_folder
from keras_transformer.inference.generation import Request, check_request
from keras_transformer.models import Seq2Seq

WARMUP = ((1, 16), (1, 24), (1, 32), (1, 48))

_USE = """```python
import tensorflow as tf
import tensorflow_text  # the tokenizers' operations

serve = tf.saved_model.load("{folder}").signatures["serving_default"]
print(serve(text=tf.constant([{text}]))["text"])
```

TensorFlow Serving, which wants the folder to be `{name}/<version>`:

```sh
curl http://localhost:8501/v1/models/{name}:predict -d {body}
```"""


def export_saved_model(
    model: Seq2Seq,
    filepath: str | os.PathLike,
    search: Search,
    *,
    max_length: int | RelativeLength | None = None,
    min_length: int | RelativeLength = 0,
    quantization: str | None = None,
    warmup: Sequence[tuple[int, int]] = WARMUP,
    card: Mapping[str, Any] | None = None,
    check_texts: Sequence[str] | None = None,
) -> None:
    """Writes a SavedModel with tokenizers, search and detokenizer inside.

    Its signatures take tensors with one entry for each text, so that a server can put
    requests together:

    - `serving_default`: `text`, strings `(batch,)`; returns `text`, strings, and
      `score`, float32, `(batch,)`.
    - `nbest`: `text`; `prefix`, strings `(batch,)`, what each output begins with;
      `seed`, int32 `(batch,)`, where `Sampling` starts (in the others it starts
      anywhere). Returns all hypotheses: `text`, strings, `score`, float32, and
      `length`, int32, `(batch, num_hypotheses)`.
    - `tokens`: `token_ids`, int32 `(batch, source_length)`, padded; returns
      `token_ids`, int32 `(batch, num_hypotheses, target_length)`, `score` and
      `length`.
    - `score`: `source` and `target`, strings `(batch,)`; returns `score`, float32
      `(batch,)`, and its parts: `tokens`, strings, and `token_scores`, float32,
      `(batch, target_length)`, padded with `""` and 0.
    - `attention`: `text`; returns the best `text` and `score`
      `(batch,)`, and how it is aligned: `source_tokens` and `tokens`, strings
      `(batch, source_length)` and `(batch, target_length)`, padded with `""`;
      `attention`, float32 `(batch, target_length, source_length)`, and `positions`,
      int32 `(batch, target_length)`, as in an `Alignment`.
    - `attention_scores` (not of an `Ensemble`): `text`; returns `text`, `score`,
      `source_tokens` and `tokens` as `attention` does; and `attention_scores`, float32
      `(batch, num_layers, num_heads, target_length, source_length)`, how much each
      target token attends to each source token in every decoder block's heads.

    It runs wherever TensorFlow and tensorflow-text do, without this library. It is
    the trace of the very search that `Seq2Seq.generate` compiles; batches and
    lengths are padded to a few sizes, and each such shape is compiled at its first
    request.

    With `quantization` the matrices are stored in fewer bits, and read as float32
    once a call, in which the model then computes. The file is a half or a quarter.

    What was written is loaded in a fresh process, and its texts must equal
    those of `generate`, before it takes its place: `filepath` holds a good
    SavedModel or nothing. With `quantization` they must be those of a model with
    the rounded weights, and its log-probabilities those of `model` to 0.5 a token.
    Under JAX and PyTorch a child process with the TensorFlow backend writes it.

    Besides what TensorFlow reads, the folder has a model card, `README.md`, and
    requests that TensorFlow Serving warms up with (see `warmup_requests`).

    Args:
        model: a `Seq2Seq` with tokenizers.
        filepath: folder to write, such as `saved_models/en-de/1`; it must not
            exist or be empty.
        search: how to search.
        max_length: int or `RelativeLength`, greatest output length in tokens; 50
            more than the source's if `None`.
        min_length: int or `RelativeLength`, least output length.
        quantization: how the kernels of dense layers and the embeddings are stored:
            `"float16"`; `"int8"` with a scale for each output or row; float32 if
            `None`.
        warmup: numbers of texts and their lengths in tokens, whose shapes a server
            should compile before it takes requests. Each takes a server seconds at
            its start; `()` for none.
        card: what the model card should say in addition: texts by the names
            of sections, or dictionaries, which become tables, such as
            `{"training_data": "…", "figures": {"BLEU": 40.5}}`. Any name will do;
            `intended_use`, `training_data`, `evaluation_data`, `figures`,
            `limitations` and `licence` are always there, and empty if not said.
        check_texts: texts to check the SavedModel with; some made of the source
            vocabulary if `None`.

    Raises:
        ValueError: if the model has no tokenizers, a number is out of range, or
            `quantization` is not known.
        FileExistsError: if `filepath` exists and is not an empty folder.
        RuntimeError: if the SavedModel does not give the texts of `generate`.

    Example:

    ```python
    export_saved_model(model, "saved_models/en-de/1", BeamSearch())
    serve = tf.saved_model.load("saved_models/en-de/1").signatures["serving_default"]
    serve(text=tf.constant(["A man sleeps."]))["text"]
    ```

    References:
        - [Mitchell et al., 2019](https://arxiv.org/abs/1810.03993), section 4
    """
    checking.check_has_tokenizers(model)
    rounding.check_quantization(model, quantization)
    check_warmup(warmup)
    request = Request(search, max_length, min_length)
    check_request(request)
    texts = check_texts or checking.sample_texts(model)
    with new_folder(filepath) as folder:
        storing = {"request": request, "quantization": quantization}
        in_tensorflow(_write, model, folder, **storing)
        error = _check(model, folder, request, quantization, texts)
        write_warmup(model, folder, warmup)
        settings = {
            "search": repr(search),
            "max_length": max_length or "50 more than the source",
            "min_length": min_length,
            "weights": _describe_weights(folder, quantization, error),
        }
        use = _how_to_use(pathlib.Path(filepath), texts[0])
        tables = _tables(model, folder, settings)
        model_card.write_card(folder, _name(filepath), use, tables, card or {})


def _write(
    model: Any, folder: pathlib.Path, request: Request, quantization: str | None
) -> None:
    served = Served(model, request, quantization)
    tf.saved_model.save(served, str(folder), signatures=served.functions)
    compact(folder)


def _check(
    model: Any,
    folder: pathlib.Path,
    request: Request,
    quantization: str | None,
    texts: Sequence[str],
) -> float:
    """Checks texts; returns how much rounding changes log-probabilities a token."""
    if quantization is None:
        checking.check_texts(model, folder, request, texts)
        return 0.0
    rounded = rounding.rounded(model, quantization)
    checking.check_texts(rounded, folder, request, texts)
    return checking.rounding_error(model, rounded, request, texts)


def _describe_weights(
    folder: pathlib.Path, quantization: str | None, error: float
) -> str:
    size = sum(file.stat().st_size for file in (folder / "variables").iterdir())
    described = f"{quantization or 'float32'}, {size / 1e6:.1f} MB"
    if quantization is None:
        return described
    return f"{described}; log-probabilities of the check change by {error:.2g} a token"


def _tables(
    model: Any, folder: pathlib.Path, settings: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    limits = {
        "max_source_length": model.max_source_length or LENGTH_WITHOUT_LIMIT,
        "max_target_length": model.max_target_length or LENGTH_WITHOUT_LIMIT,
    }
    return {
        "Model": {**model_card.describe_model(model), **limits},
        "Decoding": settings,
        "Signatures": dict(describe_signatures(folder)),
        "Made by": model_card.made_by(),
    }


def _how_to_use(folder: pathlib.Path, text: str) -> str:
    place = f"{_name(folder)}/{folder.name}" if folder.name.isdigit() else folder.name
    quoted = json.dumps(text, ensure_ascii=False)
    body = shlex.quote(f'{{"instances": [{quoted}]}}')
    return _USE.format(folder=place, name=_name(folder), text=quoted, body=body)


def _name(folder: str | os.PathLike) -> str:
    """The name of a model in a folder `name/version` or `name`."""
    path = pathlib.Path(folder).absolute()
    return path.parent.name if path.name.isdigit() else path.name
