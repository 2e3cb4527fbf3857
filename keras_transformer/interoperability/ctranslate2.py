"""Loads encoder-decoder Transformers of CTranslate2."""

import contextlib
import os
import pathlib
from typing import NamedTuple

from keras_transformer.files import checked_file, read_json
from keras_transformer.interoperability.added_tokens import with_padding
from keras_transformer.interoperability.ctranslate2_architecture import (
    BIAS,
    OUTPUT,
    SOURCE,
    TARGET,
    seq2seq_arguments,
)
from keras_transformer.interoperability.ctranslate2_file import (
    SPECIFICATION,
    VERSION,
    Variables,
    older_config,
    read_variables,
)
from keras_transformer.interoperability.ctranslate2_weights import assign
from keras_transformer.interoperability.files import find_folder
from keras_transformer.models import Seq2Seq
from keras_transformer.text import MarianTokenizer, SentencePieceTokenizer, Tokenizer
from keras_transformer.types import Config

FILES = (
    "config.json",
    "model.bin",
    *(
        f"{side}_vocabulary.{kind}"
        for side in ("shared", "source", "target")
        for kind in ("json", "txt")
    ),
    *(f"{side}.{kind}" for side in ("source", "target") for kind in ("model", "spm")),
)
# Matrices with a row for each token of a vocabulary.
MATRICES = {
    "shared": (SOURCE, TARGET, OUTPUT),
    "source": (SOURCE,),
    "target": (TARGET, OUTPUT),
}
PAD_TOKENS = ("<pad>", "<blank>", "[PAD]")
# Settings without an effect here: of absent parts, of alignments, of a single source.
IGNORED = {
    "alignment_heads",
    "alignment_layer",
    "decoder/alibi",
    "decoder/alibi_use_positive_positions",
    "decoder/alignment_heads",
    "decoder/alignment_layer",
    "decoder/scale_alibi",
    "embeddings_merge",
    "encoder/embeddings_merge",
    "encoder/multi_query_attention",
    "unk_token",
    "with_relative_position",
    "with_source_eos",
}
# Those of them that must be false.
FLAGS = {"decoder/alibi", "encoder/multi_query_attention", "with_relative_position"}


def load_ctranslate2(
    folder: str | os.PathLike,
    source_tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
) -> Seq2Seq:
    """Loads an encoder-decoder Transformer of CTranslate2.

    The file `model.bin`, in version 2 to 6 of CTranslate2's format, is read as data.
    The package ctranslate2 is not required. Weights in 32, 16 or 8 bits are converted
    to float32. The `Seq2Seq` computes the same logits as CTranslate2. A part of the
    model that this library does not support, such as normalized embeddings or source
    factors, raises an error with its name. CTranslate2 does not store dropout rates;
    the rate is 0.1, the default of `Seq2Seq`.

    A table of positions that equals the sinusoids of the original Transformer, in
    either order, becomes a `PositionalEncoding`. Any other table becomes a
    `LearnedPositionalEncoding`. The lengths of the tables become `max_source_length`
    and `max_target_length`.

    If the model has no padding token, or decodes from a zero embedding, as models
    converted from Marian do, a padding token is added. It is never chosen.

    Texts require tokenizers. By default, they are read from `source.model` and
    `target.model` (or `.spm`) in the folder if their pieces match the vocabularies, as
    in folders that `model.export` has written. Otherwise the model accepts only token
    ids.

    Args:
        folder: path of a folder. If there is no such folder, the name of a repository
            on the Hugging Face Hub, whose files the package huggingface_hub downloads
            and caches.
        source_tokenizer: tokenizer of the source texts.
        target_tokenizer: tokenizer of the target texts. `None` = `source_tokenizer`.

    Returns:
        A `Seq2Seq`, in Keras's global dtype policy.

    Raises:
        FileNotFoundError: if there is no such folder, or a file is missing.
        ValueError: if the folder contains another kind of model, a part that this
            library does not support, or a damaged file; or if a vocabulary or a
            tokenizer does not match the model.

    Example:

    ```python
    model.export("en-de", format="ctranslate2")
    loaded = load_ctranslate2("en-de")
    outputs = loaded.generate(texts, max_length=9)
    print(outputs == model.generate(texts, max_length=9))  # True
    ```

    References:
        - [CTranslate2](https://opennmt.net/CTranslate2/), version 4.8, which reads the
          same older versions of its format
    """
    if source_tokenizer is None and target_tokenizer is not None:
        raise ValueError(
            "`source_tokenizer` must be given with `target_tokenizer`; received "
            "`source_tokenizer=None`. Pass both, or one for both sides as "
            "`source_tokenizer`."
        )
    path = find_folder(folder, FILES)
    variables = read_variables(checked_file(path / "model.bin"))
    if variables.name != SPECIFICATION:
        raise ValueError(
            f"`folder` must hold an encoder-decoder Transformer, a {SPECIFICATION!r}; "
            f"received a {variables.name!r}."
        )
    if variables.version == VERSION:
        config = read_json(checked_file(path / "config.json"))
    else:
        config = older_config(variables)
    arguments = seq2seq_arguments(variables, config.get("layer_norm_epsilon"))
    vocabularies = _read_vocabularies(path, config, variables)
    if source_tokenizer is not None:
        tokenizers = _Tokenizers(source_tokenizer, target_tokenizer or source_tokenizer)
        _check_tokenizers(tokenizers, vocabularies)
        arguments |= tokenizers._asdict()
    elif (stored := _stored_tokenizers(path, vocabularies)) is not None:
        arguments |= stored._asdict()
    output_bias = BIAS in variables or vocabularies.has_added_padding
    arguments |= vocabularies.arguments()
    model = Seq2Seq(**arguments, output_bias=output_bias)
    assign(model, variables)
    _check_all_read(variables)
    return model


class _Vocabularies(NamedTuple):
    """The tokens of both sides, padding included, and the special ids."""

    source: list[str]
    target: list[str]
    is_shared: bool
    has_added_padding: bool
    special_ids: dict[str, int]

    def arguments(self) -> Config:
        """Returns the arguments of a `Seq2Seq`."""
        if self.is_shared:
            return {"vocabulary_size": len(self.source), **self.special_ids}
        return {
            "source_vocabulary_size": len(self.source),
            "target_vocabulary_size": len(self.target),
            **self.special_ids,
        }


class _Tokenizers(NamedTuple):
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer


def _read_vocabularies(
    folder: pathlib.Path, config: Config, variables: Variables
) -> _Vocabularies:
    if config.get("add_source_bos"):
        raise ValueError(
            "`add_source_bos` in config.json must be false; received "
            "`add_source_bos=True`. This library adds no start token to sources."
        )
    shared = _vocabulary(folder, "shared", variables)
    source = shared or _vocabulary(folder, "source", variables)
    target = shared or _vocabulary(folder, "target", variables)
    if source is None or target is None:
        raise FileNotFoundError(
            "`folder` must hold 'shared_vocabulary.json', or both "
            "'source_vocabulary.json' and 'target_vocabulary.json'; received "
            f"`folder={str(folder)!r}`, where they are missing."
        )
    from_zero = bool(variables.scalar("decoder/start_from_zero_embedding", 0))
    pad = None if from_zero else _shared_pad_id(source, target)
    has_added_padding = pad is None
    if pad is None:
        pad = max(len(source), len(target))
        source, target = (with_padding(side, pad) for side in (source, target))
    start = pad if from_zero else _token_id(target, config, "decoder_start_token")
    special_ids = {
        "pad_token_id": pad,
        "start_token_id": start,
        "end_token_id": _token_id(target, config, "eos_token"),
    }
    is_shared = shared is not None
    return _Vocabularies(source, target, is_shared, has_added_padding, special_ids)


def _shared_pad_id(source: list[str], target: list[str]) -> int | None:
    """Returns the id of a padding token that both sides have; `None` without one."""
    for token in PAD_TOKENS:
        if token in source and token in target:
            index = source.index(token)
            return index if index == target.index(token) else None
    return None


def _vocabulary(
    folder: pathlib.Path, side: str, variables: Variables
) -> list[str] | None:
    name = f"{side}_vocabulary"
    if (folder / f"{name}.json").exists():
        file = folder / f"{name}.json"
        tokens = list(map(str, read_json(file, list)))
    elif (folder / f"{name}.txt").exists():
        file = folder / f"{name}.txt"
        tokens = _read_lines(file)
    else:
        return None
    for matrix in MATRICES[side]:
        rows = variables.shape(matrix)[0]
        if len(tokens) != rows:
            raise ValueError(
                f"{file} must have a token for each of the {rows} rows of {matrix!r} "
                f"in model.bin; it has {len(tokens)} tokens. Use the vocabulary that "
                "was written with the model."
            )
    return tokens


def _read_lines(file: pathlib.Path) -> list[str]:
    """Splits a file at newlines; `str.splitlines` would also split tokens."""
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} must be UTF-8; it is not: {error}.") from error
    return text.removesuffix("\n").split("\n")


def _token_id(tokens: list[str], config: Config, name: str) -> int:
    """Returns the id of the token that a setting names."""
    if config.get(name) not in tokens:
        raise ValueError(
            f"`{name}` in config.json must be a token of the target vocabulary; "
            f"received `{name}={config.get(name)!r}`."
        )
    return tokens.index(config[name])


def _stored_tokenizers(
    folder: pathlib.Path, vocabularies: _Vocabularies
) -> _Tokenizers | None:
    """Reads the tokenizers in the folder; `None` if they do not match."""
    protos = []
    for side in ("source", "target"):
        files = [folder / f"{side}.{kind}" for kind in ("model", "spm")]
        protos += [file.read_bytes() for file in files if file.is_file()][:1]
    if len(protos) < 2:
        return None
    source = target = _tokenizer(protos[0], vocabularies.source)
    if protos[0] != protos[1] or not vocabularies.is_shared:
        target = _tokenizer(protos[1], vocabularies.target)
    if source is None or target is None:
        return None
    tokenizers = _Tokenizers(source, target)
    return tokenizers if _match(tokenizers, vocabularies) else None


def _tokenizer(proto: bytes, tokens: list[str]) -> Tokenizer | None:
    """Builds a tokenizer with the given vocabulary; `None` if there is none."""
    with contextlib.suppress(ValueError):  # a special token is not among the pieces
        tokenizer = SentencePieceTokenizer(proto)
        if tokenizer.get_vocabulary() == tokens[: tokenizer.vocabulary_size]:
            return tokenizer
    with contextlib.suppress(ValueError):
        return MarianTokenizer(proto, tokens)
    return None


def _match(tokenizers: _Tokenizers, vocabularies: _Vocabularies) -> bool:
    """Returns whether tokenizers have the special ids of the model."""
    source, target = tokenizers
    special_ids = {name: getattr(target, name) for name in vocabularies.special_ids}
    return (
        special_ids == vocabularies.special_ids
        and source.pad_token_id == target.pad_token_id
    )


def _check_tokenizers(tokenizers: _Tokenizers, vocabularies: _Vocabularies) -> None:
    if not _match(tokenizers, vocabularies):
        raise ValueError(
            "`source_tokenizer` and `target_tokenizer` must have the special tokens of "
            f"the model, {vocabularies.special_ids}; received tokenizers with others."
        )


def _check_all_read(variables: Variables) -> None:
    """Raises `ValueError` if the model has a variable that this library ignores."""
    for name in variables.unread():
        if name not in IGNORED or (name in FLAGS and variables.scalar(name)):
            raise ValueError(
                f"`folder` must hold a model without {name!r}, which this library "
                "does not support; received a model with it."
            )
