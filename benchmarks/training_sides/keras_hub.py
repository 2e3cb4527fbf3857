"""A model of KerasHub's layers with loss and metrics of Keras."""

from typing import Any

import keras
import keras_nlp
import tensorflow as tf
from keras import ops

from training_sides.keras_fit import adam, as_dataset, fit
from training_sides.setting import Setting, Train


def build(setting: Setting, jit_compile: Any = "auto") -> Train:
    keras.config.set_dtype_policy(setting.dtype)
    model = functional_model(setting)
    model.compile(
        optimizer=adam(),
        # Label smoothing requires one-hot targets, which are much slower.
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy()],
        jit_compile=jit_compile,
    )
    return lambda batches, done: fit(model, as_dataset(batches).map(with_weights), done)


def with_weights(inputs: dict[str, Any], targets: Any) -> tuple[Any, Any, Any]:
    return inputs, targets, tf.cast(tf.not_equal(targets, 0), tf.float32)


def functional_model(setting: Setting) -> keras.Model:
    dimensions = setting.dimensions
    block = {
        "intermediate_dim": dimensions["intermediate_dim"],
        "num_heads": dimensions["num_heads"],
        "dropout": setting.dropout,
        "normalize_first": True,
    }
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("encoder_token_ids", "decoder_token_ids")
    }
    embedding = keras_nlp.layers.ReversibleEmbedding(
        setting.vocabulary_size, dimensions["hidden_dim"]
    )
    encoder_mask = ops.not_equal(inputs["encoder_token_ids"], 0)
    decoder_mask = ops.not_equal(inputs["decoder_token_ids"], 0)

    def embed(token_ids):
        x = embedding(token_ids) * dimensions["hidden_dim"] ** 0.5
        x = x + keras_nlp.layers.SinePositionEncoding()(x)
        return keras.layers.Dropout(setting.dropout)(x)

    x = embed(inputs["encoder_token_ids"])
    for _ in range(dimensions["num_layers"]):
        x = keras_nlp.layers.TransformerEncoder(**block)(x, padding_mask=encoder_mask)
    encoded = keras.layers.LayerNormalization(epsilon=1e-5)(x)
    x = embed(inputs["decoder_token_ids"])
    for _ in range(dimensions["num_layers"]):
        x = keras_nlp.layers.TransformerDecoder(**block)(
            x,
            encoded,
            decoder_padding_mask=decoder_mask,
            encoder_padding_mask=encoder_mask,
        )
    decoded = keras.layers.LayerNormalization(epsilon=1e-5)(x)
    return keras.Model(inputs, embedding(decoded, reverse=True))
