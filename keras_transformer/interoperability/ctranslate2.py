"""Models of CTranslate2: reads a folder as a `Seq2Seq`."""

import contextlib
import os
import pathlib
from typing import Any, NamedTuple

from keras_transformer.export.vocabulary import UNUSED
from keras_transformer.files import checked_file, read_json
from keras_transformer.interoperability.ctranslate2_design import (
    BIAS,
    OUTPUT,
    SOURCE,
    TARGET,
    architecture,
)
from keras_transformer.interoperability.ctranslate2_file import (
    VERSION,
    Variables,
    read_variables,
)
from keras_transformer.interoperability.ctranslate2_older import (
    SPECIFICATION,
    add_current_names,
    old_config,
)
from keras_transformer.interoperability.ctranslate2_weights import assign
from keras_transformer.interoperability.files import find_folder
from keras_transformer.models import Seq2Seq
from keras_transformer.text import MarianTokenizer, SentencePieceTokenizer

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
# The matrices that have a row for each token of a vocabulary.
MATRICES = {
    "shared": (SOURCE, TARGET, OUTPUT),
    "source": (SOURCE,),
    "target": (TARGET, OUTPUT),
}
PADDING = ("<pad>", "<blank>", "[PAD]")
# Settings of what is not there or not done here, of alignments, of merged embeddings.
HARMLESS = {
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
FLAGS = {"decoder/alibi", "encoder/multi_query_attention", "with_relative_position"}


def load_ctranslate2(
    folder: str | os.PathLike,
    source_tokenizer: Any = None,
    target_tokenizer: Any = None,
) -> Seq2Seq:
    """Reads an encoder-decoder Transformer of CTranslate2.

    The file `model.bin`, of version 2 to 6 of CTranslate2's format, is read as data,
    without the package ctranslate2: weights of 32 or 16 bits, and of 8 bits by their
    scales, become float32. The `Seq2Seq` computes the same logits; what CTranslate2
    computes and this library cannot (a normalisation of the embeddings, source factors,
    …) is refused by name. CTranslate2 stores no rate of dropout: it is 0.1, that of
    `Seq2Seq`.

    A table of positions that holds the paper's sinusoids, in either order, becomes a
    `PositionalEncoding`, any other a `LearnedPositionalEncoding`. The lengths of the
    tables become `max_source_length` and `max_target_length`.

    Where the model has no padding, or starts from a zero embedding, as one converted
    from Marian, a token is added for that, which is never chosen.

    Texts need tokenizers. Without given ones, `source.model` and `target.model` (or
    `.spm`) in the folder are read, if their pieces are those of the vocabularies:
    what `Seq2Seq.export` writes. Otherwise the model takes token ids alone.

    Args:
        folder: the folder; or where there is none of that name, the name of a
            repository on the Hugging Face Hub, whose files the package
            huggingface_hub downloads and keeps.
        source_tokenizer: tokenizer of the source texts.
        target_tokenizer: tokenizer of the target texts; `source_tokenizer` if `None`.

    Returns:
        A `Seq2Seq`, in Keras's dtype policy.

    Raises:
        FileNotFoundError: if there is no such folder, or a file is not in it.
        ValueError: if it holds another kind of model, one with parts that this library
            does not support, or is damaged; or if a vocabulary or a tokenizer does not
            fit.

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
            "`source_tokenizer=None`. Give both, or one as `source_tokenizer` for both."
        )
    path = find_folder(folder, FILES)
    variables = read_variables(checked_file(path / "model.bin"))
    add_current_names(variables)
    if variables.name != SPECIFICATION:
        raise ValueError(
            f"`folder` must hold an encoder-decoder Transformer, a {SPECIFICATION!r}; "
            f"received a {variables.name!r}."
        )
    if variables.version == VERSION:
        config = read_json(checked_file(path / "config.json"))
    else:
        config = old_config(variables)
    arguments = architecture(variables, config.get("layer_norm_epsilon"))
    tokens = _tokens(path, config, variables)
    given = source_tokenizer, target_tokenizer or source_tokenizer
    tokenizers = given if given[1] is not None else _tokenizers(path, tokens)
    if tokenizers is not None:
        _check_tokenizers(tokenizers, tokens)
        names = ("source_tokenizer", "target_tokenizer")
        arguments.update(zip(names, tokenizers, strict=True))
    own_bias = BIAS in variables or tokens.added
    model = Seq2Seq(**arguments, **tokens.arguments(), output_bias=own_bias)
    assign(model, variables)
    _check_all_used(variables)
    return model


class _Tokens(NamedTuple):
    """The vocabularies, with padding, and the special tokens."""

    source: list[str]
    target: list[str]
    shared: bool
    added: bool  # whether padding is added
    special: dict[str, int]

    def arguments(self) -> dict[str, Any]:
        if self.shared:
            return {"vocabulary_size": len(self.source), **self.special}
        return {
            "source_vocabulary_size": len(self.source),
            "target_vocabulary_size": len(self.target),
            **self.special,
        }


def _tokens(
    path: pathlib.Path, config: dict[str, Any], variables: Variables
) -> _Tokens:
    if config.get("add_source_bos"):
        raise ValueError(
            "`add_source_bos` in config.json must be false; received "
            "`add_source_bos=True`, and this library begins no source with a token."
        )
    shared = _vocabulary(path, "shared", variables)
    source = shared or _vocabulary(path, "source", variables)
    target = shared or _vocabulary(path, "target", variables)
    if source is None or target is None:
        raise FileNotFoundError(
            f"`folder` must hold 'shared_vocabulary.json', or a source's and a "
            f"target's; received `folder={str(path)!r}`, which does not."
        )
    from_zero = bool(variables.scalar("decoder/start_from_zero_embedding", 0))
    pad = None if from_zero else _padding(source, target)
    added = pad is None
    if pad is None:
        pad = max(len(source), len(target))
        source, target = (_with_padding(own, pad) for own in (source, target))
    start = pad if from_zero else _index(target, config, "decoder_start_token")
    special = {
        "pad_token_id": pad,
        "start_token_id": start,
        "end_token_id": _index(target, config, "eos_token"),
    }
    return _Tokens(source, target, shared is not None, added, special)


def _padding(source: list[str], target: list[str]) -> int | None:
    """The id of a token that both have for padding, if there is one."""
    for token in PADDING:
        if token in source and token in target:
            index = source.index(token)
            return index if index == target.index(token) else None
    return None


def _with_padding(tokens: list[str], pad: int) -> list[str]:
    """Adds `<pad>` with the id `pad`; the model's own goes by another name."""
    renamed = ["<own pad>" if token == "<pad>" else token for token in tokens]
    return [*renamed, *map(UNUSED.format, range(len(tokens), pad)), "<pad>"]


def _vocabulary(
    path: pathlib.Path, side: str, variables: Variables
) -> list[str] | None:
    name = f"{side}_vocabulary"
    if (path / f"{name}.json").exists():
        file = path / f"{name}.json"
        tokens = list(map(str, read_json(file, list)))
    elif (path / f"{name}.txt").exists():
        file = path / f"{name}.txt"
        tokens = _lines(file)
    else:
        return None
    for matrix in MATRICES[side]:
        rows = variables.shape(matrix)[0]
        if len(tokens) != rows:
            raise ValueError(
                f"{file} must have a token for each of the {rows} rows of {matrix!r} "
                f"in model.bin; it has {len(tokens)} tokens. Take the vocabulary that "
                "was written with the model."
            )
    return tokens


def _lines(file: pathlib.Path) -> list[str]:
    """Splits at newlines alone; `str.splitlines` would also split inside of tokens."""
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} must be UTF-8; it is not: {error}.") from error
    return text.removesuffix("\n").split("\n")


def _index(tokens: list[str], config: dict[str, Any], name: str) -> int:
    if config.get(name) not in tokens:
        raise ValueError(
            f"`{name}` in config.json must be a token of the target vocabulary; "
            f"received `{name}={config.get(name)!r}`."
        )
    return tokens.index(config[name])


def _tokenizers(path: pathlib.Path, tokens: _Tokens) -> tuple[Any, Any] | None:
    """Those in the folder, if they fit."""
    protos = []
    for side in ("source", "target"):
        files = [path / f"{side}.{kind}" for kind in ("model", "spm")]
        protos += [file.read_bytes() for file in files if file.is_file()][:1]
    if len(protos) < 2:
        return None
    source = target = _tokenizer(protos[0], tokens.source)
    if protos[0] != protos[1] or not tokens.shared:
        target = _tokenizer(protos[1], tokens.target)
    if source is None or target is None:
        return None
    return (source, target) if _fit((source, target), tokens) else None


def _tokenizer(proto: bytes, tokens: list[str]) -> Any:
    """With the ids of the pieces if they are the vocabulary, else with its ids.

    It is `None` if no tokenizer can have the vocabulary.
    """
    with contextlib.suppress(ValueError):  # if the pieces lack a special token
        tokenizer = SentencePieceTokenizer(proto)
        if tokenizer.get_vocabulary() == tokens[: tokenizer.vocabulary_size]:
            return tokenizer
    with contextlib.suppress(ValueError):
        return MarianTokenizer(proto, tokens)
    return None


def _fit(tokenizers: tuple[Any, Any], tokens: _Tokens) -> bool:
    source, target = tokenizers
    special = {name: getattr(target, name) for name in tokens.special}
    return special == tokens.special and source.pad_token_id == target.pad_token_id


def _check_tokenizers(tokenizers: tuple[Any, Any], tokens: _Tokens) -> None:
    if not _fit(tokenizers, tokens):
        raise ValueError(
            "`source_tokenizer` and `target_tokenizer` must have the special tokens of "
            f"the model, {tokens.special}; received others."
        )


def _check_all_used(variables: Variables) -> None:
    for name in variables.unused():
        if name not in HARMLESS or (name in FLAGS and variables.scalar(name)):
            raise ValueError(
                f"`folder` must hold a model without {name!r}, which this library "
                "does not support; received one that has it."
            )
