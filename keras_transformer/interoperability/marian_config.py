"""Reads `config.json` of a Marian model: the arguments of a `Seq2Seq`."""

from keras_transformer.export.marian_format import (
    ACTIVATIONS,
    DEFAULT_SETTINGS,
    LAYER_NORM_EPSILON,
)
from keras_transformer.interoperability.files import in_config
from keras_transformer.layers import PositionalEncoding
from keras_transformer.types import Config
from keras_transformer_runtime.arguments import (
    check_ints,
    check_numbers,
    check_one_of,
    check_rates,
)

SIZES = (
    "vocab_size",
    "d_model",
    "decoder_layers",
    "decoder_vocab_size",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "encoder_layers",
    "max_position_embeddings",
)


def complete_config(config: Config) -> Config:
    """Checks the settings of `config.json`, and adds the defaults."""
    defaults = DEFAULT_SETTINGS.items()
    config = {name: config.get(name, default) for name, default in defaults}
    shared = config["share_encoder_decoder_embeddings"]
    if shared or config["decoder_vocab_size"] is None:
        config["decoder_vocab_size"] = config["vocab_size"]
    remedy = "Choose a model that transformers' `MarianMTModel` computes."
    check_one_of(["marian"], remedy=remedy, **in_config(config, "model_type"))
    check_one_of([True], remedy=remedy, **in_config(config, "is_encoder_decoder"))
    pre_norm = ("add_final_layer_norm", "normalize_before", "normalize_embedding")
    check_one_of([False], remedy=remedy, **in_config(config, *pre_norm))
    check_ints(1, remedy=remedy, **in_config(config, *SIZES))
    check_numbers(below=2**31, **in_config(config, "max_position_embeddings"))
    check_rates(
        **in_config(config, "activation_dropout", "attention_dropout", "dropout")
    )
    check_one_of(ACTIVATIONS, remedy=remedy, **in_config(config, "activation_function"))
    for name in ("attention_heads", "ffn_dim"):
        same = config[f"encoder_{name}"]
        remedy = f"It must equal `encoder_{name}`."
        check_one_of([same], remedy=remedy, **in_config(config, f"decoder_{name}"))
    remedy = "It must equal `pad_token_id`: outputs of Marian start with padding."
    start = in_config(config, "decoder_start_token_id")
    check_one_of([config["pad_token_id"]], remedy=remedy, **start)
    width, heads = config["d_model"], config["encoder_attention_heads"]
    if width % heads:
        raise ValueError(
            f"`d_model` in config.json must be divisible by {heads}, "
            f"`encoder_attention_heads`; received `d_model={width}`."
        )
    return config


def seq2seq_arguments(config: Config) -> Config:
    """Converts settings to the arguments of a `Seq2Seq`, without the tokenizers."""
    sizes = {
        "source_vocabulary_size": config["vocab_size"],
        "target_vocabulary_size": config["decoder_vocab_size"],
    }
    tying = "target" if config["tie_word_embeddings"] else "none"
    if config["share_encoder_decoder_embeddings"]:
        sizes = {"vocabulary_size": config["vocab_size"]}
        tying = "all" if config["tie_word_embeddings"] else "none"
    max_length = config["max_position_embeddings"]
    return {
        **sizes,
        "num_layers": config["encoder_layers"],
        "num_decoder_layers": config["decoder_layers"],
        "hidden_dim": config["d_model"],
        "intermediate_dim": config["encoder_ffn_dim"],
        "num_heads": config["encoder_attention_heads"],
        "tie_embeddings": tying,
        "scale_embeddings": bool(config["scale_embedding"]),
        "output_bias": True,
        "normalize_first": False,
        "dropout": config["dropout"],
        "activation": ACTIVATIONS[config["activation_function"]],
        "layer_norm_epsilon": LAYER_NORM_EPSILON,
        "positions": PositionalEncoding(interleaved=False),
        "attention_options": {"dropout": config["attention_dropout"]},
        "feed_forward_options": {"dropout": config["activation_dropout"]},
        "max_source_length": max_length,
        "max_target_length": max_length,
    }
