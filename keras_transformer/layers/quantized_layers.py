"""Files of quantized sub-layers."""

import json
from collections.abc import Mapping, MutableMapping
from typing import Any

import keras
import numpy as np

from keras_transformer.backend.keras_internals import flatten_layers

KEY = "quantized"
MODES = ("int8", "int4", "float8")
DEFAULT_BLOCK_SIZE = keras.quantizers.Int4QuantizationConfig().block_size
QUANTIZABLE = keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Embedding


def store_quantized_layers(
    layer: keras.layers.Layer, store: MutableMapping[str, object]
) -> None:
    """Writes into the weights of a layer how its sub-layers are quantized."""
    layers = enumerate(flatten_layers(layer))
    modes = {n: _mode_and_block_size(each) for n, each in layers if _mode(each)}
    if modes:
        text = json.dumps(modes).encode()
        store[KEY] = np.frombuffer(text, np.uint8)


def load_quantized_layers(
    layer: keras.layers.Layer, store: Mapping[str, object]
) -> dict[str, object]:
    """Quantizes sub-layers as in a file, and returns the other weights of the layer."""
    keys = list(store.keys())
    if KEY in keys:
        modes = json.loads(np.asarray(store[KEY], np.uint8).tobytes())
        layers = dict(enumerate(flatten_layers(layer)))
        for number, (mode, block_size) in modes.items():
            each = layers.get(int(number))
            if not isinstance(each, QUANTIZABLE):
                raise ValueError(
                    f"`filepath` must be of a layer like `{layer.path}`; received a "
                    f"file in which its sub-layer {number} is quantized."
                )
            if _mode(each) is None:
                each.quantize(mode, config=_config(mode, block_size))
    return {key: store[key] for key in keys if key != KEY}


class QuantizedLayers(keras.layers.Layer):
    """Base class of layers whose sub-layers may be quantized in a file.

    Keras creates sub-layers with floats and cannot load codes into them, so the weights
    of this layer say how its sub-layers are quantized. Loading these weights quantizes
    the sub-layers before their own weights are loaded.
    """

    def save_own_variables(self, store: MutableMapping[str, object]) -> None:
        """Writes the weights of this layer, without those of its sub-layers."""
        super().save_own_variables(store)  # type: ignore[misc]
        store_quantized_layers(self, store)

    def load_own_variables(self, store: Mapping[str, object]) -> None:
        """Quantizes sub-layers as in the file, and reads the weights of this layer."""
        own = load_quantized_layers(self, store)
        super().load_own_variables(own)  # type: ignore[misc]


def _mode(layer: keras.layers.Layer) -> str | None:
    return getattr(layer, "quantization_mode", None)


def _mode_and_block_size(layer: keras.layers.Layer) -> tuple[str, int | None]:
    mode: Any = _mode(layer)
    config = getattr(layer, "quantization_config", None)
    block_size = getattr(config, "block_size", DEFAULT_BLOCK_SIZE)
    is_known = mode in MODES
    if is_known and config is not None:
        expected = _config(mode, block_size).get_config()
        is_known = config.get_config() == expected
    if not is_known:
        raise ValueError(
            f"`{layer.path}` must be quantized by one of the modes {MODES} with the "
            f"quantizers of Keras for a file; received the mode {mode!r}. Save the "
            "model before you quantize it, and quantize the loaded model."
        )
    return mode, block_size


def _config(mode: str, block_size: int | None) -> Any:
    """Returns the configuration of Keras for a mode."""
    if mode == "int4":
        return keras.quantizers.Int4QuantizationConfig(block_size=block_size)
    if mode == "float8":
        return keras.quantizers.Float8QuantizationConfig()
    return keras.quantizers.Int8QuantizationConfig()
