"""GPT-2."""

from keras_transformer.interoperability.family import CausalFamily, block_names
from keras_transformer.interoperability.settings import (
    activation,
    epsilon,
    fixed,
    flag,
    rate,
    size,
    token_id,
)
from keras_transformer.layers import LearnedPositionalEncoding
from keras_transformer.types import Config


class GPT2(CausalFamily):
    """GPT-2.

    References:
        - [Radford et al., 2019](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)
    """

    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"
    settings = {
        "vocab_size": size(50257),
        "n_positions": size(1024),
        "n_embd": size(768, "hidden_dim"),
        "n_layer": size(12, "num_layers"),
        "n_head": size(12, "num_heads"),
        "n_inner": size(None, "intermediate_dim"),
        "activation_function": activation("gelu_new"),
        "resid_pdrop": rate(0.1, "dropout"),
        "embd_pdrop": rate(0.1, None),
        "attn_pdrop": rate(0.1, "attention_options.dropout"),
        "layer_norm_epsilon": epsilon(1e-5),
        "tie_word_embeddings": flag(True, "tie_embeddings"),
        "scale_attn_weights": fixed(True),
        "scale_attn_by_inverse_layer_idx": fixed(False),
        "add_cross_attention": fixed(False),
        "bos_token_id": token_id(50256),
        "eos_token_id": token_id(50256),
        "pad_token_id": token_id(None),
    }
    design = {
        "scale_embeddings": False,
        "normalize_first": True,
        "feed_forward_options": {"dropout": 0.0},
    }
    layers = {
        "transformer.wte": "target_embedding",
        "transformer.wpe": "target_encoding",
        "transformer.ln_f": "decoder.norm",
        "lm_head": "output_dense",
        **block_names(
            "transformer.h",
            "decoder",
            {
                "ln_1": "self_attention_residual.norm",
                "attn.c_attn": (
                    "self_attention.query_dense",
                    "self_attention.key_dense",
                    "self_attention.value_dense",
                ),
                "attn.c_proj": "self_attention.output_dense",
                "ln_2": "feed_forward_residual.norm",
                "mlp.c_fc": "feed_forward.intermediate_dense",
                "mlp.c_proj": "feed_forward.output_dense",
            },
        ),
    }
    prefix = "transformer."
    aliases = {"transformer.wte": ("lm_head",)}
    unused = r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias"

    def complete(self, config: Config) -> Config:
        config = super().complete(config)
        config["n_inner"] = config["n_inner"] or 4 * config["n_embd"]
        return config

    def arguments(self, config: Config) -> Config:
        positions = LearnedPositionalEncoding(config["n_positions"])
        return {**super().arguments(config), "positions": positions}

    def config(self, design: Config) -> Config:
        positions = design["positions"]
        return {**super().config(design), "n_positions": positions.max_length or 1024}

    def stores_transposed_kernel(self, layer: str) -> bool:
        return layer == "lm_head"
