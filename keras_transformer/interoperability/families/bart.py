"""BART, mBART, M2M-100 and NLLB."""

from typing import ClassVar

from keras_transformer.interoperability.family import Seq2SeqFamily, block_names
from keras_transformer.interoperability.settings import (
    Setting,
    activation,
    complete_config,
    fixed,
    flag,
    rate,
    size,
    token_id,
)
from keras_transformer.layers import LearnedPositionalEncoding, PositionalEncoding
from keras_transformer.types import Config

# Settings of the decoder that must be those of the encoder.
SAME = {
    "decoder_attention_heads": "encoder_attention_heads",
    "decoder_ffn_dim": "encoder_ffn_dim",
}
ENCODER_BLOCK = {
    "self_attn.q_proj": "self_attention.query_dense",
    "self_attn.k_proj": "self_attention.key_dense",
    "self_attn.v_proj": "self_attention.value_dense",
    "self_attn.out_proj": "self_attention.output_dense",
    "self_attn_layer_norm": "self_attention_residual.norm",
    "fc1": "feed_forward.intermediate_dense",
    "fc2": "feed_forward.output_dense",
    "final_layer_norm": "feed_forward_residual.norm",
}
DECODER_BLOCK = {
    **ENCODER_BLOCK,
    "encoder_attn.q_proj": "cross_attention.query_dense",
    "encoder_attn.k_proj": "cross_attention.key_dense",
    "encoder_attn.v_proj": "cross_attention.value_dense",
    "encoder_attn.out_proj": "cross_attention.output_dense",
    "encoder_attn_layer_norm": "cross_attention_residual.norm",
}


def bart_settings(**settings: Setting) -> dict[str, Setting]:
    """Returns the settings of a family, from those that all of them have."""
    return {
        "vocab_size": size(50265),
        "d_model": size(1024, "hidden_dim"),
        "encoder_layers": size(12, "num_layers"),
        "decoder_layers": size(12, "num_decoder_layers"),
        "encoder_attention_heads": size(16, "num_heads"),
        "decoder_attention_heads": size(16, "num_heads"),
        "encoder_ffn_dim": size(4096, "intermediate_dim"),
        "decoder_ffn_dim": size(4096, "intermediate_dim"),
        "max_position_embeddings": size(1024),
        "activation_function": activation("gelu"),
        "dropout": rate(0.1, "dropout"),
        "attention_dropout": rate(0.0, "attention_options.dropout"),
        "activation_dropout": rate(0.0, "feed_forward_options.dropout"),
        "scale_embedding": flag(False, "scale_embeddings"),
        "is_encoder_decoder": fixed(True),
        "tie_word_embeddings": fixed(True),
        "decoder_start_token_id": token_id(2),
        "forced_bos_token_id": token_id(None, "forced_first_token_id"),
        "bos_token_id": token_id(0),
        "eos_token_id": token_id(2),
        "pad_token_id": token_id(1),
        **settings,
    }


class Bart(Seq2SeqFamily):
    """BART.

    References:
        - [Lewis et al., 2020](https://arxiv.org/abs/1910.13461)
    """

    model_type = "bart"
    architecture = "BartForConditionalGeneration"
    settings = bart_settings(
        normalize_before=fixed(False), add_final_layer_norm=fixed(False)
    )
    design = {
        "tie_embeddings": "all",
        "output_bias": True,
        "normalize_embeddings": True,
        "normalize_first": False,
        "layer_norm_epsilon": 1e-5,
    }
    layers = {
        "model.shared": "target_embedding",
        "model.encoder.embed_positions": "source_encoding",
        "model.encoder.layernorm_embedding": "source_norm",
        "model.encoder.layer_norm": "encoder.norm",
        **block_names("model.encoder.layers", "encoder", ENCODER_BLOCK),
        "model.decoder.embed_positions": "target_encoding",
        "model.decoder.layernorm_embedding": "target_norm",
        "model.decoder.layer_norm": "decoder.norm",
        **block_names("model.decoder.layers", "decoder", DECODER_BLOCK),
    }
    prefix = "model."
    aliases = {
        "model.shared": (
            "model.encoder.embed_tokens",
            "model.decoder.embed_tokens",
            "lm_head",
        )
    }
    bias: ClassVar[str | None] = "final_logits_bias"
    # The first position has the number 2, as in fairseq.
    first_rows = dict.fromkeys(
        ("model.encoder.embed_positions", "model.decoder.embed_positions"), 2
    )

    def complete(self, config: Config) -> Config:
        config = super().complete(config)
        for name, other in SAME.items():
            if config[name] != config[other]:
                raise ValueError(
                    f"`{name}` in config.json must be {config[other]}, `{other}`; "
                    f"received `{name}={config[name]}`."
                )
        return config

    def arguments(self, config: Config) -> Config:
        positions = LearnedPositionalEncoding(config["max_position_embeddings"])
        return {**super().arguments(config), "positions": positions}

    def config(self, design: Config) -> Config:
        config = super().config(design)
        return {**config, "max_position_embeddings": self._max_length(design)}

    def _max_length(self, design: Config) -> int:
        lengths: list[int | None] = [
            design[f"max_{side}_length"] for side in ("source", "target")
        ]
        positions = design["positions"]
        if isinstance(positions, LearnedPositionalEncoding):
            return positions.max_length
        default = complete_config(self.settings, {})["max_position_embeddings"]
        return max(length or default for length in lengths)


class MBart(Bart):
    """mBART.

    References:
        - [Liu et al., 2020](https://arxiv.org/abs/2001.08210)
    """

    model_type = "mbart"
    architecture = "MBartForConditionalGeneration"
    settings = bart_settings(
        normalize_before=fixed(True), add_final_layer_norm=fixed(True)
    )
    design = {**Bart.design, "normalize_first": True}
    has_languages = True


class M2M100(Bart):
    """M2M-100 and NLLB.

    References:
        - [Fan et al., 2020](https://arxiv.org/abs/2010.11125)
        - [NLLB team, 2022](https://arxiv.org/abs/2207.04672)
    """

    model_type = "m2m_100"
    architecture = "M2M100ForConditionalGeneration"
    settings = bart_settings(
        vocab_size=size(128112),
        activation_function=activation("relu"),
        attention_dropout=rate(0.1, "attention_options.dropout"),
        scale_embedding=flag(True, "scale_embeddings"),
    )
    design = {
        "tie_embeddings": "all",
        "normalize_first": True,
        "layer_norm_epsilon": 1e-5,
    }
    bias = None
    has_languages = True
    first_rows = {}
    # Tables of positions, which `PositionalEncoding` computes.
    unused = r"model\.(encoder|decoder)\.embed_positions\.weights?"

    def arguments(self, config: Config) -> Config:
        length = config["max_position_embeddings"]
        return {
            **super().arguments(config),
            "positions": fairseq_positions(config["d_model"], config["pad_token_id"]),
            "max_source_length": length,
            "max_target_length": length,
        }


def fairseq_positions(hidden_dim: int, pad_token_id: int | None) -> PositionalEncoding:
    """Returns the sinusoids of fairseq, whose first position is `pad_token_id + 1`.

    The last of the `hidden_dim / 2` wavelengths is that of the first one times 10,000.
    """
    half = hidden_dim // 2
    wavelength = 10000 ** (half / max(half - 1, 1))
    offset = 0 if pad_token_id is None else pad_token_id + 1
    return PositionalEncoding(wavelength, interleaved=False, offset=offset)
