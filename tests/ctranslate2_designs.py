"""Designs that cover all architectures that CTranslate2 supports."""

import numpy as np
from layer_contract import to_numpy

from keras_transformer import CausalLM, Seq2Seq
from keras_transformer.layers import (
    AlibiBias,
    LearnedPositionalEncoding,
    PositionalEncoding,
    RelativePositionBias,
    RotaryEmbedding,
)
from keras_transformer.text import CharacterTokenizer

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
SOURCE = CharacterTokenizer([*SPECIAL, *"abcdef"])
TARGET = CharacterTokenizer([*SPECIAL, *"UVWXYZÄ"])
SIZES = {
    "num_layers": 1,
    "hidden_dim": 12,
    "intermediate_dim": 7,
    "num_heads": 3,
    "max_source_length": 11,
    "max_target_length": 5,
}


def model_of(seed=1, spread=0.5, **design):
    tokenizers = {"source_tokenizer": SOURCE, "target_tokenizer": TARGET}
    model = Seq2Seq(**{**SIZES, **tokenizers, **design})
    return _randomised(model, seed, spread)


def _randomised(model, seed, spread):
    rng = np.random.default_rng(seed)
    # The bias of an output with its own matrix comes after this matrix.
    is_last = {id(model.logits_bias): not model.shares_output}
    for weight in sorted(model.weights, key=lambda each: is_last.get(id(each), False)):
        mean = weight.path.endswith(("gamma", "scale"))
        weight.assign(rng.normal(mean, spread, weight.shape))
    return model


def log_probabilities(model, sources, targets):
    """Returns a table `(target_length, vocabulary_size)` for each target.

    The model is not compiled, which takes longer than the computation.
    """
    pad, start = model.pad_token_id, model.start_token_id

    def padded(rows):
        length = max(map(len, rows))
        return np.array([[*row, *[pad] * (length - len(row))] for row in rows])

    inputs = {
        "encoder_token_ids": padded(sources),
        "decoder_token_ids": padded([[start, *row[:-1]] for row in targets]),
    }
    logits = to_numpy(model(inputs)).astype("float64")
    tables = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return [table[: len(row)] for table, row in zip(tables, targets, strict=True)]


DESIGNS = {
    "paper": lambda: {
        "num_layers": 2,
        "target_tokenizer": None,
        "normalize_first": False,
    },
    "untied": lambda: {
        "normalize_first": False,
        "tie_embeddings": "none",
        "activation": "silu",
        "positions": PositionalEncoding(max_wavelength=100),
        "layer_norm_epsilon": 0.1,
    },
    "learned": lambda: {
        "positions": LearnedPositionalEncoding(max_length=13),
        "activation": "tanh",
        "residual_options": {"normalization": "rms", "stochastic_depth": 0.3},
    },
    "marian": lambda: {
        "num_layers": 2,
        "num_decoder_layers": 1,
        "positions": PositionalEncoding(interleaved=False),
        "activation": "silu",
        "output_bias": True,
        "max_source_length": None,
    },
    "as they are": lambda: {
        "target_tokenizer": None,
        "activation": "gelu_new",
        "scale_embeddings": False,
        "tie_embeddings": "none",
        "output_bias": False,
    },
    "t5": lambda: {
        "positions": (
            RelativePositionBias(12, max_distance=7),
            RelativePositionBias(6, max_distance=7, bidirectional=False),
        ),
        "normalize_first": True,
        "residual_options": {"normalization": "rms"},
        "scale_embeddings": False,
        "attention_options": {"use_bias": False},
        "feed_forward_options": {"use_bias": False},
    },
    "multi-query": lambda: {
        "source_vocabulary_size": 13,
        "target_vocabulary_size": 17,
        "activation": "sigmoid",
        "attention_options": {"num_key_value_heads": 1, "key_dim": 5},
    },
    "llama": lambda: {
        "hidden_dim": 16,
        "num_heads": 4,
        "positions": RotaryEmbedding(max_wavelength=100),
        "normalize_first": True,
        "activation": "silu",
        "attention_options": {"num_key_value_heads": 2, "use_bias": False},
        "feed_forward_options": {"gated": True, "use_bias": False},
        "residual_options": {"normalization": "rms"},
    },
    "bart": lambda: {
        "positions": (LearnedPositionalEncoding(max_length=13), PositionalEncoding()),
        "normalize_embeddings": True,
        "normalize_first": False,
        "activation": "gelu",
    },
}

# Designs that `load_ctranslate2` does not read.
WRITTEN_DESIGNS = {
    "linear scaling": lambda: {
        "hidden_dim": 18,
        "positions": RotaryEmbedding(100, {"type": "linear", "factor": 3.0}),
        "attention_options": {"use_bias": ["query", "output"]},
    },
    "offset": lambda: {"positions": PositionalEncoding(36, False, offset=2)},
}

# Decoder-only models.

LETTERS = CharacterTokenizer([*SPECIAL, *"abcdef"])
CAUSAL_SIZES = {
    "num_layers": 2,
    "hidden_dim": 12,
    "intermediate_dim": 7,
    "num_heads": 3,
    "tokenizer": LETTERS,
}


def causal_model_of(seed=1, spread=0.5, **design):
    return _randomised(CausalLM(**{**CAUSAL_SIZES, **design}), seed, spread)


CAUSAL_DESIGNS = {
    "post-norm": lambda: {"normalize_first": False, "activation": "gelu"},
    "untied": lambda: {
        "tie_embeddings": False,
        "activation": "tanh",
        "positions": PositionalEncoding(interleaved=False),
        "layer_norm_epsilon": 0.1,
    },
    "learned": lambda: {
        "positions": LearnedPositionalEncoding(max_length=13),
        "scale_embeddings": False,
        "output_bias": True,
        "vocabulary_size": 13,
    },
    "llama": lambda: {
        "hidden_dim": 16,
        "num_heads": 4,
        "positions": RotaryEmbedding(max_wavelength=100),
        "activation": "silu",
        "tie_embeddings": False,
        "output_bias": False,
        "attention_options": {"num_key_value_heads": 2, "use_bias": False},
        "feed_forward_options": {"gated": True, "use_bias": False},
        "residual_options": {"normalization": "rms"},
    },
    "relative": lambda: {"positions": RelativePositionBias(8, max_distance=5)},
    "bloom": lambda: {
        "positions": AlibiBias(),
        "attention_options": {"num_key_value_heads": 1, "key_dim": 5},
        "normalize_embeddings": True,
        "add_start_token": True,
    },
}

# Designs that `load_ctranslate2` does not read.
CAUSAL_WRITTEN_DESIGNS = {
    "qwen 3": lambda: {
        "positions": RotaryEmbedding(100),
        "attention_options": {
            "key_dim": 10,
            "num_key_value_heads": 1,
            "query_key_normalization": "rms",
            "use_bias": ["key"],
        },
        "layer_norm_epsilon": 0.1,
        "residual_options": {"normalization": "rms"},
    },
    "layer normalization of heads": lambda: {
        "attention_options": {"query_key_normalization": "layer"},
    },
    "gpt-neox": lambda: {
        "positions": RotaryEmbedding(100, {"type": "linear", "factor": 3.0}, 4),
        "attention_options": {"key_dim": 10, "use_bias": ["query", "key", "value"]},
    },
}
