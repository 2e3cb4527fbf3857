"""Writes a SavedModel with tokenizers and search: strings in, strings out."""

import json
import os
import pathlib
import shlex
import warnings
from collections.abc import Callable, Sequence
from typing import Unpack

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from keras_transformer.decoding import OutputLength, Search
from keras_transformer.decoding.generation_options import (
    chosen_search,
    options_from_search,
)
from keras_transformer.decoding.loop import check_finds_phrases
from keras_transformer.export.checking import (
    Sources,
    check_weights,
    compare_texts,
    compare_tokens,
    rounding_error,
    sample_arrays,
    sample_texts,
    sample_tokens,
)
from keras_transformer.export.model_support import (
    array_input,
    source_kind,
    tokenizers_of,
)
from keras_transformer.export.saved_model.array_signatures import ArraySignatures
from keras_transformer.export.saved_model.compact_graph import compact
from keras_transformer.export.saved_model.model_card import (
    Facts,
    describe_model,
    describe_signatures,
    model_name,
    package_versions,
    write_card,
)
from keras_transformer.export.saved_model.quantization import (
    check_quantization,
    rounded_model,
)
from keras_transformer.export.saved_model.search_functions import (
    DEFAULT_MAX_LENGTH,
    SearchFunctions,
)
from keras_transformer.export.saved_model.signatures import Signatures
from keras_transformer.export.saved_model.token_signatures import TokenSignatures
from keras_transformer.export.saved_model.warmup import (
    WarmupShapes,
    check_warmup,
    write_warmup,
)
from keras_transformer.export.tensorflow_process import write_with_tensorflow
from keras_transformer.inference.request import Request, check_request
from keras_transformer.inference.sources import source_rows
from keras_transformer.models import GenerativeModel
from keras_transformer.training.lora import without_lora
from keras_transformer_runtime.engines.generation_options import (
    GenerationOptions,
    SearchOptions,
    check_stop,
)
from keras_transformer_runtime.engines.model_description import (
    LengthLimits,
    ModelDescription,
    language_pair,
)
from keras_transformer_runtime.files import new_folder
from keras_transformer_runtime.model_paths import is_version

SIGNATURES = {"token_ids": TokenSignatures, "arrays": ArraySignatures}
DEFAULT_WARMUP = ((1, 16), (1, 24), (1, 32), (1, 48))

_USAGE = """```python
import tensorflow as tf
import tensorflow_text  # registers the operations of the tokenizers

serve = tf.saved_model.load("{folder}").signatures["serving_default"]
print(serve(text=tf.constant([{text}]))["text"])
```

TensorFlow Serving requires the folder to be `{name}/<version>`:

```sh
curl http://localhost:8501/v1/models/{name}:predict -d {body}
```"""

_ARRAY_USAGE = """```python
import tensorflow as tf
import tensorflow_text  # registers the operations of the tokenizer, if there is one

serve = tf.saved_model.load("{folder}").signatures["serving_default"]
print(serve(source=tf.zeros({shape}, "{dtype}")))
```"""

_TOKEN_USAGE = """The sources and the outputs are token ids.

```python
import tensorflow as tf

serve = tf.saved_model.load("{folder}").signatures["serving_default"]
print(serve(token_ids=tf.constant([{row}]))["token_ids"])
```"""


def export_saved_model(
    model: GenerativeModel,
    filepath: str | os.PathLike,
    search: Search | None = None,
    *,
    max_length: OutputLength | None = None,
    min_length: OutputLength = 0,
    stop: Sequence[str] = (),
    languages: Sequence[str] | None = None,
    quantization: str | None = None,
    warmup: WarmupShapes = DEFAULT_WARMUP,
    card: Facts | None = None,
    check_texts: Sequence[str] | None = None,
    check_sources: Sequence[ArrayLike] | np.ndarray | None = None,
    constraints: bool = False,
    **options: Unpack[SearchOptions],
) -> None:
    """Writes a SavedModel with tokenizers, search and detokenizer.

    The inputs and outputs of its signatures have one entry for each text, so that a
    server can batch requests:

    - `serving_default`: `text`, strings `(batch,)`. It returns `text`, strings, and
      `score`, float32, both `(batch,)`.
    - `nbest`: `text`; `prefix`, strings `(batch,)`, the beginnings of the outputs;
      `seed`, int32 `(batch,)`, seeds of `Sampling` (the other signatures draw them). It
      returns all hypotheses: `text`, strings, `score`, float32, and `length`, int32,
      all `(batch, num_hypotheses)`; of a language model also `full_text`, strings, the
      prompts with their continuations.
    - `constrained`, with `constraints=True`: `text`; `prefix`, as above; `constraints`,
      strings `(batch,)`, the phrases that must occur in the outputs of a text,
      separated by tabs, `""` for none. It returns what `nbest` does.
    - `check_constraints`, likewise: `constraints`, strings `(batch,)`, a phrase each.
      It returns `spelled`, bool `(batch,)`, whether the target vocabulary can spell
      them.
    - `tokens`: `token_ids`, int32 `(batch, source_length)`, padded. It returns
      `token_ids`, int32 `(batch, num_hypotheses, target_length)`, `score` and
      `length`.
    - `score`: `source` and `target`, strings `(batch,)`. It returns `score`, float32
      `(batch,)`, and the scores of the tokens: `tokens`, strings, and `token_scores`,
      float32, both `(batch, target_length)`, padded with `""` and 0.
    - `lengths`: `source` and `target`, strings `(batch,)`. It returns the number of
      tokens of each, the end token included: `source_length` and `target_length`, int32
      `(batch,)`. It is 1 for a text without words, and 0 for a language token that the
      vocabulary lacks.
    - `continue`, only of language models, if the search is `GreedySearch` or `Sampling`
      of one sample without logits processors and `min_length` is 0: `text`, the
      prompts; `state`, strings `(batch,)`, `""` at first and then that of the last
      call; and `seed`, int32 `(batch,)`. It returns the whole `text` after up to 8 more
      tokens, the new `state`, the number of tokens of `text`, `length`, and whether the
      text has ended, `done`, both int32 `(batch,)`. A text ends at `max_length`, if it
      is given. A server streams a text with it, and stores nothing between the calls.
    - `attention`, only of models with cross-attention: `text`. It returns the best
      `text` and its `score`, `(batch,)`; `source_tokens` and `tokens`, strings
      `(batch, source_length)` and `(batch, target_length)`, padded with `""`; and their
      alignment as in an `Alignment`: `attention`, float32
      `(batch, target_length, source_length)`, and `positions`, int32
      `(batch, target_length)`.
    - `align`, likewise: `source` and `target`, strings `(batch,)`. It returns
      `source_tokens`, `tokens`, `attention` and `positions` of the given pairs.
    - `attention_scores`, only of models that return attention scores, such as a
      `Seq2Seq`: `text`. It returns `text`, `score`, `source_tokens` and `tokens` as
      `attention` does, and `attention_scores`, float32
      `(batch, num_layers, num_heads, target_length, source_length)`: the
      cross-attention of every head of every decoder block.

    A model without tokenizers, or with a tokenizer that runs on the host, has these
    signatures. A warning says so for the latter:

    - `serving_default`: `token_ids`, int32 `(batch, source_length)`, padded. It returns
      `token_ids`, int32 `(batch, num_hypotheses, target_length)`, `score`, `length` and
      `truncated`.
    - `tokens`: `token_ids`, and `seed`, int32 `(batch,)`, with the outputs above.
    - `score`: `source` and `target`, int32, padded, `(batch, source_length)` and
      `(batch, target_length)`. It returns `score`, float32 `(batch,)`, and
      `token_scores`, float32 `(batch, target_length)`.

    A model with a `source_embedding` has these signatures, and needs no tokenizer:

    - `serving_default`: `source`, an array `(batch, ...)` of the shape and dtype of the
      input of the layer. It returns `text` and `score`; without a target tokenizer
      `token_ids`, `score` and `length`, as `tokens` does.
    - `tokens`: `source` and `seed`, int32 `(batch,)`, with the outputs above.
    - `nbest` and `score`, with a target tokenizer: as above, with the array `source` in
      place of `text` and of the strings `source`.

    The SavedModel runs in any program with TensorFlow and tensorflow-text, without this
    library. It contains the trace of the search that `generate` compiles. Batches and
    lengths are padded to a few sizes, and each shape is compiled at its first request.
    A hypothesis without probabilities, because a logit of the model is NaN, is an empty
    text with length 0 and a `score` of NaN.

    With `quantization`, matrices are stored in fewer bits. They are converted to
    float32 once per call, and the model computes in float32. The file is half or a
    quarter as large.

    The SavedModel is loaded in a child process and checked before it is moved to
    `filepath`, so that `filepath` holds a correct SavedModel or nothing. Its texts must
    equal those of `generate`. With `quantization`, they must equal those of a model
    with the rounded weights, whose log-probabilities may differ from those of `model`
    by up to 0.5 per token. On JAX and PyTorch, a child process with the TensorFlow
    backend writes the SavedModel.

    The folder also contains a model card, `README.md`, warm-up requests for TensorFlow
    Serving (see `warmup_requests`), and `keras_transformer.json`, the options of the
    search and the limits of lengths, with which the commands load the folder. It is
    missing if the search or a length cannot be described by options, or the sources are
    arrays.

    `stop` is in this file alone. `SavedModelEngine`, the commands and `serve` cut the
    outputs; the signatures, and thus TensorFlow Serving, return the whole texts.

    Args:
        model: a model such as a `Seq2Seq` or an `Ensemble`, or any other model that
            follows the protocol `GenerativeModel`. The input of a `source_embedding`
            must have a known shape and dtype, as that of a functional or sequential
            model has.
        filepath: folder to write, such as `saved_models/en-de/1`. It must not exist or
            be empty.
        search: the search; `None` = `model.default_search`, changed by `options`.
        max_length: int or `RelativeLength`, maximum output length in tokens. `None` =
            50 tokens more than the source.
        min_length: int or `RelativeLength`, minimum output length.
        stop: list of str, texts in front of which `SavedModelEngine` ends an output.
        languages: the codes of the source and the target language, such as
            `["en", "de"]`, for `/translate` of the server; `None` = unknown.
        quantization: how the kernels of dense layers and the embeddings are stored:
            `"float16"`, or `"int8"` with a scale for each output or row. `None` =
            float32.
        warmup: pairs of a number of texts and their length in tokens: shapes that a
            server should compile before it accepts requests. Each takes a server some
            seconds at its start. `()` = no warm-up requests.
        card: additional sections of the model card by name: texts, or dictionaries that
            become tables, such as
            `{"training_data": "…", "figures": {"BLEU": 40.5}}`. Any name is allowed.
            The sections `intended_use`, `training_data`, `evaluation_data`,
            `figures`, `limitations` and `licence` are always in the card.
        check_texts: texts for the check, which requires a source tokenizer. `None` =
            texts, or rows of token ids, created from the source vocabulary.
        check_sources: array `(batch, ...)`, sources for the check of a model with a
            `source_embedding`. `None` = standard normal numbers, 16 of them along axes
            of unknown size.
        constraints: bool, whether the SavedModel has the signature `constrained`, which
            makes the SavedModel larger. It requires texts and a `BeamSearch`.
        **options: options of the search by name, as in `GenerativeModel.generate`.

    Raises:
        ValueError: if a number is out of range, options are given together with a
            search, `quantization` is unknown, `stop` is given and
            `keras_transformer.json` would be missing, or `check_texts` are given and
            the model has no tokenizers.
        FileExistsError: if `filepath` exists and is not an empty folder.
        RuntimeError: if the SavedModel does not return the texts of `generate`, or a
            child process fails or takes longer than an hour.
        FloatingPointError: if the weights or logits of the model are not finite.

    Example:

    ```python
    export_saved_model(model, "saved_models/en-de/1", BeamSearch())
    serve = tf.saved_model.load("saved_models/en-de/1").signatures["serving_default"]
    serve(text=tf.constant(["A man sleeps."]))["text"]
    ```

    References:
        - [Mitchell et al., 2019](https://arxiv.org/abs/1810.03993), section 4
    """
    model = without_lora(model)
    _warn_of_tokens(model)
    check_quantization(model, quantization)
    check_warmup(warmup)
    pair = language_pair(languages)
    search = chosen_search("export_saved_model", search, model.default_search, options)
    request = Request(search, max_length, min_length)
    check_request(request)
    recorded = _recorded_options(model, request, stop)
    if constraints:
        _check_constraints(model, request)
    check_weights(model)
    sources = _sources_of_check(model, check_texts, check_sources)
    with new_folder(filepath) as folder:
        write_with_tensorflow(
            _write,
            model,
            folder,
            request=request,
            quantization=quantization,
            constraints=constraints,
        )
        error = _check(model, folder, request, quantization, sources)
        signatures = describe_signatures(folder)
        write_warmup(model, folder, warmup, signatures)
        decoding = {
            "search": repr(search),
            "max_length": max_length or _default_length(model),
            "min_length": min_length,
            "weights": _describe_weights(folder, quantization, error),
        }
        if stop:
            decoding["stop, in the commands"] = ", ".join(map(repr, stop))
        tables: dict[str, Facts] = {
            "Model": {**describe_model(model), **_limits(model)},
            "Decoding": decoding,
            "Signatures": signatures,
            "Created with": package_versions(),
        }
        if recorded is not None:
            source, target = _limits(model).values()
            ModelDescription(
                is_language_model=not model.has_cross_attention,
                options=recorded,
                limits=LengthLimits(
                    source, target, getattr(model, "output_length_ratio", 1.0)
                ),
                languages=pair,
            ).write(folder)
        usage = _usage(model, pathlib.Path(filepath), sources[0])
        write_card(folder, model_name(filepath), usage, tables, card or {})


def _recorded_options(
    model: GenerativeModel, request: Request, stop: Sequence[str]
) -> GenerationOptions | None:
    """Returns the options with which `SavedModelEngine` and the commands decode.

    A search, lengths or sources without options in the commands have none.
    """
    check_stop(stop)
    if source_kind(model) != "texts":
        if stop:
            raise ValueError(
                "`stop` must not be given for a SavedModel whose sources are no texts; "
                f"received `stop={stop!r}`. Cut the outputs of the SavedModel."
            )
        return None
    try:
        return options_from_search(*request).with_given(stop=stop)
    except ValueError:
        if stop:
            raise
        return None


def _warn_of_tokens(model: GenerativeModel) -> None:
    """Warns if the model takes texts, and its SavedModel takes token ids."""
    for side in ("source", "target"):
        tokenizer = getattr(model, f"{side}_tokenizer")
        is_text = model.source_spec is None and tokenizer is not None
        if is_text and not tokenizer.in_graph:
            warnings.warn(
                "The SavedModel takes and returns token ids, since no graph can "
                f"contain `{side}_tokenizer={tokenizer!r}`.",
                stacklevel=3,
            )
            return


def _sources_of_check(
    model: GenerativeModel,
    check_texts: Sequence[str] | None,
    check_sources: Sequence[ArrayLike] | np.ndarray | None,
) -> Sources:
    texts = list(() if check_texts is None else check_texts)
    match source_kind(model):
        case "texts":
            return texts or sample_texts(model)
        case "token_ids" if not texts:
            return sample_tokens(model)
        case "token_ids":
            rows: list[list[int]] = (
                tokenizers_of(model).source.tokenize(texts, add_end=True).to_list()
            )
            return rows
    if check_sources is None or len(check_sources) == 0:
        check_sources = sample_arrays(model)
    return np.stack(source_rows(model, check_sources, "check_sources"))


def _write(
    model: GenerativeModel,
    folder: pathlib.Path,
    request: Request,
    quantization: str | None,
    constraints: bool = False,
) -> None:
    signatures: SearchFunctions
    if (kind := source_kind(model)) == "texts":
        signatures = Signatures(model, request, quantization, constraints)
    else:
        signatures = SIGNATURES[kind](model, request, quantization)
    tf.saved_model.save(signatures, str(folder), signatures=signatures.functions)
    compact(folder)


def _check_constraints(model: GenerativeModel, request: Request) -> None:
    if source_kind(model) != "texts":
        raise ValueError(
            "`constraints` must be `False` for a SavedModel whose sources are no "
            "texts; received `constraints=True`."
        )
    check_finds_phrases(request.search)


def _check(
    model: GenerativeModel,
    folder: pathlib.Path,
    request: Request,
    quantization: str | None,
    sources: Sources,
) -> float:
    """Checks the outputs; returns the error of log-probabilities due to rounding."""
    compare: Callable[..., None] = compare_tokens
    if source_kind(model) == "texts":
        compare = compare_texts
    if quantization is None:
        compare(model, folder, request, sources)
        return 0.0
    rounded = rounded_model(model, quantization)
    compare(rounded, folder, request, sources)
    return rounding_error(model, rounded, request, sources)


def _describe_weights(
    folder: pathlib.Path, quantization: str | None, error: float
) -> str:
    size = sum(file.stat().st_size for file in (folder / "variables").iterdir())
    described = f"{quantization or 'float32'}, {size / 1e6:.1f} MB"
    if quantization is None:
        return described
    return (
        f"{described}; log-probabilities of the check change by {error:.2g} per token"
    )


def _default_length(model: GenerativeModel) -> str:
    """Describes the maximum output length if none is given."""
    is_translation = getattr(model, "forces_end_token", True)
    least = "50 more than the source" if is_translation else "256"
    ratio = getattr(model, "output_length_ratio", 1.0)
    more = f", or {ratio:g} times the source if this is more" if ratio > 1 else ""
    return least + more


def _limits(model: GenerativeModel) -> dict[str, int]:
    """Returns the limits of the signatures, which are finite."""
    return {
        "max_source_length": model.max_source_length or DEFAULT_MAX_LENGTH,
        "max_target_length": model.max_target_length or DEFAULT_MAX_LENGTH,
    }


def _usage(
    model: GenerativeModel, folder: pathlib.Path, source: str | list[int] | np.ndarray
) -> str:
    name = model_name(folder)
    path = f"{name}/{folder.name}" if is_version(folder.name) else folder.name
    if isinstance(source, list):
        return _TOKEN_USAGE.format(folder=path, row=source)
    if isinstance(source, np.ndarray):
        _, dtype = array_input(model)
        shape = (1, *source.shape)
        return _ARRAY_USAGE.format(folder=path, dtype=dtype, shape=shape)
    quoted = json.dumps(source, ensure_ascii=False)
    body = shlex.quote(f'{{"instances": [{quoted}]}}')
    return _USAGE.format(folder=path, name=name, text=quoted, body=body)
