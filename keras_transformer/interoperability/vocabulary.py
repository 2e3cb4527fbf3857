"""Special ids and tokenizers of a checkpoint, as arguments of a model."""

import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.interoperability.tensors import LOGIT_OF_ADDED_TOKENS
from keras_transformer.models import CausalLM, Seq2Seq, TextEncoder
from keras_transformer.types import Config

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


class LoadedTokenizer(NamedTuple):
    """A tokenizer of a folder."""

    tokenizer: "Tokenizer"
    adds_start_token: bool = False  # in front of each text


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
            "add_start_token": loaded.adds_start_token,
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


def seq2seq_vocabulary(config: Config, loaded: LoadedTokenizer | None) -> Config:
    """Returns the arguments of a `Seq2Seq` with one vocabulary."""
    size = config["vocab_size"]
    names = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    check_below(config, *names)
    start, end, pad = config[names[0]], end_token_id(config), config[names[2]]
    for name, token_id in zip(names, (start, end, pad), strict=True):
        if token_id is None:
            raise ValueError(
                f"`{name}` in config.json must be an id; received `{name}=None`."
            )
    total = size
    arguments: Config = {
        "pad_token_id": pad,
        "start_token_id": start,
        "end_token_id": end,
    }
    if loaded is not None:
        total = max(size, loaded.tokenizer.vocabulary_size)
        arguments |= {"source_tokenizer": loaded.tokenizer}
    return {"vocabulary_size": total, **arguments}


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
