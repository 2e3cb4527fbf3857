"""Writes a trained model for CTranslate2, a fast translator on CPUs and GPUs."""

import math
import os
import pathlib
import warnings
from collections.abc import Sequence

import ctranslate2
import numpy as np
from ctranslate2.specs.model_spec import ACCEPTED_MODEL_TYPES

from keras_transformer.backend.quantized import check_not_quantized
from keras_transformer.decoding import GreedySearch, Search
from keras_transformer.export.checking import (
    ROUNDING_TOLERANCE,
    SCORE_TOLERANCE,
    best_hypotheses,
    check_has_tokenizers,
    check_log_probabilities,
    longest_checked,
    sample_texts,
)
from keras_transformer.export.ctranslate2_spec import make_spec
from keras_transformer.export.vocabulary import vocabulary
from keras_transformer.files import new_folder
from keras_transformer.models import Seq2Seq
from keras_transformer.text import MarianTokenizer, SentencePieceTokenizer


def export_ctranslate2(
    model: Seq2Seq,
    filepath: str | os.PathLike,
    search: Search,
    *,
    quantization: str | None = None,
    check_texts: Sequence[str] | None = None,
) -> None:
    """Writes a folder that `ctranslate2.Translator` loads, with tokenizers.

    It holds the model and the vocabularies of CTranslate2, and `source.model` and
    `target.model` for the package sentencepiece where the tokenizers are
    `SentencePieceTokenizer`s or `MarianTokenizer`s. CTranslate2 takes tokens without
    the end token and returns tokens without it.

    There are pre-norm and post-norm models, layer and RMS normalisation, gated
    feed-forward networks, grouped-query attention, sinusoidal, learned and
    rotary positions, relative position bias, and every tying of embeddings. Encodings
    are written as a table: of `max_source_length` positions for the source, of 2,048
    where nothing says how many; CTranslate2 refuses what is longer.

    Logits are those of the model, to rounding. The search is not part of the
    folder: it is CTranslate2's, with the arguments of `translate_batch`, and
    differs from `BeamSearch` so:

    - a score is the sum of the log-probabilities, the end token's included,
      divided by `length ** length_penalty`, where `BeamSearch` divides by
      `((5 + length) / 6) ** length_penalty`; both lengths count the end token.
      `length_penalty=0` is the same in both, and CTranslate2's default is 1;
    - without penalty both stop when nothing better can come; with one, CTranslate2
      stops when `beam_size * patience` hypotheses have ended, ours goes on while
      an open one may still win;
    - at `max_decoding_length` open hypotheses are returned as they are; ours get
      the end token;
    - an empty output is only found with `min_decoding_length=0`;
    - the pad token can be chosen, which a trained model hardly ever does. It is
      ruled out by `suppress_sequences=[["<pad>"]]`, and its probability then goes
      to the other tokens; ours leaves theirs.

    What was written is loaded before it takes its place, so that `filepath` holds
    a good folder or nothing. By greedy search, which is the same in both, it must
    give the tokens of `generate`; to the hypotheses of `search` it must give the
    log-probabilities of `Seq2Seq.score`, to 1e-4 a token. This is done in float32;
    with `quantization` those log-probabilities must then still be right to 0.5 a
    token.

    Args:
        model: a `Seq2Seq` with tokenizers, in float32.
        filepath: folder to write; it must not exist or be empty.
        search: how to find the hypotheses that are scored in the check.
        quantization: how weights are stored, by CTranslate2's name, such as
            `"int8"` or `"float16"`; float32 if `None`.
        check_texts: texts to check with; some made of the source vocabulary if
            `None`.

    Raises:
        ValueError: if the model has no tokenizers or a part that CTranslate2
            lacks, or `quantization` is not one of its names.
        FileExistsError: if `filepath` exists and is not an empty folder.
        RuntimeError: if CTranslate2 computes something else than the model.

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
    if quantization not in (None, *ACCEPTED_MODEL_TYPES):
        raise ValueError(
            f"`quantization` must be one of {ACCEPTED_MODEL_TYPES} or `None`; received "
            f"`quantization={quantization!r}`."
        )
    if not isinstance(model, Seq2Seq):
        raise ValueError(
            "`model` must be a `Seq2Seq` for `format='ctranslate2'`, which has no "
            f"ensembles; received {model}. Use `format='saved_model'`."
        )
    check_has_tokenizers(model)
    check_not_quantized(model)
    rows = _source_rows(model, check_texts or sample_texts(model))
    if not rows:
        raise ValueError(
            "`check_texts` must hold a text that is not empty; received "
            f"`check_texts={check_texts!r}`."
        )
    with new_folder(filepath) as folder:
        _write(model, folder, None)
        _check_tokens(model, folder, rows)
        best = best_hypotheses(model, rows, search, longest_checked(model))
        pairs = zip(rows, best, strict=True)
        found = [pair for pair in pairs if pair[1]]  # Rules may leave nothing.
        rows, targets = ([pair[i] for pair in found] for i in range(2))
        _check_scores(model, folder, rows, targets, SCORE_TOLERANCE)
        if quantization is not None:
            _write(model, folder, quantization)
            _check_scores(model, folder, rows, targets, ROUNDING_TOLERANCE)


def _write(model: Seq2Seq, folder: pathlib.Path, quantization: str | None) -> None:
    spec = make_spec(model)
    spec.validate()
    spec.optimize(quantization)
    folder.mkdir(exist_ok=True)
    spec.save(str(folder))
    for side in ("source", "target"):
        tokenizer = getattr(model, f"{side}_tokenizer")
        if isinstance(tokenizer, SentencePieceTokenizer | MarianTokenizer):
            (folder / f"{side}.model").write_bytes(tokenizer.proto)


def _source_rows(model: Seq2Seq, texts: Sequence[str]) -> list[list[int]]:
    """Token ids with the end token; none of empty texts."""
    rows = model.source_tokenizer.tokenize(list(texts), add_end=True).to_list()
    return [row for row in rows if len(row) > 1]


def _tokens(model: Seq2Seq, side: str, rows: list[list[int]]) -> list[list[str]]:
    """Rows of token ids in CTranslate2's form, without the end token."""
    names = vocabulary(model, side)
    return [[names[token_id] for token_id in row[:-1]] for row in rows]


def _check_tokens(model: Seq2Seq, folder: pathlib.Path, rows: list[list[int]]) -> None:
    """Compares the outputs of greedy search, apart from ties."""
    wanted = best_hypotheses(model, rows, GreedySearch(), longest_checked(model))
    longest = longest_checked(model) - 1
    results = ctranslate2.Translator(str(folder)).translate_batch(
        _tokens(model, "source", rows),
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=max(1, longest),
        suppress_sequences=[[vocabulary(model, "target")[model.pad_token_id]]],
    )
    ids = {token: row for row, token in enumerate(vocabulary(model, "target"))}
    ties = 0
    for source, target, result in zip(rows, wanted, results, strict=True):
        given = [ids[token] for token in result.hypotheses[0][:longest]]
        given.append(model.end_token_id)
        if given == target:
            continue
        if not _are_tied(model, source, target, given):
            raise RuntimeError(
                f"CTranslate2 gives the token ids {given} for {source}, but `generate` "
                f"gives {target}; nothing was written."
            )
        ties += 1
    if ties:
        warnings.warn(
            f"{ties} of {len(rows)} texts differ from those of `generate`, where two "
            f"tokens have scores closer than {SCORE_TOLERANCE}.",
            stacklevel=3,
        )


def _are_tied(
    model: Seq2Seq, source: list[int], target: list[int], given: list[int]
) -> bool:
    """Whether the first tokens that differ are equally probable."""
    pairs = zip(target, given, strict=False)
    same = [one == other for one, other in pairs].index(False)
    prefixes = [target[: same + 1], given[: same + 1]]
    one, other = model.score([source, source], prefixes).scores
    return abs(one - other) <= SCORE_TOLERANCE


def _check_scores(
    model: Seq2Seq,
    folder: pathlib.Path,
    rows: list[list[int]],
    targets: list[list[int]],
    tolerance: float,
) -> None:
    """Compares the log-probabilities of the targets, a token."""
    if not targets:
        return
    results = ctranslate2.Translator(str(folder)).score_batch(
        _tokens(model, "source", rows), _tokens(model, "target", targets)
    )
    found = np.array([math.fsum(result.log_probs) for result in results])
    check_log_probabilities("CTranslate2", model, rows, targets, found, tolerance)
