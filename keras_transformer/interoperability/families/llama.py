"""Llama 2 and 3, Mistral, Qwen 2 and 3, and SmolLM 2."""

from keras_transformer.interoperability.families.rotary import (
    config_of_positions,
    positions_of_config,
)
from keras_transformer.interoperability.family import CausalFamily, block_names
from keras_transformer.interoperability.settings import (
    Setting,
    activation,
    epsilon,
    fixed,
    flag,
    rate,
    size,
    token_id,
)
from keras_transformer.types import Config

OPTIONAL = size(None).check


def _settings(**settings: Setting) -> dict[str, Setting]:
    """Returns the settings of a family, from those that all of them have."""
    return {
        "vocab_size": size(32000),
        "hidden_size": size(4096, "hidden_dim"),
        "intermediate_size": size(11008, "intermediate_dim"),
        "num_hidden_layers": size(32, "num_layers"),
        "num_attention_heads": size(32, "num_heads"),
        "num_key_value_heads": size(None, "attention_options.num_key_value_heads"),
        "head_dim": size(None, "attention_options.key_dim"),
        "hidden_act": activation("silu"),
        "rms_norm_eps": epsilon(1e-6),
        "attention_dropout": rate(0.0, "attention_options.dropout"),
        "max_position_embeddings": size(2048, "max_length"),
        "tie_word_embeddings": flag(False, "tie_embeddings"),
        "bos_token_id": token_id(None),
        "eos_token_id": token_id(None),
        "pad_token_id": token_id(None),
        **settings,
    }


class Llama(CausalFamily):
    """Llama 2 and 3, SmolLM 2.

    References:
        - [Touvron et al., 2023](https://arxiv.org/abs/2307.09288)
    """

    model_type = "llama"
    architecture = "LlamaForCausalLM"
    settings = _settings(
        attention_bias=flag(False, "attention_options.use_bias"),
        mlp_bias=flag(False, "feed_forward_options.use_bias"),
        pretraining_tp=fixed(1, None),
        bos_token_id=token_id(1),
        eos_token_id=token_id(2),
    )
    design = {
        "scale_embeddings": False,
        "output_bias": False,
        "normalize_first": True,
        "dropout": 0.0,
        "attention_options": {"use_bias": False},
        "feed_forward_options": {"gated": True, "use_bias": False},
        "residual_options": {"normalization": "rms"},
    }
    layers = {
        "model.embed_tokens": "target_embedding",
        "model.norm": "decoder.norm",
        "lm_head": "output_dense",
        **block_names(
            "model.layers",
            "decoder",
            {
                "input_layernorm": "self_attention_residual.norm",
                "self_attn.q_proj": "self_attention.query_dense",
                "self_attn.k_proj": "self_attention.key_dense",
                "self_attn.v_proj": "self_attention.value_dense",
                "self_attn.o_proj": "self_attention.output_dense",
                "self_attn.q_norm": "self_attention.query_norm",
                "self_attn.k_norm": "self_attention.key_norm",
                "post_attention_layernorm": "feed_forward_residual.norm",
                "mlp.gate_proj": "feed_forward.gate_dense",
                "mlp.up_proj": "feed_forward.intermediate_dense",
                "mlp.down_proj": "feed_forward.output_dense",
            },
        ),
    }
    prefix = "model."
    aliases = {"model.embed_tokens": ("lm_head",)}
    unused = r"(model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq"

    def complete(self, config: Config) -> Config:
        complete = super().complete(config)
        heads = complete["num_attention_heads"]
        complete["num_key_value_heads"] = complete["num_key_value_heads"] or heads
        complete["head_dim"] = complete["head_dim"] or complete["hidden_size"] // heads
        return {**complete, "positions": positions_of_config(config, complete)}

    def arguments(self, config: Config) -> Config:
        return {**super().arguments(config), "positions": config["positions"]}

    def config(self, design: Config) -> Config:
        config = super().config(design)
        length = (
            design["max_length"] or self.settings["max_position_embeddings"].default
        )
        rotary = config_of_positions(design["positions"])
        return {**config, "max_position_embeddings": length, **rotary}


class Mistral(Llama):
    """Mistral.

    References:
        - [Jiang et al., 2023](https://arxiv.org/abs/2310.06825)
    """

    model_type = "mistral"
    architecture = "MistralForCausalLM"
    settings = _settings(
        intermediate_size=size(14336, "intermediate_dim"),
        num_key_value_heads=size(8, "attention_options.num_key_value_heads"),
        max_position_embeddings=size(131072, "max_length"),
        sliding_window=Setting(4096, "attention_options.sliding_window", OPTIONAL),
        bos_token_id=token_id(1),
        eos_token_id=token_id(2),
    )


class Qwen2(Llama):
    """Qwen 2 and 2.5.

    References:
        - [Yang et al., 2024](https://arxiv.org/abs/2407.10671)
    """

    model_type = "qwen2"
    architecture = "Qwen2ForCausalLM"
    settings = _settings(
        vocab_size=size(151936),
        intermediate_size=size(22016, "intermediate_dim"),
        num_key_value_heads=size(32, "attention_options.num_key_value_heads"),
        max_position_embeddings=size(32768, "max_length"),
        use_sliding_window=flag(False),
        sliding_window=Setting(4096, None, OPTIONAL),
        max_window_layers=size(28, least=0),
        layer_types=Setting(None, None, lambda **value: None),
    )
    design = {
        **Llama.design,
        "attention_options": {"use_bias": ["query", "key", "value"]},
    }

    def arguments(self, config: Config) -> Config:
        arguments = super().arguments(config)
        window = _window(config)
        if window is not None:
            arguments["attention_options"]["sliding_window"] = window
        return arguments

    def config(self, design: Config) -> Config:
        config = super().config(design)
        window = design["attention_options"]["sliding_window"]
        if window is None:
            return {**config, "sliding_window": None}
        layers = design["num_layers"]
        windows = window if isinstance(window, list | tuple) else [window] * layers
        kinds = [
            "full_attention" if w is None else "sliding_attention" for w in windows
        ]
        config |= {
            "use_sliding_window": True,
            "sliding_window": max(w or 0 for w in windows),
            "max_window_layers": kinds.count("full_attention"),
            "layer_types": kinds,
        }
        return config


class Qwen3(Qwen2):
    """Qwen 3.

    References:
        - [Yang et al., 2025](https://arxiv.org/abs/2505.09388)
    """

    model_type = "qwen3"
    architecture = "Qwen3ForCausalLM"
    settings = {
        **Qwen2.settings,
        "head_dim": size(128, "attention_options.key_dim"),
        "attention_bias": flag(False, "attention_options.use_bias"),
    }
    design = {
        **Llama.design,
        "attention_options": {
            "use_bias": False,
            "query_key_normalization": "rms",
        },
    }


def _window(config: Config) -> int | list[int | None] | None:
    """Returns the window of all blocks, or a list with that of each; `None` = none."""
    window, layers = config["sliding_window"], config["num_hidden_layers"]
    if not config["use_sliding_window"] or window is None:
        return None
    kinds = config["layer_types"] or [
        "sliding_attention" if i >= config["max_window_layers"] else "full_attention"
        for i in range(layers)
    ]
    known = {"full_attention": None, "sliding_attention": window}
    if len(kinds) != layers or not set(kinds) <= set(known):
        raise ValueError(
            f"`layer_types` in config.json must have {layers} entries, each one of "
            f"{list(known)}; received `layer_types={kinds!r}`."
        )
    windows = [known[kind] for kind in kinds]
    if all(each == window for each in windows):
        return window
    return windows if any(windows) else None
