"""Reads the vocabularies and the tokenizers of a CTranslate2 folder."""

import contextlib
import json
import pathlib
from collections.abc import Mapping
from typing import NamedTuple

from keras_transformer.export.model_support import Tokenizers
from keras_transformer.interoperability.ctranslate2_architecture import (
    OUTPUT,
    SOURCE,
    TARGET,
)
from keras_transformer.interoperability.ctranslate2_file import Variables
from keras_transformer.interoperability.files import file_named, with_padding
from keras_transformer.text import (
    HuggingFaceTokenizer,
    KerasHubTokenizer,
    MarianTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
)
from keras_transformer.text.sentence_piece_tokenizer import load_pieces
from keras_transformer.types import Config
from keras_transformer_runtime.files import checked_file, read_file, read_json
from keras_transformer_runtime.tokenizers.hugging_face_tokenizers import (
    read_vocabulary,
)

# Matrices with a row for each token of a vocabulary, by the name of its file.
MATRICES = {
    "shared_vocabulary": (SOURCE, TARGET, OUTPUT),
    "source_vocabulary": (SOURCE,),
    "target_vocabulary": (TARGET, OUTPUT),
    "vocabulary": (TARGET, OUTPUT),
}
PAD_TOKENS = ("<pad>", "<blank>", "[PAD]")


class _Vocabularies(NamedTuple):
    """The tokens of both sides, padding included, and the special ids."""

    source: list[str]
    target: list[str]
    is_shared: bool
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


def encoder_decoder_vocabularies(
    folder: pathlib.Path,
    config: Config,
    variables: Variables,
    tokenizers: Tokenizers | None,
) -> Config:
    """Returns the arguments of a `Seq2Seq` for its vocabularies and tokenizers.

    Without `tokenizers`, it has those in the folder, if they match.
    """
    vocabularies = _read_vocabularies(folder, config, variables)
    if tokenizers is None:
        unknown = _index(vocabularies.target, config.get("unk_token"))
        tokenizers = _stored_tokenizers(folder, vocabularies, unknown)
    elif not _match(tokenizers, vocabularies):
        raise ValueError(
            "`source_tokenizer` and `target_tokenizer` must have the special tokens of "
            f"the model, {vocabularies.special_ids}; received tokenizers with others."
        )
    if tokenizers is None:
        return vocabularies.arguments()
    source, target = tokenizers
    own = {"source_tokenizer": source, "target_tokenizer": target}
    return {**vocabularies.arguments(), **own}


def decoder_only_vocabulary(
    folder: pathlib.Path,
    config: Config,
    variables: Variables,
    tokenizer: Tokenizer | None,
) -> Config:
    """Returns the arguments of a `CausalLM` for its vocabulary and tokenizer.

    Without `tokenizer`, it has the one in the folder, if it matches.
    """
    tokens = _vocabulary(folder, "vocabulary", variables)
    if tokens is None:
        raise FileNotFoundError(
            "`folder` must hold 'vocabulary.json'; received "
            f"`folder={str(folder)!r}`, where it is missing."
        )
    special_ids = {
        f"{kind}_token_id": _token_id(tokens, config, name, "vocabulary")
        for kind, name in (("start", "bos_token"), ("end", "eos_token"))
    }
    pads = [tokens.index(token) for token in PAD_TOKENS if token in tokens]
    if pads:
        special_ids["pad_token_id"] = pads[0]
    if tokenizer is None:
        unknown = _index(tokens, config.get("unk_token"))
        tokenizer = _stored_tokenizer(folder, tokens, special_ids, unknown)
    elif not _has_ids(tokenizer, special_ids):
        raise ValueError(
            f"`tokenizer` must have the special tokens of the model, {special_ids}; "
            "received a tokenizer with others."
        )
    if tokenizer is None:
        pad = special_ids.setdefault("pad_token_id", len(tokens))
        return {"vocabulary_size": max(len(tokens), pad + 1), **special_ids}
    # Padding and unknown text of the tokenizer can come after the stored tokens.
    ids = (tokenizer.pad_token_id, tokenizer.unknown_token_id)
    size = max(len(tokens), *(token_id + 1 for token_id in ids))
    return {"vocabulary_size": size, "tokenizer": tokenizer}


def _read_vocabularies(
    folder: pathlib.Path, config: Config, variables: Variables
) -> _Vocabularies:
    if config.get("add_source_bos"):
        raise ValueError(
            "`add_source_bos` in config.json must be false; received "
            "`add_source_bos=True`. This library adds no start token to sources."
        )
    shared = _vocabulary(folder, "shared_vocabulary", variables)
    source = shared or _vocabulary(folder, "source_vocabulary", variables)
    target = shared or _vocabulary(folder, "target_vocabulary", variables)
    if source is None or target is None:
        raise FileNotFoundError(
            "`folder` must hold 'shared_vocabulary.json', or both "
            "'source_vocabulary.json' and 'target_vocabulary.json'; received "
            f"`folder={str(folder)!r}`, where they are missing."
        )
    from_zero = bool(variables.scalar("decoder/start_from_zero_embedding", 0))
    pad = None if from_zero else _shared_pad_id(source, target)
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
    return _Vocabularies(source, target, is_shared, special_ids)


def _shared_pad_id(source: list[str], target: list[str]) -> int | None:
    """Returns the id of a padding token that both sides have; `None` without one."""
    for token in PAD_TOKENS:
        if token in source and token in target:
            index = source.index(token)
            return index if index == target.index(token) else None
    return None


def _vocabulary(
    folder: pathlib.Path, name: str, variables: Variables
) -> list[str] | None:
    if (folder / f"{name}.json").exists():
        file = folder / f"{name}.json"
        tokens = read_json(file, list)
        for number, token in enumerate(tokens):
            if not isinstance(token, str):
                raise ValueError(
                    f"{file} must be a list of tokens, which are strings; token "
                    f"{number} is {token!r:.80}."
                )
    elif (folder / f"{name}.txt").exists():
        file = folder / f"{name}.txt"
        tokens = _read_lines(file)
    else:
        return None
    for matrix in MATRICES[name]:
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
        text = read_file(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} must be UTF-8; it is not: {error}.") from error
    return text.removesuffix("\n").split("\n")


def _token_id(
    tokens: list[str], config: Config, name: str, kind: str = "target vocabulary"
) -> int:
    """Returns the id of the token that a setting names."""
    if config.get(name) not in tokens:
        raise ValueError(
            f"`{name}` in config.json must be a token of the {kind}; received "
            f"`{name}={config.get(name)!r}`."
        )
    return tokens.index(config[name])


def _stored_tokenizers(
    folder: pathlib.Path, vocabularies: _Vocabularies, unknown_token_id: int | None
) -> Tokenizers | None:
    """Reads the tokenizers in the folder; `None` if they do not match."""
    source = target = None
    protos = []
    for side in ("source", "target"):
        files = [folder / f"{side}.{kind}" for kind in ("model", "spm")]
        protos += [_read_pieces(file) for file in files if file.is_file()][:1]
    files = [folder / f"{side}_tokenizer.json" for side in ("source", "target")]
    if len(protos) == 2:
        source = target = _tokenizer(protos[0], vocabularies.source)
        if protos[0] != protos[1] or not vocabularies.is_shared:
            target = _tokenizer(protos[1], vocabularies.target)
    elif all(file.is_file() for file in files):
        ids = {**vocabularies.special_ids, "unknown_token_id": unknown_token_id}
        source = target = _hugging_face_tokenizer(files[0], vocabularies.source, ids)
        if not vocabularies.is_shared:
            target = _hugging_face_tokenizer(files[1], vocabularies.target, ids)
    if source is None or target is None:
        return None
    tokenizers = Tokenizers(source, target)
    return tokenizers if _match(tokenizers, vocabularies) else None


def _read_pieces(file: pathlib.Path) -> bytes:
    """Reads a SentencePiece model, which need not suit the vocabulary."""
    proto = read_file(file)
    with file_named(file, "a SentencePiece model"):
        load_pieces(proto)
    return proto


def _tokenizer(proto: bytes, tokens: list[str]) -> Tokenizer | None:
    """Builds a tokenizer with the given vocabulary; `None` if there is none."""
    with contextlib.suppress(ValueError):  # a special token is not among the pieces
        tokenizer = SentencePieceTokenizer(proto)
        if tokenizer.get_vocabulary() == tokens[: tokenizer.vocabulary_size]:
            return tokenizer
    with contextlib.suppress(ValueError):
        return MarianTokenizer(proto, tokens)
    return None


def _match(tokenizers: Tokenizers, vocabularies: _Vocabularies) -> bool:
    """Returns whether tokenizers have the special ids of the model."""
    source, target = tokenizers
    has_ids = _has_ids(target, vocabularies.special_ids)
    return has_ids and source.pad_token_id == target.pad_token_id


def _has_ids(tokenizer: Tokenizer, special_ids: dict[str, int]) -> bool:
    return special_ids == {name: getattr(tokenizer, name) for name in special_ids}


def _index(tokens: list[str], token: str | None) -> int | None:
    return tokens.index(token) if token in tokens else None


def _stored_tokenizer(
    folder: pathlib.Path,
    tokens: list[str],
    special_ids: dict[str, int],
    unknown_token_id: int | None,
) -> Tokenizer | None:
    """Reads the tokenizer in the folder; `None` if it does not match."""
    tokenizer: Tokenizer | None = None
    files = [folder / name for name in ("vocab.json", "merges.txt")]
    if (folder / "tokenizer.model").is_file():
        tokenizer = _tokenizer(_read_pieces(folder / "tokenizer.model"), tokens)
    elif (folder / "tokenizer.json").is_file():
        own = {**special_ids, "unknown_token_id": unknown_token_id}
        tokenizer = _hugging_face_tokenizer(folder / "tokenizer.json", tokens, own)
    elif all(file.is_file() for file in files) and "<|endoftext|>" in tokens:
        given = read_json(files[0])
        # This library stores its tokens for padding and unknown text after them.
        ids = {token: token_id for token_id, token in enumerate(tokens[: len(given)])}
        if given == ids and "<|endoftext|>" in ids:
            tokenizer = byte_pair_tokenizer(folder, ids)
            found = tokenizer.get_vocabulary()
            if found[: len(tokens)] != tokens[: len(found)]:
                return None
    if tokenizer is None or not _has_ids(tokenizer, special_ids):
        return None
    return tokenizer


def _hugging_face_tokenizer(
    file: pathlib.Path, tokens: list[str], ids: Mapping[str, int | None]
) -> HuggingFaceTokenizer | None:
    """Reads a `tokenizer.json`; `None` if it has other tokens than the model.

    Special tokens that it lacks are those of this library, after its vocabulary.
    """
    with file_named(file, "a tokenizer of Hugging Face"):
        content = read_file(file).decode("utf-8")
        size = read_vocabulary(json.loads(content), [None] * 4).own_size
        own = {name: id for name, id in ids.items() if id is not None and id < size}
        tokenizer = HuggingFaceTokenizer(content, **own)
    found = tokenizer.get_vocabulary()
    return tokenizer if found[: len(tokens)] == tokens[: len(found)] else None


def byte_pair_tokenizer(
    folder: pathlib.Path, vocabulary: Mapping[str, int]
) -> KerasHubTokenizer:
    """Creates the tokenizer of GPT-2 with the pairs in `merges.txt`."""
    path = checked_file(folder / "merges.txt")
    with file_named(path, "pairs of tokens of vocab.json, a pair per line"):
        lines = read_file(path).decode("utf-8").split("\n")
        merges = [line for line in lines if line and not line.startswith("#version")]
        return KerasHubTokenizer.from_byte_pairs("GPT2Tokenizer", vocabulary, merges)
