"""T5, with and without gated feed-forward networks."""

from collections.abc import Collection

from keras_transformer.interoperability.family import Seq2SeqFamily, block_names
from keras_transformer.interoperability.parameters import LayerNames, Parameter
from keras_transformer.interoperability.settings import (
    ACTIVATIONS,
    choice,
    epsilon,
    fixed,
    flag,
    rate,
    size,
    token_id,
)
from keras_transformer.layers import RelativePositionBias
from keras_transformer.models import Seq2Seq
from keras_transformer.types import Config

# `feed_forward_proj`: the activation, and whether the network has a gate.
NETWORKS = {name: (ours, False) for name, ours in ACTIVATIONS.items()}
NETWORKS |= {f"gated-{name}": (ours, True) for name, ours in ACTIVATIONS.items()}
NETWORKS["gated-gelu"] = ("gelu_new", True)


def _attention(name: str, layer: str) -> dict[str, str]:
    return {
        f"{name}.q": f"{layer}.query_dense",
        f"{name}.k": f"{layer}.key_dense",
        f"{name}.v": f"{layer}.value_dense",
        f"{name}.o": f"{layer}.output_dense",
    }


def _network(number: int) -> dict[str, str]:
    return {
        f"layer.{number}.DenseReluDense.wi": "feed_forward.intermediate_dense",
        f"layer.{number}.DenseReluDense.wi_0": "feed_forward.gate_dense",
        f"layer.{number}.DenseReluDense.wo": "feed_forward.output_dense",
        f"layer.{number}.layer_norm": "feed_forward_residual.norm",
    }


SELF_ATTENTION = {
    **_attention("layer.0.SelfAttention", "self_attention"),
    "layer.0.layer_norm": "self_attention_residual.norm",
}
ENCODER_BLOCK = {**SELF_ATTENTION, **_network(1)}
DECODER_BLOCK = {
    **SELF_ATTENTION,
    **_attention("layer.1.EncDecAttention", "cross_attention"),
    "layer.1.layer_norm": "cross_attention_residual.norm",
    **_network(2),
}
BIAS = "{}.block.0.layer.0.SelfAttention.relative_attention_bias"


class T5(Seq2SeqFamily):
    """T5 ([Raffel et al., 2020](https://arxiv.org/abs/1910.10683)).

    T5 does not divide the attention scores by √key_dim, and with a shared embedding it
    divides the outputs of the decoder by √hidden_dim. The weights here contain these
    factors.
    """

    model_type = "t5"
    architecture = "T5ForConditionalGeneration"
    settings = {
        "vocab_size": size(32128),
        "d_model": size(512, "hidden_dim"),
        "d_kv": size(64, "attention_options.key_dim"),
        "d_ff": size(2048, "intermediate_dim"),
        "num_layers": size(6, "num_layers"),
        "num_decoder_layers": size(None, "num_decoder_layers"),
        "num_heads": size(8, "num_heads"),
        "relative_attention_num_buckets": size(32),
        "relative_attention_max_distance": size(128),
        "dropout_rate": rate(0.1, "dropout"),
        "layer_norm_epsilon": epsilon(1e-6),
        "feed_forward_proj": choice("relu", None, NETWORKS),
        "is_encoder_decoder": fixed(True),
        "tie_word_embeddings": flag(True),
        "decoder_start_token_id": token_id(0),
        "forced_bos_token_id": token_id(None, "forced_first_token_id"),
        "eos_token_id": token_id(1),
        "pad_token_id": token_id(0),
    }
    design = {
        "scale_embeddings": False,
        "output_bias": False,
        "normalize_first": True,
        "attention_options": {"use_bias": False},
        "feed_forward_options": {"use_bias": False},
        "residual_options": {"normalization": "rms"},
    }
    layers = {
        "shared": "target_embedding",
        "lm_head": "output_dense",
        BIAS.format("encoder"): "encoder.blocks.0.self_attention.positions",
        "encoder.final_layer_norm": "encoder.norm",
        **block_names("encoder.block", "encoder", ENCODER_BLOCK),
        BIAS.format("decoder"): "decoder.blocks.0.self_attention.positions",
        "decoder.final_layer_norm": "decoder.norm",
        **block_names("decoder.block", "decoder", DECODER_BLOCK),
    }
    aliases = {
        "shared": ("encoder.embed_tokens", "decoder.embed_tokens", "lm_head"),
    }
    # An unused table of an old version.
    unused = (
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
    )

    def complete(self, config: Config) -> Config:
        complete = super().complete(config)
        complete["num_decoder_layers"] = (
            complete["num_decoder_layers"] or complete["num_layers"]
        )
        scaled = config.get("scale_decoder_outputs", complete["tie_word_embeddings"])
        return {**complete, "tie_word_embeddings": scaled}

    def arguments(self, config: Config) -> Config:
        arguments = super().arguments(config)
        name, gated = NETWORKS[config["feed_forward_proj"]]
        buckets = config["relative_attention_num_buckets"]
        distance = config["relative_attention_max_distance"]
        positions = tuple(
            RelativePositionBias(
                buckets, distance, bidirectional=bidirectional, shared=True
            )
            for bidirectional in (True, False)
        )
        network = {**arguments["feed_forward_options"], "gated": gated}
        return {
            **arguments,
            "tie_embeddings": "all" if config["tie_word_embeddings"] else "inputs",
            "activation": name,
            "feed_forward_options": network,
            "positions": positions,
        }

    def options_of_tensors(self, names: Collection[str]) -> Config:
        return {} if "lm_head.weight" in names else {"tie_embeddings": "all"}

    def config(self, design: Config) -> Config:
        config = super().config(design)
        network = design["activation"], design["feed_forward_options"]["gated"]
        names = [name for name, each in NETWORKS.items() if each == network]
        positions = design["positions"]
        source = positions[0] if isinstance(positions, tuple | list) else positions
        if isinstance(source, RelativePositionBias):
            config["relative_attention_num_buckets"] = source.num_buckets
            config["relative_attention_max_distance"] = source.max_distance
        tied = design["tie_embeddings"] == "all"
        return {
            **config,
            "feed_forward_proj": names[-1] if names else "relu",
            "tie_word_embeddings": tied,
        }

    def layer_names(self, model: Seq2Seq) -> LayerNames:
        if not model.encoder.blocks[0].feed_forward.gated:
            return self.layers
        return {
            f"{name}_1" if name.endswith(".wi") else name: path
            for name, path in self.layers.items()
        }

    def adjust(self, parameter: Parameter, layer: str, config: Config) -> Parameter:
        parameter = super().adjust(parameter, layer, config)
        if layer.endswith("Attention.q"):
            return parameter._replace(scale=config["d_kv"] ** 0.5)
        if layer == "decoder.final_layer_norm" and config["tie_word_embeddings"]:
            return parameter._replace(scale=config["d_model"] ** -0.5)
        return parameter
