"""Designs: arguments of blocks, stacks and `Seq2Seq` beyond the paper.

They require heads of an even width and sequences of at most 13 tokens.
"""

from keras_transformer.layers import (
    AlibiBias,
    GlobalLocal,
    LearnedPositionalEncoding,
    LocalWindow,
    PositionalEncoding,
    RelativePositionBias,
    RotaryEmbedding,
    Strided,
)

SCHEMES = {
    "sinusoidal": lambda: PositionalEncoding(max_wavelength=100),
    "learned": lambda: LearnedPositionalEncoding(max_length=13),
    "rotary": lambda: RotaryEmbedding(max_wavelength=100),
    "alibi": AlibiBias,
    "relative": lambda: RelativePositionBias(num_buckets=8, max_distance=11),
}


def modern():
    return {
        "positions": RotaryEmbedding(),
        "attention_options": {
            "num_key_value_heads": 1,
            "dropout": 0.3,
            "use_bias": False,
            "pattern": LocalWindow(2),
        },
        "feed_forward_options": {"gated": True, "dropout": 0.1, "use_bias": False},
        "residual_options": {"normalization": "rms", "stochastic_depth": 0.5},
        "activation": "silu",
        "normalize_first": True,
        "dropout": 0.2,
    }


DESIGNS = {
    **{name: lambda make=make: {"positions": make()} for name, make in SCHEMES.items()},
    "grouped": lambda: {
        "attention_options": {"num_key_value_heads": 1, "pattern": Strided(2, 3)}
    },
    "global": lambda: {
        "positions": AlibiBias(),
        "attention_options": {
            "pattern": GlobalLocal(1, 1),
            "use_gate": True,
            "value_dim": 5,
        },
    },
    "modern": modern,
}
