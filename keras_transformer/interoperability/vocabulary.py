"""Special ids and tokenizers of a checkpoint, as arguments of a model."""

import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.interoperability.settings import PublishedModel
from keras_transformer.interoperability.tensors import LOGIT_OF_ADDED_TOKENS
from keras_transformer.interoperability.tokenizer_files import (
    LoadedTokenizer,
    write_tokenizer,
)
from keras_transformer.models import CausalLM, Seq2Seq, TextEncoder
from keras_transformer.text import FramedTokenizer, HuggingFaceTokenizer, Tokenizer
from keras_transformer.types import Config


class Languages(NamedTuple):
    """The languages of a model of several ones; `None` = not given."""

    source: str | None = None
    target: str | None = None


def causal_vocabulary(config: Config, loaded: LoadedTokenizer | None) -> Config:
    """Returns the arguments of a `CausalLM`.

    A model without a padding token gets one after its vocabulary, and a bias that
    excludes it from the outputs.
    """
    size = config["vocab_size"]
    check_below(config, "bos_token_id", "eos_token_id", "pad_token_id")
    if loaded is not None:
        total = max(size, loaded.tokenizer.vocabulary_size)
        arguments: Config = {
            "tokenizer": loaded.tokenizer,
            "add_start_token": bool(loaded.first_token_ids),
        }
    else:
        end = end_token_id(config)
        start = config["bos_token_id"]
        start = end if start is None else start
        if start is None:
            raise ValueError(
                "`bos_token_id` or `eos_token_id` in config.json must be an id, since "
                "the folder has no tokenizer; received `null` for both."
            )
        pad = config["pad_token_id"]
        pad = size if pad in (None, start, end) else pad
        total = max(size, pad + 1)
        arguments = {
            "pad_token_id": pad,
            "start_token_id": start,
            "end_token_id": start if end is None else end,
        }
    bias = {} if total == size else {"output_bias": "frozen"}
    return {"vocabulary_size": total, **arguments, **bias}


def causal_settings(model: CausalLM) -> Config:
    """Returns the settings of a `CausalLM`."""
    return {
        **shared_settings(model),
        "bos_token_id": model.start_token_id,
    }


def seq2seq_vocabulary(
    config: Config, loaded: LoadedTokenizer | None, languages: Languages
) -> Config:
    """Returns the arguments of a `Seq2Seq` with one vocabulary."""
    size = config["vocab_size"]
    names = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    check_below(config, *names, "forced_bos_token_id")
    tokenizers, start, forced = _sides(config, loaded, languages)
    start = config[names[0]] if start is None else start
    end, pad = end_token_id(config), config[names[2]]
    for name, token_id in zip(names, (start, end, pad), strict=True):
        if token_id is None:
            raise ValueError(
                f"`{name}` in config.json must be an id; received `{name}=None`."
            )
    return {
        "vocabulary_size": size,
        "pad_token_id": pad,
        "start_token_id": start,
        "end_token_id": end,
        "forced_first_token_id": forced,
        **tokenizers,
    }


def _sides(
    config: Config, loaded: LoadedTokenizer | None, languages: Languages
) -> tuple[Config, int | None, int | None]:
    """Returns the tokenizers, and the ids of the start and of a forced first token."""
    forced = config["forced_bos_token_id"]
    if loaded is None:
        _check_languages({}, languages)
        return {}, None, forced
    known = loaded.language_token_ids
    if not known:
        _check_languages(known, languages)
        framed = _framed(loaded, None)
        return {"source_tokenizer": framed}, None, forced
    if languages.target is None:
        named = [name for name, token_id in known.items() if token_id == forced]
        languages = languages._replace(target=next(iter(named), None))
    _check_languages(known, languages)
    source, target = (known[name] for name in languages if name is not None)
    tokenizers: Config = {"source_tokenizer": _framed(loaded, source)}
    if {*loaded.last_token_ids} & {*known.values()}:
        # mBART begins an output with the token that ends its row.
        return {**tokenizers, "target_tokenizer": loaded.tokenizer}, target, None
    return {**tokenizers, "target_tokenizer": _framed(loaded, target)}, None, target


def _framed(loaded: LoadedTokenizer, language_token_id: int | None) -> Tokenizer:
    """Returns the tokenizer with the tokens around a text, in another language."""
    known = {*loaded.language_token_ids.values()}

    def replaced(token_ids: Sequence[int]) -> list[int]:
        return [
            language_token_id if id in known and language_token_id is not None else id
            for id in token_ids
        ]

    first = replaced(loaded.first_token_ids)
    # The tokenizer itself adds the end token.
    end = loaded.tokenizer.end_token_id
    last = [id for id in replaced(loaded.last_token_ids) if id != end]
    if not first and not last:
        return loaded.tokenizer
    return FramedTokenizer(loaded.tokenizer, first, last)


def _check_languages(known: Mapping[str, int], languages: Languages) -> None:
    """Raises `ValueError` for a language that the model does not have."""
    for side, language in languages._asdict().items():
        if language not in (known or [None]):
            choices = ", ".join(map(repr, sorted(known))) or "`None`"
            raise ValueError(
                f"`{side}_language` must be one of the languages of the tokenizer, "
                f"{choices}; received `{side}_language={language!r}`."
            )


def seq2seq_settings(model: Seq2Seq) -> Config:
    """Returns the settings of a `Seq2Seq`."""
    return {
        **shared_settings(model),
        "decoder_start_token_id": model.start_token_id,
    }


def shared_settings(model: CausalLM | Seq2Seq) -> Config:
    """Returns the settings of the vocabulary that all models have."""
    size = stored_tokens(model)
    pad = model.pad_token_id
    return {
        "vocab_size": size,
        "eos_token_id": model.end_token_id,
        "pad_token_id": pad if pad < size else None,
    }


def stored_tokens(model: CausalLM | Seq2Seq) -> int:
    """Returns the number of tokens without those at the end that are excluded."""
    size = model.target_vocabulary_size
    if model.logits_bias is None:
        return size
    bias = ops.convert_to_numpy(model.logits_bias)
    excluded = np.asarray(bias, "float32") < LOGIT_OF_ADDED_TOKENS / 2
    return size - int(np.argmin(excluded[::-1]))


def end_token_id(config: Config) -> int | None:
    """Returns the id of the end token; a list has the most important one first."""
    ids = config["eos_token_id"]
    if not isinstance(ids, list):
        return ids
    if len(ids) > 1:
        warnings.warn(
            f"`eos_token_id` in config.json has {len(ids)} ids. Only the first one, "
            f"{ids[0]}, ends the texts of this model.",
            stacklevel=2,
        )
    return ids[0] if ids else None


def check_below(config: Config, *names: str) -> None:
    """Raises `ValueError` if the id of a special token is outside the vocabulary."""
    for name in names:
        ids = config[name] if isinstance(config[name], list) else [config[name]]
        for token_id in ids:
            if token_id is not None and token_id >= config["vocab_size"]:
                raise ValueError(
                    f"`{name}` in config.json must be below {config['vocab_size']}, "
                    f"`vocab_size`; received `{name}={config[name]}`."
                )


def encoder_vocabulary(config: Config, loaded: LoadedTokenizer | None) -> Config:
    """Returns the arguments of a `TextEncoder`."""
    size = config["vocab_size"]
    check_below(config, "pad_token_id")
    if loaded is not None:
        total = max(size, loaded.tokenizer.vocabulary_size)
        return {"vocabulary_size": total, "tokenizer": loaded.tokenizer}
    pad = config["pad_token_id"]
    pad = size if pad is None else pad
    return {"vocabulary_size": max(size, pad + 1), "pad_token_id": pad}


def encoder_settings(model: TextEncoder) -> Config:
    """Returns the settings of a `TextEncoder`."""
    return {
        "vocab_size": model.vocabulary_size,
        "pad_token_id": model.pad_token_id,
    }


def write_model_tokenizer(model: PublishedModel, folder: pathlib.Path) -> None:
    """Writes the tokenizer of a model; warns if it has no form there."""
    tokenizer = getattr(model, "target_tokenizer", None) or getattr(
        model, "tokenizer", None
    )
    if tokenizer is None:
        return
    first: list[int] | None = None
    last: list[int] | None = None
    if isinstance(tokenizer, FramedTokenizer):
        tokenizer = tokenizer.tokenizer
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        begins = isinstance(model, TextEncoder) or (
            isinstance(model, CausalLM) and model.add_start_token
        )
        first = [tokenizer.start_token_id] if begins else []
        last = [] if isinstance(model, CausalLM) else [tokenizer.end_token_id]
    try:
        write_tokenizer(tokenizer, folder, first_token_ids=first, last_token_ids=last)
    except ValueError as error:
        warnings.warn(f"No tokenizer was written: {error}", stacklevel=2)
