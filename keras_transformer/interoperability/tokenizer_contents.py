"""Converts vocabularies and tokenizers to the content of a `tokenizer.json`."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from keras_transformer.text import (
    HuggingFaceTokenizer,
    KerasHubTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
)
from keras_transformer.text.pipeline.pre_tokenizers import QWEN2
from keras_transformer.text.sentence_piece_tokenizer import parse_model
from keras_transformer.types import Config
from keras_transformer_runtime.packages import require_modules
from keras_transformer_runtime.tokenizers.sentence_piece_tokenizers import WORD_MARK

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HubTokenizer
    from tokenizers.normalizers import Normalizer

# A model of SentencePiece or of the package `tokenizers`, which have no types.
PieceModel: TypeAlias = Any

# Types of models whose older files, `vocab.json` and `merges.txt`, are read.
BYTE_PAIR_TYPES = ("bart", "gpt2", "qwen2", "qwen3", "roberta")


def packages() -> ModuleType:
    """Returns the package `tokenizers`, or raises `ModuleNotFoundError`."""
    require_modules(["tokenizers"], "A folder in the form of Hugging Face")
    import tokenizers

    return tokenizers


def byte_pairs(
    vocabulary: Mapping[str, int],
    merges: Iterable[tuple[str, str]],
    model_type: str,
    special: Sequence[str],
    add_prefix_space: bool = False,
) -> "HubTokenizer":
    """Returns a tokenizer of byte pairs of bytes, of the package `tokenizers`."""
    hf = packages()
    tokenizer = hf.Tokenizer(hf.models.BPE(dict(vocabulary), [*merges]))
    parts = hf.pre_tokenizers
    if model_type.startswith("qwen"):
        tokenizer.normalizer = hf.normalizers.NFC()
        tokenizer.pre_tokenizer = parts.Sequence(
            [
                parts.Split(hf.Regex(QWEN2), "isolated"),
                parts.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        tokenizer.pre_tokenizer = parts.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = hf.decoders.ByteLevel()
    for token in special:
        is_mask = token == "<mask>"  # It includes the space in front of it.
        added = hf.AddedToken(token, lstrip=is_mask, normalized=False, special=True)
        tokenizer.add_special_tokens([added])
    if model_type in ("bart", "roberta"):
        add_framing(tokenizer, [vocabulary["<s>"]], [vocabulary["</s>"]])
    return tokenizer


def word_pieces(tokens: Sequence[str], settings: Config) -> "HubTokenizer":
    """Returns the tokenizer of BERT, of the package `tokenizers`.

    `settings` are those of a `tokenizer_config.json`.
    """
    hf = packages()
    ids = {token: id for id, token in enumerate(tokens)}
    tokenizer = hf.Tokenizer(hf.models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = hf.normalizers.BertNormalizer(
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = hf.decoders.WordPiece()
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    tokenizer.add_special_tokens([token for token in special if token in ids])
    add_framing(tokenizer, [ids["[CLS]"]], [ids["[SEP]"]])
    return tokenizer


def pieces(
    proto: bytes, fairseq: bool = False, extra: Sequence[str] = ()
) -> PieceModel:
    """Returns the tokenizer of a SentencePiece model, of the package `tokenizers`.

    Args:
        proto: the serialised model.
        fairseq: bool, whether the first ids are those of fairseq: `<s>`, `<pad>`,
            `</s>` and `<unk>`.
        extra: special tokens whose ids follow.
    """
    hf, model = packages(), parse_model(proto)
    found = [(piece.piece, piece.score, piece.type) for piece in model.pieces]
    kind = type(model.pieces[0])
    if fairseq:
        kept = [each for each in found if each[2] not in (kind.CONTROL, kind.UNKNOWN)]
        first = [(token, 0.0, kind.CONTROL) for token in ("<s>", "<pad>", "</s>")]
        found = [*first, ("<unk>", 0.0, kind.UNKNOWN), *kept]
    found += [(token, 0.0, kind.CONTROL) for token in extra]
    tokenizer = hf.Tokenizer(_piece_model(model, found))
    spec, rules, parts = model.normalizer_spec, hf.normalizers, hf.pre_tokenizers
    tokenizer.normalizer = rules.Sequence(_normalizers(model))
    scheme = "always" if spec.add_dummy_prefix else "never"
    splits = [parts.Metaspace(WORD_MARK, scheme, split=False)]
    user = [token for token, _, k in found if k == kind.USER_DEFINED]
    if user and spec.add_dummy_prefix:
        ordered = sorted(user, key=len, reverse=True)
        pattern = hf.Regex("|".join(map(re.escape, ordered)))
        splits.append(parts.Split(pattern, "isolated"))
    elif user:
        added = [hf.AddedToken(token, normalized=False) for token in user]
        tokenizer.add_tokens(added)
    tokenizer.pre_tokenizer = parts.Sequence(splits)
    tokenizer.decoder = hf.decoders.Sequence(
        [
            hf.decoders.Replace(WORD_MARK, " "),
            hf.decoders.ByteFallback(),
            hf.decoders.Fuse(),
            *([hf.decoders.Strip(" ", 1, 0)] if spec.add_dummy_prefix else []),
        ]
    )
    special = [t for t, _, k in found if k in (kind.CONTROL, kind.UNKNOWN)]
    tokenizer.add_special_tokens([hf.AddedToken(t, normalized=False) for t in special])
    return tokenizer


def _normalizers(model: PieceModel) -> list["Normalizer"]:
    """Returns the normalizers of the package `tokenizers` for a SentencePiece model."""
    hf, rules, spec = packages(), packages().normalizers, model.normalizer_spec
    steps = []
    if spec.precompiled_charsmap:
        steps.append(rules.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps.append(rules.Replace(hf.Regex(r"\A +"), ""))
        steps.append(rules.Replace(hf.Regex(" {2,}"), " "))
    steps.append(rules.Replace(" ", WORD_MARK))
    if spec.remove_extra_whitespaces:
        steps.append(rules.Replace(hf.Regex(rf"{WORD_MARK}+\z"), ""))
    if spec.add_dummy_prefix:  # `Metaspace` adds no second "▁".
        steps.append(rules.Replace(hf.Regex(rf"\A{WORD_MARK}"), 2 * WORD_MARK))
    return steps


def _piece_model(
    model: PieceModel, found: Sequence[tuple[str, float, int]]
) -> PieceModel:
    """Returns the model of the package `tokenizers` for pieces with their types."""
    hf, spec, kind = packages(), model.trainer_spec, type(model.pieces[0])
    unknown = next(id for id, (_, _, k) in enumerate(found) if k == kind.UNKNOWN)
    if spec.model_type == spec.UNIGRAM:
        scores = [(token, score) for token, score, _ in found]
        return hf.models.Unigram(scores, unknown, spec.byte_fallback)
    if spec.model_type != spec.BPE:
        raise ValueError(
            "A SentencePiece model must be of the type unigram or BPE; received "
            f"{spec.ModelType.Name(spec.model_type).lower()}."
        )
    ranks = {
        token: (-score, id)
        for id, (token, score, k) in enumerate(found)
        if k == kind.NORMAL
    }
    merges = sorted(
        (*rank, token[:place], token[place:])
        for token, rank in ranks.items()
        for place in range(1, len(token))
        if token[:place] in ranks and token[place:] in ranks
    )
    return hf.models.BPE(
        {token: id for id, (token, _, _) in enumerate(found)},
        [(left, right) for _, _, left, right in merges],
        unk_token=found[unknown][0],
        fuse_unk=True,
        byte_fallback=spec.byte_fallback,
        ignore_merges=any(k == kind.USER_DEFINED for _, _, k in found),
    )


def with_vocabulary(tokenizer: "HubTokenizer", tokens: Sequence[str]) -> "HubTokenizer":
    """Returns a tokenizer of byte pairs with other ids; `tokens` are in their order.

    Raises `ValueError` if `tokens` lacks a token of the tokenizer.
    """
    hf, content = packages(), json.loads(tokenizer.to_str())
    model, ids = content["model"], {token: id for id, token in enumerate(tokens)}
    added = {token["content"] for token in content["added_tokens"]}
    own = {*model["vocab"]} if model["type"] == "BPE" else set()
    missing = sorted(own - added - ids.keys())
    if model["type"] != "BPE" or missing or len(ids) < len(tokens):
        raise ValueError(
            "the SentencePiece model must be of the type BPE and vocab.json must have "
            f"its pieces; it lacks {missing[:3]}"
        )
    model["vocab"] = ids
    kept = [t for t in content["added_tokens"] if t["content"] in ids]
    content["added_tokens"] = [{**t, "id": ids[t["content"]]} for t in kept]
    return hf.Tokenizer.from_str(json.dumps(content))


def add_framing(
    tokenizer: "HubTokenizer", first: Sequence[int], last: Sequence[int]
) -> None:
    """Sets the tokens that transformers adds in front of a text and behind it."""
    names = [*map(tokenizer.id_to_token, (*first, *last))]
    before, after = names[: len(first)], names[len(first) :]
    tokenizer.post_processor = packages().processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, "$B:1", *(f"{name}:1" for name in after)],
        special_tokens=[*zip(names, (*first, *last), strict=True)],
    )


def content_of(tokenizer: Tokenizer) -> "HubTokenizer":
    """Returns a tokenizer of this library as one of the package `tokenizers`.

    Raises `ValueError` if it has no equal form there.
    """
    if isinstance(tokenizer, HuggingFaceTokenizer):
        return packages().Tokenizer.from_str(tokenizer.content)
    if isinstance(tokenizer, SentencePieceTokenizer):
        return pieces(tokenizer.proto)
    pairs = tokenizer.byte_pairs if isinstance(tokenizer, KerasHubTokenizer) else None
    if isinstance(tokenizer, KerasHubTokenizer) and pairs is not None:
        config = tokenizer.tokenizer.get_config()
        if not config.get("add_prefix_space"):
            merges = [(left, right) for left, right in map(str.split, pairs.merges)]
            special = [*(config.get("unsplittable_tokens") or ())]
            special += [*tokenizer.tokenizer.special_tokens]
            return byte_pairs(pairs.vocabulary, merges, "gpt2", special)
    proto = getattr(getattr(tokenizer, "tokenizer", None), "proto", None)
    if isinstance(proto, bytes):
        return pieces(proto)
    raise ValueError(
        "`tokenizer` must be a HuggingFaceTokenizer, a SentencePieceTokenizer or a "
        "KerasHubTokenizer of byte pairs or SentencePiece to be written in the form of "
        f"Hugging Face; received {tokenizer!r:.200}. Its tokens would differ there."
    )
