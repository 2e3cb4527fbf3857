"""Models that go by a name: known sizes, and what others have trained."""

import pathlib
from typing import Any

from keras_transformer.models.preset_folders import (
    HUB,
    download_preset,
    read_preset,
)

PRESETS: dict[str, dict[str, Any]] = {
    "transformer_tiny": {
        "num_layers": 4,
        "hidden_dim": 128,
        "intermediate_dim": 256,
        "num_heads": 4,
    },
    "transformer_small": {
        "num_layers": 3,
        "hidden_dim": 256,
        "intermediate_dim": 1024,
        "num_heads": 4,
    },
    "transformer_base": {
        "num_layers": 6,
        "hidden_dim": 512,
        "intermediate_dim": 2048,
        "num_heads": 8,
    },
    "transformer_big": {
        "num_layers": 6,
        "hidden_dim": 1024,
        "intermediate_dim": 4096,
        "num_heads": 16,
        "dropout": 0.3,
    },
}


def from_preset(
    cls: Any, preset: str, load_weights: bool = True, **overrides: Any
) -> Any:
    """Builds a model of a known size, or loads one that `save_to_preset` wrote.

    Args:
        cls: `Seq2Seq`, whose class method this is.
        preset: a size, for a model without training: `"transformer_tiny"` (4 + 4
            blocks of width 128), `"transformer_small"` (3 + 3, 256),
            `"transformer_base"` (6 + 6, 512) or `"transformer_big"` (6 + 6, 1024); or
            a trained model: the path of a folder, or `"hf://user/name"` on the Hugging
            Face Hub (extra `hub`). No code in a folder is run.
        load_weights: whether a trained model has its weights; without them it has its
            design and its tokenizers.
        **overrides: any constructor argument. A size always needs the vocabulary (a
            number or tokenizers). Of a trained model with its weights, those are
            allowed that leave the shapes of the weights as they are, such as
            `dropout`, `dtype` or `max_source_length`.

    Returns:
        A `Seq2Seq`, not compiled.

    Raises:
        ValueError: if there is no such preset; if a folder was written by a newer
            version, is damaged, or its files do not belong together; or if an
            override needs other weights.
        FileNotFoundError: if a folder lacks a file.

    Example:

    >>> model = Seq2Seq.from_preset("transformer_tiny", vocabulary_size=100)
    >>> model.num_layers, model.hidden_dim
    (4, 128)
    >>> model.save_to_preset("en-de")
    >>> loaded = Seq2Seq.from_preset("en-de", dropout=0.2)
    >>> loaded.dropout, loaded.count_params() == model.count_params()
    (0.2, True)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), table 3
          (base and big)
    """
    if preset in PRESETS:
        return cls(**{**PRESETS[preset], **overrides})
    if str(preset).startswith(HUB):
        folder = download_preset(preset)
    else:
        folder = pathlib.Path(preset)
    if not folder.is_dir():
        raise ValueError(
            f"`preset` must be one of {', '.join(map(repr, PRESETS))}, a folder that "
            "`save_to_preset` wrote, or 'hf://user/name'; received "
            f"`preset={preset!r}`."
        )
    return read_preset(cls, folder, load_weights, overrides)
