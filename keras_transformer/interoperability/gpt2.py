"""Loads GPT-2 models."""

import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.interoperability.files import file_named, find_folder, in_config
from keras_transformer.interoperability.tensors import (
    Tensors,
    open_safetensors,
    padded_rows,
)
from keras_transformer.layers import DecoderBlock, LearnedPositionalEncoding
from keras_transformer.models import CausalLM
from keras_transformer.text import KerasHubTokenizer
from keras_transformer.types import Config
from keras_transformer_runtime.arguments import (
    check_ints,
    check_numbers,
    check_one_of,
    check_rates,
)
from keras_transformer_runtime.files import checked_file, read_file, read_json

FILES = ("config.json", "model.safetensors", "vocab.json", "merges.txt")
END = "<|endoftext|>"
DEFAULTS: Config = {
    "model_type": None,
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "activation_function": "gelu_new",
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}
SIZES = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
ACTIVATIONS = {
    "gelu_new": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
# Logit of rows that the model does not have: padding, and unknown text.
NO_LOGIT = -1e9


def load_gpt2(folder: str | os.PathLike, revision: str | None = None) -> CausalLM:
    """Loads a GPT-2 model from a folder in the form of Hugging Face.

    The `CausalLM` computes the logits of transformers' `GPT2LMHeadModel`. It can be
    used like any other: to generate and score texts, to train further, to save and to
    export. Its tokenizer is a KerasHub tokenizer made from the files `vocab.json` and
    `merges.txt`. Without these files, the model takes token ids.

    GPT-2 has no padding token. The `CausalLM` adds one after the vocabulary and, with a
    tokenizer, another one for unknown text. Their logits are -1e9, so their
    probabilities are 0. `<|endoftext|>` is the start token and the end token.

    Files are read as data, and nothing in them is executed. Weights in float16 or
    bfloat16 are converted to float32. The package safetensors is required.

    Args:
        folder: path of a folder with `config.json` and `model.safetensors`. If there is
            no such folder, the name of a repository on the Hugging Face Hub, whose
            files the package huggingface_hub downloads and caches.
        revision: branch, tag or commit of the repository.

    Returns:
        A `CausalLM` in Keras's global dtype policy.

    Raises:
        FileNotFoundError: if there is no such folder, or a file is missing.
        ValueError: if the folder does not contain a GPT-2 model, or its files
            contradict each other.

    Example:

    ```python
    model = load_gpt2("openai-community/gpt2")
    print(model.generate("A man", Sampling(top_p=0.9), include_prompt=True))
    ```

    References:
        - [Radford et al., 2019](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)
    """
    path = find_folder(folder, FILES, revision)
    config = _complete(read_json(checked_file(path / "config.json")))
    tokenizer = _tokenizer(path, config)
    with open_safetensors(checked_file(path / "model.safetensors")) as tensors:
        _check_sizes(config, tensors)
        model = CausalLM(**_arguments(config), **_vocabulary(config, tokenizer))
        _assign(model, config, tensors)
    return model


def _complete(config: Config) -> Config:
    """Returns the settings, after checking those that the model depends on."""
    config = {name: config.get(name, value) for name, value in DEFAULTS.items()}
    check_one_of(["gpt2"], **in_config(config, "model_type"))
    check_ints(1, **in_config(config, *SIZES))
    config["n_inner"] = config["n_inner"] or 4 * config["n_embd"]
    check_ints(1, **in_config(config, "n_inner"))
    check_numbers(above=0, below=1, **in_config(config, "layer_norm_epsilon"))
    check_rates(**in_config(config, "resid_pdrop", "embd_pdrop", "attn_pdrop"))
    check_one_of(ACTIVATIONS, **in_config(config, "activation_function"))
    check_one_of(
        [True], **in_config(config, "scale_attn_weights", "tie_word_embeddings")
    )
    absent = ("scale_attn_by_inverse_layer_idx", "add_cross_attention")
    check_one_of([False], **in_config(config, *absent))
    token_ids = in_config(config, "bos_token_id", "eos_token_id")
    check_ints(0, **token_ids)
    check_numbers(below=config["vocab_size"], **token_ids)
    width, heads = config["n_embd"], config["n_head"]
    if width % heads:
        raise ValueError(
            f"`n_embd` in config.json must be divisible by {heads}, `n_head`; received "
            f"`n_embd={width}`."
        )
    return config


def _tokenizer(folder: pathlib.Path, config: Config) -> KerasHubTokenizer | None:
    """Reads the tokenizer of the folder, if it has one."""
    if not (folder / "vocab.json").is_file():
        return None
    vocabulary = read_json(folder / "vocab.json")
    size = config["vocab_size"]
    are_ints = all(type(token_id) is int for token_id in vocabulary.values())
    ids = sorted(vocabulary.values()) if are_ints else []
    if ids != [*range(len(vocabulary))] or len(ids) > size or END not in vocabulary:
        raise ValueError(
            f"{folder / 'vocab.json'} must have the ids from 0 on for at most "
            f"{size} tokens, `vocab_size` in config.json, and the token {END!r}; "
            f"received {len(vocabulary)} tokens, ids up to {max(ids, default=None)}."
        )
    if config["eos_token_id"] != vocabulary[END]:
        raise ValueError(
            f"`eos_token_id` in config.json must be {vocabulary[END]}, the id of "
            f"{END!r} in vocab.json; received `eos_token_id={config['eos_token_id']}`."
        )
    return byte_pair_tokenizer(folder, vocabulary)


def byte_pair_tokenizer(
    folder: pathlib.Path, vocabulary: Mapping[str, int]
) -> KerasHubTokenizer:
    """Creates the tokenizer of GPT-2 with the pairs in `merges.txt`."""
    path = checked_file(folder / "merges.txt")
    with file_named(path, "pairs of tokens of vocab.json, a pair per line"):
        lines = read_file(path).decode("utf-8").split("\n")
        merges = [line for line in lines if line and not line.startswith("#version")]
        return KerasHubTokenizer.from_byte_pairs("GPT2Tokenizer", vocabulary, merges)


def _vocabulary(config: Config, tokenizer: KerasHubTokenizer | None) -> Config:
    """Returns the arguments of the vocabulary, which has rows that GPT-2 lacks."""
    size = config["vocab_size"]
    if tokenizer is None:
        return {
            "vocabulary_size": size + 1,
            "pad_token_id": size,
            "start_token_id": config["bos_token_id"],
            "end_token_id": config["eos_token_id"],
        }
    # The new ids of the tokenizer come after its own tokens, which can be fewer.
    return {
        "vocabulary_size": max(size, tokenizer.vocabulary_size),
        "tokenizer": tokenizer,
    }


def _arguments(config: Config) -> Config:
    """Converts the settings to arguments of a `CausalLM`, without the vocabulary."""
    return {
        "num_layers": config["n_layer"],
        "hidden_dim": config["n_embd"],
        "intermediate_dim": config["n_inner"],
        "num_heads": config["n_head"],
        "scale_embeddings": False,
        "output_bias": True,
        "dropout": config["resid_pdrop"],
        "activation": ACTIVATIONS[config["activation_function"]],
        "normalize_first": True,
        "layer_norm_epsilon": config["layer_norm_epsilon"],
        "positions": LearnedPositionalEncoding(config["n_positions"]),
        "attention_options": {"dropout": config["attn_pdrop"]},
        "feed_forward_options": {"dropout": 0.0},
    }


def _check_sizes(config: Config, tensors: Tensors) -> None:
    """Raises `ValueError` if the model, which is not built, is larger than the file."""
    # `_assign` checks the other shapes.
    width = config["n_embd"]
    tensors.find(_names("wte.weight"), (config["vocab_size"], width))
    tensors.find(_names("wpe.weight"), (config["n_positions"], width))
    for number in range(config["n_layer"]):
        name = f"h.{number}.mlp.c_fc.weight"
        tensors.find(_names(name), (width, config["n_inner"]))
    if any(f".{config['n_layer']}.mlp" in f".{name}" for name in tensors.names):
        raise ValueError(
            f"`n_layer` in config.json must be the number of blocks in "
            f"{tensors.path.name}, which has more; received "
            f"`n_layer={config['n_layer']}`."
        )


def _names(name: str) -> tuple[str, ...]:
    return (name, f"transformer.{name}")


class _Weight(NamedTuple):
    """A tensor of GPT-2 and the weights that its columns are."""

    name: str
    shape: tuple[int, ...]
    variables: list[keras.Variable]


def _block_weights(prefix: str, block: DecoderBlock, width: int) -> Iterator[_Weight]:
    """Yields the tensors of a block; its kernels are `(inputs, outputs)`."""
    attention, network = block.self_attention, block.feed_forward
    inner = network.intermediate_dim
    yield from _norm_weights(f"{prefix}ln_1", block.self_attention_residual.norm, width)
    yield from _norm_weights(f"{prefix}ln_2", block.feed_forward_residual.norm, width)
    inputs = [attention.query_dense, attention.key_dense, attention.value_dense]
    layers: dict[str, tuple[Sequence[keras.layers.Layer], int, int]] = {
        "attn.c_attn": (inputs, width, 3 * width),
        "attn.c_proj": ([attention.output_dense], width, width),
        "mlp.c_fc": ([network.intermediate_dense], width, inner),
        "mlp.c_proj": ([network.output_dense], inner, width),
    }
    for name, (parts, rows, columns) in layers.items():
        kernels, biases = [p.kernel for p in parts], [p.bias for p in parts]
        yield _Weight(f"{prefix}{name}.weight", (rows, columns), kernels)
        yield _Weight(f"{prefix}{name}.bias", (columns,), biases)


def _norm_weights(
    name: str, norm: keras.layers.Layer | None, width: int
) -> Iterator[_Weight]:
    if norm is None:
        return
    yield _Weight(f"{name}.weight", (width,), [norm.gamma])
    yield _Weight(f"{name}.bias", (width,), [norm.beta])


def _assign(model: CausalLM, config: Config, tensors: Tensors) -> None:
    """Sets all weights."""
    width, size = config["n_embd"], config["vocab_size"]
    embeddings = tensors.read(_names("wte.weight"), (size, width))
    if "lm_head.weight" in tensors.names:
        output = tensors.read(("lm_head.weight",), (size, width))
        if not np.array_equal(output, embeddings):
            raise ValueError(
                f"'lm_head.weight' in {tensors.path.name} must equal 'wte.weight', as "
                "`tie_word_embeddings` in config.json ties them; their values differ."
            )
    rows = padded_rows(embeddings, model.target_vocabulary_size)
    model.target_embedding.embeddings.assign(rows)
    bias = np.zeros(model.target_vocabulary_size, "float32")
    bias[size:] = NO_LOGIT
    assert model.tied_output_bias is not None  # `output_bias` is `True`
    model.tied_output_bias.assign(bias)
    assert isinstance(model.target_encoding, LearnedPositionalEncoding)
    weights = [
        _Weight(
            "wpe.weight",
            (config["n_positions"], width),
            [model.target_encoding.embeddings],
        ),
        *_norm_weights("ln_f", model.decoder.norm, width),
    ]
    for number, block in enumerate(model.decoder.blocks):
        weights += _block_weights(f"h.{number}.", block, width)
    for name, shape, variables in weights:
        tensor = tensors.read(_names(name), shape)
        parts = np.split(tensor, len(variables), axis=-1)
        for variable, part in zip(variables, parts, strict=True):
            variable.assign(part.reshape(variable.shape))
