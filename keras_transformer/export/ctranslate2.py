"""Writes a CTranslate2 model, which decodes on CPUs and GPUs."""

import abc
import json
import math
import os
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Unpack, final

import ctranslate2
import numpy as np
import tensorflow as tf
from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES
from keras import ops

from keras_transformer.backend.keras_internals import check_not_quantized
from keras_transformer.decoding import Search
from keras_transformer.decoding.generation_options import options_from_search
from keras_transformer.export.checking import (
    ROUNDING_TOLERANCE,
    SCORE_TOLERANCE,
    check_weights,
    checked_length,
    sample_texts,
)
from keras_transformer.export.ctranslate2_spec import length_limits, make_spec
from keras_transformer.export.model_support import (
    Transformer,
    check_transformer,
    embedding_vocabulary,
    tokenizers_of,
    tokenizers_to_write,
)
from keras_transformer.export.tensorflow_process import run_python
from keras_transformer.inference.sources import pair_batches, token_pairs
from keras_transformer.models import CausalLM, GenerativeModel, Seq2Seq
from keras_transformer.text import (
    HuggingFaceTokenizer,
    KerasHubTokenizer,
    MarianTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
)
from keras_transformer.training.lora import without_lora
from keras_transformer_runtime.arguments import check_one_of
from keras_transformer_runtime.engines.generation_options import (
    GenerationOptions,
    GivenOptions,
)
from keras_transformer_runtime.engines.model_description import (
    LengthLimits,
    ModelDescription,
    language_pair,
)
from keras_transformer_runtime.files import new_folder, write_json
from keras_transformer_runtime.tokenizers import read_tokenizer

# Token ids of sequences.
Rows = list[list[int]]


def export_ctranslate2(
    model: GenerativeModel,
    filepath: str | os.PathLike,
    search: Search,
    *,
    quantization: str | None = None,
    check_texts: Sequence[str] | None = None,
    languages: Sequence[str] | None = None,
    scores: Mapping[str, float] | None = None,
    **options: Unpack[GivenOptions],
) -> None:
    """Writes a folder that CTranslate2 loads, with tokenizers and search.

    `CTranslate2Engine` of `keras_transformer_runtime.engines` and the commands load the
    folder: texts go in, and texts come out, without TensorFlow and Keras.

    `ctranslate2.Translator` loads an encoder-decoder Transformer, and
    `ctranslate2.Generator` a decoder-only Transformer. The folder contains the model
    and the vocabularies of CTranslate2. If the tokenizers are
    `SentencePieceTokenizer`s or `MarianTokenizer`s, it also contains `source.model` and
    `target.model` for the package sentencepiece; for a decoder-only Transformer,
    `tokenizer.model`. If they are `KerasHubTokenizer`s of byte pairs, it contains
    `source_vocab.json`, `source_merges.txt`, `target_vocab.json` and
    `target_merges.txt` for the packages tokenizers and transformers; for a decoder-only
    Transformer, `vocab.json` and `merges.txt`. If they are `HuggingFaceTokenizer`s, it
    contains `source_tokenizer.json` and `target_tokenizer.json` for the package
    tokenizers; for a decoder-only Transformer, `tokenizer.json`. CTranslate2 accepts
    and returns tokens without the end token.

    The supported architectures are pre-norm and post-norm, layer and RMS normalization,
    gated feed-forward networks, grouped-query attention, biases of any projections,
    sinusoidal, learned and rotary positions, linear scaling of rotary positions,
    relative position bias, and all ways to tie embeddings; for a decoder-only
    Transformer, also normalised queries and keys. Position encodings are written as a
    table. The table of the source has `max_source_length` positions, or 2,048 without a
    limit. CTranslate2 raises an error for longer inputs.

    CTranslate2 computes the logits of the model, up to rounding. The file
    `keras_transformer.json` records the tokenizers, the limits of the lengths, and the
    options of the search, which `CTranslate2Engine` passes to CTranslate2. The search
    of CTranslate2 differs from `BeamSearch` as follows:

    - The score is the sum of the log-probabilities, including that of the end token,
      divided by `length ** length_penalty`. `BeamSearch` divides by
      `((5 + length) / 6) ** length_penalty`. Both lengths include the end token. With
      `length_penalty=0` the scores are equal. The default of CTranslate2 is 1.
    - Without a length penalty, both searches stop when no better hypothesis is
      possible. With a length penalty, CTranslate2 stops when `beam_size * patience`
      hypotheses have ended; `BeamSearch` continues while an open hypothesis can win.
    - At `max_decoding_length`, `translate_batch` returns open hypotheses unchanged.
      `BeamSearch` appends the end token, except for a `CausalLM`.
    - `translate_batch` returns an empty output only with `min_decoding_length=0`.
    - CTranslate2 can choose the pad token, which is rare in trained models.
      `suppress_sequences=[["<pad>"]]` prevents it; its probability then goes to the
      other tokens. `BeamSearch` never chooses it and leaves the other probabilities
      unchanged.
    - `repetition_penalty` changes logits, that of `RepetitionPenalty` changes
      log-probabilities.

    `CTranslate2Engine` suppresses the pad token, returns empty outputs, and decodes a
    text again whose output is longer than its own limit.

    The folder is loaded and checked before it is moved to `filepath`, so that
    `filepath` holds a correct model or nothing. In float32, each token of greedy search
    must be the most probable one of the model, and the log-probabilities of the outputs
    must be those of the model up to 1e-4 per token. With `quantization`, these
    log-probabilities may differ by up to 0.5 per token. A new process, without Keras
    and TensorFlow, must return the texts of these outputs.

    Args:
        model: a Transformer, such as a `Seq2Seq` or a `CausalLM`, in float32, with
            tokenizers.
        filepath: folder to write. It must be new or empty.
        search: search whose options the folder records.
        quantization: CTranslate2's name of the type of the stored weights, such as
            `"int8"` or `"float16"`. `None` = float32.
        check_texts: texts for the check. `None` = texts created from the source
            vocabulary.
        languages: the codes of the source and the target language, such as
            `["en", "de"]`, for `/translate` of the server; `None` = unknown.
        scores: dictionary of floats, scores of a validation text, which the folder
            records.
        **options: options of `GenerationOptions`, in place of those of `search`.

    Raises:
        ValueError: if the model has no tokenizers, CTranslate2 does not support a part
            of the model, or `quantization` is unknown.
        FileExistsError: if `filepath` exists and is not an empty folder.
        RuntimeError: if CTranslate2 does not compute the outputs of the model.

    Example:

    ```python
    import ctranslate2
    import sentencepiece

    export_ctranslate2(model, "en-de", BeamSearch(), quantization="int8")
    translator = ctranslate2.Translator("en-de")
    source = sentencepiece.SentencePieceProcessor("en-de/source.model")
    target = sentencepiece.SentencePieceProcessor("en-de/target.model")
    tokens = source.encode(["A man sleeps."], out_type=str)
    results = translator.translate_batch(tokens, beam_size=5)
    target.decode([result.hypotheses[0] for result in results])
    ```

    References:
        - [CTranslate2](https://opennmt.net/CTranslate2/), version 4.8
    """
    check_one_of(ACCEPTED_MODEL_TYPES, optional=True, quantization=quantization)
    pair = language_pair(languages)
    model = without_lora(model)
    transformer = check_transformer(model, "ctranslate2")
    tokenizer = tokenizers_of(model).source
    check_not_quantized(model)
    recorded = options_from_search(search).with_given(**options)
    texts = list(check_texts or sample_texts(model))
    if isinstance(transformer, Seq2Seq):  # without empty texts
        texts = [text for text in texts if len(tokenizer.tokenize([text])[0])]
    rows = tokenizer.tokenize(texts, add_end=True).to_list()
    if not rows:
        raise ValueError(
            "`check_texts` must hold a text that is not empty; received "
            f"`check_texts={check_texts!r}`."
        )
    check_weights(model)
    with new_folder(filepath) as folder:
        _write(transformer, folder, None)
        outputs = _checked_outputs(transformer, folder, rows)
        if quantization is not None:
            _write(transformer, folder, quantization)
            _check_scores(transformer, folder, rows, outputs, ROUNDING_TOLERANCE)
        write_description(transformer, folder, recorded, scores or {}, pair)
        _check_texts(transformer, folder, texts, rows)


def _write(model: Transformer, folder: pathlib.Path, quantization: str | None) -> None:
    spec = make_spec(model)
    spec.validate()
    spec.optimize(quantization)
    folder.mkdir(exist_ok=True)
    spec.save(str(folder))
    for name, tokenizer in tokenizers_to_write(model).items():
        _write_tokenizer(tokenizer, folder, name)


def _write_tokenizer(tokenizer: Tokenizer, folder: pathlib.Path, name: str) -> None:
    """Writes a tokenizer for the packages of others, if there is one that reads it."""
    if isinstance(tokenizer, SentencePieceTokenizer | MarianTokenizer):
        (folder / f"{name}.model").write_bytes(tokenizer.proto)
    elif isinstance(tokenizer, HuggingFaceTokenizer):
        (folder / _json_name(name)).write_text(tokenizer.content, "utf-8", newline="")
    elif isinstance(tokenizer, KerasHubTokenizer) and tokenizer.byte_pairs:
        side = "" if name == "tokenizer" else f"{name}_"
        vocabulary, merges = tokenizer.byte_pairs
        write_json(folder / f"{side}vocab.json", vocabulary)
        lines = "".join(f"{line}\n" for line in ("#version: 0.2", *merges))
        (folder / f"{side}merges.txt").write_text(lines, "utf-8", newline="\n")


def _json_name(name: str) -> str:
    return "tokenizer.json" if name == "tokenizer" else f"{name}_tokenizer.json"


def _describe(tokenizer: Tokenizer, name: str) -> dict[str, object]:
    """Returns the class and the arguments of a tokenizer, its model as a file name."""
    config = tokenizer.get_config()
    if "proto" in config:
        config["proto"] = f"{name}.model"
    elif isinstance(tokenizer, HuggingFaceTokenizer):
        config["tokenizer"] = _json_name(name)
    return {"class_name": type(tokenizer).__name__, "config": config}


def _texts_tokenizers(model: Transformer) -> tuple[Tokenizer, Tokenizer]:
    """Returns the tokenizers of texts; that of prompts adds the start token alone."""
    source, target = tokenizers_of(model)
    return (target if isinstance(model, CausalLM) else source), target


def _check_plain(*tokenizers: Tokenizer) -> None:
    """Raises `ValueError` if a tokenizer has no form in plain Python."""
    for tokenizer in tokenizers:
        content = {
            "class_name": type(tokenizer).__name__,
            "config": tokenizer.get_config(),
        }
        read_tokenizer(content, pathlib.Path())


def check_supported(model: GenerativeModel) -> None:
    """Raises `ValueError` if CTranslate2 and the plain tokenizers lack a part of it."""
    transformer = check_transformer(model, "ctranslate2")
    check_not_quantized(model)
    make_spec(transformer)
    _check_plain(*_texts_tokenizers(transformer))


def write_ctranslate2(
    model: GenerativeModel, folder: pathlib.Path, options: GenerationOptions
) -> None:
    """Writes a model in float32, without checks, into a folder that exists."""
    transformer = check_transformer(model, "ctranslate2")
    _write(transformer, folder, None)
    write_description(transformer, folder, options, {})


def write_description(
    model: Transformer,
    folder: pathlib.Path,
    options: GenerationOptions,
    scores: Mapping[str, float],
    languages: tuple[str, str] | None = None,
) -> None:
    """Writes the file that makes the folder complete."""
    source, target = _texts_tokenizers(model)
    is_language_model = isinstance(model, CausalLM)
    names = ("tokenizer", "tokenizer") if is_language_model else ("source", "target")
    source_limit, target_limit = length_limits(model)
    ModelDescription(
        is_language_model=is_language_model,
        add_start_token=isinstance(model, CausalLM) and model.add_start_token,
        tokenizers={
            "source": _describe(source, names[0]),
            "target": _describe(target, names[1]),
        },
        options=options,
        limits=LengthLimits(source_limit, target_limit, model.output_length_ratio),
        scores=scores,
        languages=languages,
    ).write(folder)


class _Engine(abc.ABC):
    """A model that CTranslate2 has loaded, with token ids as inputs and outputs."""

    def __init__(self, model: Transformer, folder: pathlib.Path):
        self.model, self.folder = model, str(folder)
        source, target = tokenizers_of(model)
        self.sources = embedding_vocabulary(source, model.source_vocabulary_size)
        self.targets = embedding_vocabulary(target, model.target_vocabulary_size)
        self.ids = {token: row for row, token in enumerate(self.targets)}
        self.suppressed = [[self.targets[model.pad_token_id]]]

    def target_tokens(self, row: list[int]) -> list[str]:
        """Converts ids of a target to tokens."""
        return [self.targets[token_id] for token_id in row]

    @abc.abstractmethod
    def decode(self, rows: Rows, max_length: int) -> Rows:
        """Returns the outputs of greedy search as `generate` returns them."""

    @abc.abstractmethod
    def score(self, rows: Rows, targets: Rows) -> np.ndarray:
        """Returns the log-probabilities of targets: float array `(len(targets),)`."""


@final
class _Translator(_Engine):
    """An encoder-decoder Transformer. CTranslate2 adds the end tokens."""

    def decode(self, rows: Rows, max_length: int) -> Rows:
        results = ctranslate2.Translator(self.folder).translate_batch(
            self._source_tokens(rows),
            beam_size=1,
            min_decoding_length=0,
            max_decoding_length=max(1, max_length - 1),
            suppress_sequences=self.suppressed,
        )
        outputs = [result.hypotheses[0][: max_length - 1] for result in results]
        end = self.model.end_token_id
        return [[*(self.ids[token] for token in row), end] for row in outputs]

    def score(self, rows: Rows, targets: Rows) -> np.ndarray:
        results = ctranslate2.Translator(self.folder).score_batch(
            self._source_tokens(rows), [self.target_tokens(row[:-1]) for row in targets]
        )
        return np.array([math.fsum(result.log_probs) for result in results])

    def _source_tokens(self, rows: Rows) -> list[list[str]]:
        return [[self.sources[token_id] for token_id in row[:-1]] for row in rows]


@final
class _Generator(_Engine):
    """A decoder-only Transformer, which continues prompts."""

    def decode(self, rows: Rows, max_length: int) -> Rows:
        results = ctranslate2.Generator(self.folder).generate_batch(
            [self.target_tokens(row) for row in rows],
            # In a batch with a prompt of one token, the outputs begin with the prompts.
            max_batch_size=1,
            max_length=max_length,
            suppress_sequences=self.suppressed,
            include_prompt_in_result=False,
            return_end_token=True,
        )
        return [[self.ids[token] for token in r.sequences[0]] for r in results]

    def score(self, rows: Rows, targets: Rows) -> np.ndarray:
        results = ctranslate2.Generator(self.folder).score_batch(
            [
                self.target_tokens([*row, *target])
                for row, target in zip(rows, targets, strict=True)
            ],
            max_input_length=0,
        )
        return np.array(
            [
                math.fsum(result.log_probs[-len(target) :])
                for result, target in zip(results, targets, strict=True)
            ]
        )


def _load(model: Transformer, folder: pathlib.Path) -> _Engine:
    kind = _Translator if isinstance(model, Seq2Seq) else _Generator
    return kind(model, folder)


def _checked_outputs(model: Transformer, folder: pathlib.Path, rows: Rows) -> Rows:
    """Returns the outputs of greedy search, and checks that the model chooses them.

    Their log-probabilities must be those of the model. The model computes them in one
    pass that is not compiled.
    """
    max_length = checked_length(model, rows)
    outputs = _load(model, folder).decode(rows, max_length)
    ties = 0
    for row, output, table in zip(
        rows, outputs, _log_probabilities(model, rows, outputs), strict=True
    ):
        table[:, model.pad_token_id] = -np.inf  # which neither of them chooses
        forced = model.forces_end_token and len(output) == max_length
        steps = np.arange(len(output) - forced)
        chosen = np.array(output, "int32")[steps]
        behind = table[steps].max(axis=-1, initial=-np.inf) - table[steps, chosen]
        if (behind > SCORE_TOLERANCE).any():
            step = int(np.argmax(behind > SCORE_TOLERANCE))
            raise RuntimeError(
                f"CTranslate2 gives the token ids {output} for {row}, but the model "
                f"chooses the token id {table[step].argmax()} after {output[:step]}; "
                "nothing was written."
            )
        ties += bool((behind > 0).any())
    if ties:
        warnings.warn(
            f"{ties} of {len(rows)} texts may differ from those of `generate`, where "
            f"the scores of two tokens differ by less than {SCORE_TOLERANCE}.",
            stacklevel=3,
        )
    _check_scores(model, folder, rows, outputs, SCORE_TOLERANCE)
    return outputs


def _log_probabilities(
    model: Transformer, rows: Rows, targets: Rows
) -> list[np.ndarray]:
    """Returns the log-probabilities `(target_length, vocabulary_size)` of each pair."""
    tables: dict[int, np.ndarray] = {}
    for batch in pair_batches(model, token_pairs(model, rows, targets), len(rows)):
        logits = ops.cast(model(batch.inputs, training=False), "float32")
        found = ops.convert_to_numpy(ops.log_softmax(logits))
        for index, table in zip(batch.indices, found, strict=False):
            tables[index] = table[: len(targets[index])].copy()
    return [tables[index] for index in range(len(rows))]


# Generates texts with the folder alone.
_GENERATE = """
import json, sys
from keras_transformer_runtime.engines.ctranslate2_engine import CTranslate2Engine
folder, texts, max_length = json.load(sys.stdin)
engine = CTranslate2Engine.load(folder)
options = type(engine.options)(num_beams=1, max_length=max_length)
print(json.dumps([row[0].text for row in engine.generate(texts, options)]))
assert not {"keras", "tensorflow"} & sys.modules.keys()
"""


def _check_texts(
    model: Transformer, folder: pathlib.Path, texts: list[str], rows: Rows
) -> None:
    """Compares texts of a new process with the decoded tokens of CTranslate2."""
    source, target = tokenizers_of(model)
    try:
        _check_plain(*_texts_tokenizers(model))
    except ValueError as error:
        warnings.warn(
            f"CTranslate2 can use the folder, and the commands cannot: {error}",
            stacklevel=3,
        )
        return
    max_length = checked_length(model, rows)
    outputs = _load(model, folder).decode(rows, max_length)
    expected = target.detokenize(tf.ragged.constant(outputs, tf.int32, ragged_rank=1))
    found = json.loads(run_python(_GENERATE, [str(folder), texts, max_length]))
    for text, row, one, other in zip(texts, rows, expected.numpy(), found, strict=True):
        if source.has_words(text, row) and one.decode() != other:
            raise RuntimeError(
                f"A new process gives {other!r} for {text!r}, but the tokenizer gives "
                f"{one.decode()!r}; nothing was written."
            )


def _check_scores(
    model: Transformer,
    folder: pathlib.Path,
    rows: Rows,
    targets: Rows,
    tolerance: float,
) -> None:
    """Compares the log-probabilities of the targets."""
    found = _load(model, folder).score(rows, targets)
    tables = _log_probabilities(model, rows, targets)
    for row, target, score, table in zip(rows, targets, found, tables, strict=True):
        expected = float(table[np.arange(len(target)), target].sum())
        if not abs(score - expected) <= tolerance * max(len(target), 1):
            raise RuntimeError(
                f"CTranslate2 gives the token ids {target} a log-probability of "
                f"{score} after {row}, but the model gives {expected}; nothing was "
                "written."
            )
