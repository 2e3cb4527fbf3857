"""Reads and writes the tokenizer files of a folder in the form of Hugging Face."""

import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from keras_transformer.interoperability.files import file_named, read_vocabulary
from keras_transformer.interoperability.tokenizer_contents import (
    BYTE_PAIR_TYPES,
    add_framing,
    byte_pairs,
    content_of,
    packages,
    pieces,
    with_vocabulary,
    word_pieces,
)
from keras_transformer.text import HuggingFaceTokenizer, Tokenizer
from keras_transformer.types import Config
from keras_transformer_runtime.files import read_file, read_json, write_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HubTokenizer

PIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", *PIECE_FILES),
)
ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
# Tokens of files without a `tokenizer_config.json`.
_BERT_TOKENS = {
    **{"unk": "[UNK]", "pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]"},
    "mask": "[MASK]",
}
_FAIRSEQ_TOKENS = {
    **{"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    **{"cls": "<s>", "sep": "</s>", "mask": "<mask>"},
}
_PIECE_TOKENS = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_END_TOKENS = {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}
_DEFAULT_TOKENS = {
    **dict.fromkeys(("bert", "distilbert"), _BERT_TOKENS),
    **dict.fromkeys(("bart", "mbart", "roberta", "xlm-roberta"), _FAIRSEQ_TOKENS),
    **dict.fromkeys(("llama", "m2m_100", "mistral", "t5"), _PIECE_TOKENS),
    **{"gpt2": _END_TOKENS, "qwen2": _END_TOKENS, "qwen3": _END_TOKENS},
}
# Languages of mBART and NLLB, such as `en_XX` and `eng_Latn`, and of M2M-100.
_LANGUAGE = re.compile("[a-z]{2,3}_[A-Z][A-Za-z]{1,3}|__([a-z]{2,3})__")
_M2M_LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy "
    "ga gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo "
    "lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq "
    "sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)


class LoadedTokenizer(NamedTuple):
    """A tokenizer from the files of Hugging Face, and what else they say.

    Attributes:
        tokenizer: the tokenizer. It has new ids after the vocabulary for special tokens
            that the files lack, or that share an id.
        token_ids: dictionary of the ids of `"bos"`, `"eos"`, `"unk"`, `"pad"`, `"cls"`,
            `"sep"` and `"mask"`, those that the files have.
        first_token_ids: tuple of int, the tokens that transformers adds in front of a
            text.
        last_token_ids: tuple of int, those that it adds behind a text.
        language_token_ids: dictionary of languages, such as `"en_XX"`, `"eng_Latn"` or
            `"en"`, and the ids of their tokens.
    """

    tokenizer: HuggingFaceTokenizer
    token_ids: dict[str, int]
    first_token_ids: tuple[int, ...]
    last_token_ids: tuple[int, ...]
    language_token_ids: dict[str, int]


def read_tokenizer(folder: pathlib.Path, config: Config) -> LoadedTokenizer | None:
    """Reads the tokenizer of a folder in the form of Hugging Face.

    It reads `tokenizer.json`, or without this file `vocab.json` with `merges.txt`,
    `vocab.txt`, or a SentencePiece model.

    Args:
        folder: path of the folder.
        config: the content of `config.json`. `vocab_size` limits the ids.

    Returns:
        A `LoadedTokenizer`, or `None` if the folder has no file of a tokenizer.

    Raises:
        ValueError: if a file is damaged, names code, or contradicts `config.json`.
        ModuleNotFoundError: if the package `tokenizers` is not installed.
    """
    settings = _settings(folder)
    own = _read(folder, config, settings)
    if own is None:
        return None
    own.no_padding()
    own.no_truncation()
    _add_tokens(own, folder, settings)
    _check_size(own, folder, config)
    token_ids = _token_ids(own, config, settings)
    first, last = _framing(own, token_ids, settings)
    ids = _special_ids(token_ids, config)
    with file_named(folder, "a folder with a tokenizer of Hugging Face"):
        tokenizer = HuggingFaceTokenizer(own.to_str(), *ids)
    languages = {}
    for id, token in own.get_added_tokens_decoder().items():
        match = _LANGUAGE.fullmatch(token.content)
        if match:
            languages[match[1] or match[0]] = id
    return LoadedTokenizer(tokenizer, token_ids, first, last, languages)


def write_tokenizer(
    tokenizer: Tokenizer,
    folder: pathlib.Path,
    token_ids: Mapping[str, int] | None = None,
    first_token_ids: Sequence[int] | None = None,
    last_token_ids: Sequence[int] | None = None,
    settings: Config | None = None,
) -> None:
    """Writes a tokenizer to files from which transformers gets the same ids.

    A `HuggingFaceTokenizer` is written as it was read. A `SentencePieceTokenizer` gets
    the form that transformers gives a SentencePiece model; it then differs in letters
    with combining marks that have no composed form, unless its normalization is
    `"identity"`, and in unigram models between splits of equal probability. Ids that
    the tokenizer has added after its vocabulary are not written.

    Args:
        tokenizer: the tokenizer.
        folder: path of a folder, which exists.
        token_ids: dictionary of the ids of `"bos"`, `"eos"` and so on, as in
            `LoadedTokenizer`; `None` for those of `tokenizer`.
        first_token_ids: list of int, the tokens that transformers adds in front of a
            text; `None` as they were read.
        last_token_ids: list of int, those that it adds behind a text.
        settings: further settings of `tokenizer_config.json`.

    Raises:
        ValueError: if the tokenizer has no form there.
    """
    own = content_of(tokenizer)
    size = own.get_vocab_size()
    if token_ids is None:
        names = ("bos", "eos", "unk", "pad")
        found = (
            *(tokenizer.start_token_id, tokenizer.end_token_id),
            *(tokenizer.unknown_token_id, tokenizer.pad_token_id),
        )
        token_ids = dict(zip(names, found, strict=True))
    tokens = {role: own.id_to_token(id) for role, id in token_ids.items() if id < size}
    if first_token_ids is not None or last_token_ids is not None:
        add_framing(own, first_token_ids or (), last_token_ids or ())
    named = {f"{role}_token": token for role, token in tokens.items()}
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **named,
        **(settings or {}),
    }
    write_json(folder / "tokenizer.json", json.loads(own.to_str()))
    write_json(folder / "tokenizer_config.json", content)
    write_json(folder / "special_tokens_map.json", named)


def _settings(folder: pathlib.Path) -> Config:
    """Returns the settings of the tokenizer; refuses those that name code."""
    settings: Config = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= read_json(folder / name)
    for name in ("auto_map", "trust_remote_code"):
        if settings.get(name):
            raise ValueError(
                f"{folder / 'tokenizer_config.json'} must not have `{name}`, which "
                f"names code to run; it is {settings[name]!r:.80}. Use a folder with a "
                "tokenizer.json and without it."
            )
    return settings


def _read(
    folder: pathlib.Path, config: Config, settings: Config
) -> "HubTokenizer | None":
    """Returns the tokenizer of the package `tokenizers`; `None` without files."""
    kind, size = str(config.get("model_type")), int(config["vocab_size"])
    if (folder / "tokenizer.json").is_file():
        path = folder / "tokenizer.json"
        with file_named(path, "a tokenizer of the package tokenizers"):
            return packages().Tokenizer.from_str(read_file(path).decode("utf-8"))
    models = [folder / name for name in PIECE_FILES if (folder / name).is_file()]
    if models:
        with file_named(models[0], "a SentencePiece model of its model type"):
            if (folder / "vocab.json").is_file():
                return _m2m_tokenizer(folder, models[0], size)
            return _piece_tokenizer(models[0], kind, settings)
    if (folder / "vocab.txt").is_file():
        with file_named(folder / "vocab.txt", "tokens of BERT, one a line"):
            lines = read_file(folder / "vocab.txt").decode("utf-8").split("\n")
            tokens = [line.removesuffix("\r") for line in lines]
            tokens = tokens[:-1] if not tokens[-1] else tokens
            if len({*tokens}) < len(tokens):
                raise ValueError("it repeats a token")
            return word_pieces(tokens, settings)
    if not (folder / "vocab.json").is_file():
        return None
    if kind not in BYTE_PAIR_TYPES:
        raise ValueError(
            f"{folder} must have a tokenizer.json for a model of the type {kind!r}; it "
            f"has vocab.json, which suffices for {', '.join(BYTE_PAIR_TYPES)} alone. "
            "Write one with `AutoTokenizer.from_pretrained(folder)"
            ".save_pretrained(folder)` of transformers."
        )
    vocabulary = _ids(read_vocabulary(folder, "vocab.json", size))
    with file_named(folder / "merges.txt", "pairs of tokens, a pair per line"):
        lines = read_file(folder / "merges.txt").decode("utf-8").split("\n")
        merges = [_pair(line) for line in lines if not line.startswith("#version")]
        special = [*_DEFAULT_TOKENS[kind].values()]
        special = [token for token in dict.fromkeys(special) if token in vocabulary]
        prefix = bool(settings.get("add_prefix_space"))
        pairs = [pair for pair in merges if pair is not None]
        return byte_pairs(vocabulary, pairs, kind, special, prefix)


def _pair(line: str) -> tuple[str, str] | None:
    line = line.removesuffix("\r")
    if not line:
        return None
    left, right = line.split(" ")
    return left, right


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    unused = re.compile("<unused [0-9]+>")
    return {t: id for id, t in enumerate(tokens) if not unused.fullmatch(t)}


def _piece_tokenizer(path: pathlib.Path, kind: str, settings: Config) -> "HubTokenizer":
    """Returns the tokenizer of a SentencePiece model whose ids are its own."""
    proto = read_file(path)
    if kind == "xlm-roberta":
        own = pieces(proto, fairseq=True, extra=["<mask>"])
        ids = own.token_to_id("<s>"), own.token_to_id("</s>")
        add_framing(own, ids[:1], ids[1:])
        return own
    if kind == "t5":
        count = int(settings.get("extra_ids", 100))
        own = pieces(proto, extra=[f"<extra_id_{n}>" for n in range(count)[::-1]])
        add_framing(own, [], [own.token_to_id("</s>")])
        return own
    if kind in ("llama", "mistral"):
        own = pieces(proto)
        add_framing(own, [own.token_to_id("<s>")], [])
        return own
    raise ValueError(
        f"the ids of a model of the type {kind!r} are not those of the SentencePiece "
        "model. Write a tokenizer.json with `AutoTokenizer.from_pretrained(folder)"
        ".save_pretrained(folder)` of transformers"
    )


def _m2m_tokenizer(
    folder: pathlib.Path, path: pathlib.Path, size: int
) -> "HubTokenizer":
    """Returns the tokenizer of M2M-100, whose ids are in `vocab.json`."""
    tokens = read_vocabulary(folder, "vocab.json", size)
    languages = [f"__{language}__" for language in _M2M_LANGUAGES.split(" ")]
    own = with_vocabulary(pieces(read_file(path)), [*tokens, *languages])
    own.add_special_tokens(languages)
    ids = own.get_vocab()
    add_framing(own, [ids["__en__"]], [ids["</s>"]])
    return own


def _add_tokens(own: "HubTokenizer", folder: pathlib.Path, settings: Config) -> None:
    """Adds the tokens of the settings that the tokenizer lacks."""
    hf, entries = packages(), dict(settings.get("added_tokens_decoder") or {})
    if (folder / "added_tokens.json").is_file():
        for token, id in read_json(folder / "added_tokens.json").items():
            entries.setdefault(str(id), {"content": token})
    known = {token.content for token in own.get_added_tokens_decoder().values()}
    names = {"lstrip", "rstrip", "normalized", "single_word", "special"}
    with file_named(folder / "tokenizer_config.json", "a file with added tokens"):
        for id, entry in sorted(entries.items(), key=lambda item: int(item[0])):
            content = entry["content"]
            if content not in known:
                options = {name: bool(entry[name]) for name in names & entry.keys()}
                own.add_tokens([hf.AddedToken(content, **options)])
            if own.token_to_id(content) != int(id):
                raise ValueError(
                    f"the added token {content!r:.80} has the id {id}, and the id "
                    f"{own.token_to_id(content)} in the vocabulary"
                )


def _check_size(own: "HubTokenizer", folder: pathlib.Path, config: Config) -> None:
    largest = max(own.get_vocab().values(), default=-1)
    if largest >= config["vocab_size"]:
        raise ValueError(
            f"The ids of the tokenizer in {folder} must be below "
            f"{config['vocab_size']}, `vocab_size` in config.json; it has the id "
            f"{largest}, of {own.id_to_token(largest)!r:.80}."
        )


def _token_ids(own: "HubTokenizer", config: Config, settings: Config) -> dict[str, int]:
    """Returns the ids of special tokens by their roles, such as `"eos"`."""
    found = {}
    defaults = _DEFAULT_TOKENS.get(str(config.get("model_type")), {})
    named = any(f"{role}_token" in settings for role in ROLES)
    for role in ROLES:
        token = settings.get(f"{role}_token")
        token = token.get("content") if isinstance(token, Mapping) else token
        if token is None and not named:
            token = defaults.get(role)
        id = own.token_to_id(token) if isinstance(token, str) else None
        if id is not None:
            found[role] = id
    model = json.loads(own.to_str())["model"] if "unk" not in found else {}
    unknown = model.get("unk_id", own.token_to_id(model.get("unk_token") or ""))
    return found | ({} if unknown is None or "unk" in found else {"unk": unknown})


def _framing(
    own: "HubTokenizer", token_ids: Mapping[str, int], settings: Config
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids that transformers adds in front of a text and behind it."""
    plain = own.encode("a", add_special_tokens=False).ids
    framed = own.encode("a", add_special_tokens=True).ids
    mask = own.encode("a", add_special_tokens=True).special_tokens_mask
    start = mask.index(0) if 0 in mask else len(framed)
    first, last = (*framed[:start],), (*framed[start + len(plain) :],)
    begin = (token_ids["bos"],) if "bos" in token_ids else ()
    if settings.get("add_bos_token") is True and first != begin:
        first = begin
    if settings.get("add_bos_token") is False and first == begin:
        first = ()
    return first, last


def _special_ids(
    token_ids: Mapping[str, int], config: Config
) -> tuple[int | None, int | None, int | None, int | None]:
    """Returns the ids of padding, unknown text, start and end; `None` for new ones."""
    ends = config.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    ends = [id for id in ends if isinstance(id, int)]
    end = token_ids.get("eos", token_ids.get("sep"))
    if end is None or (ends and end not in ends and "eos" in token_ids):
        end = next(iter(ends), end)
    starts = [token_ids.get("bos"), config.get("bos_token_id"), token_ids.get("cls")]
    if config.get("is_encoder_decoder"):
        starts.insert(0, config.get("decoder_start_token_id"))
    start = next((id for id in starts if isinstance(id, int)), end)
    pad = token_ids.get("pad")
    unknown = token_ids.get("unk")
    pad = None if pad in (end, unknown) else pad
    unknown = None if unknown in (pad, start, end) else unknown
    return pad, unknown, start, end
