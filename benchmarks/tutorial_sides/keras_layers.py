"""The tutorial of Keras: words, 20 of them, blocks that the program defines."""

import re
import string
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tutorial_sides.task import SIZE, Task, Trained, read

LENGTH = 20
BATCH_SIZE = 64
STRIPPED = re.escape(re.sub(r"[\[\]]", "", string.punctuation))


class PositionalEmbedding(layers.Layer):
    def __init__(self, length: int, vocabulary_size: int, hidden_dim: int):
        super().__init__()
        self.tokens = layers.Embedding(vocabulary_size, hidden_dim)
        self.positions = layers.Embedding(length, hidden_dim)

    def call(self, inputs: Any) -> Any:
        positions = ops.arange(ops.shape(inputs)[-1])
        return self.tokens(inputs) + self.positions(positions)


class TransformerEncoder(layers.Layer):
    def __init__(self, hidden_dim: int, intermediate_dim: int, num_heads: int):
        super().__init__()
        self.attention = layers.MultiHeadAttention(num_heads, hidden_dim // num_heads)
        self.projection = keras.Sequential(
            [
                layers.Dense(intermediate_dim, activation="relu"),
                layers.Dense(hidden_dim),
            ]
        )
        self.attention_norm = layers.LayerNormalization()
        self.projection_norm = layers.LayerNormalization()

    def call(self, inputs: Any, source_mask: Any) -> Any:
        attended = self.attention(inputs, inputs, attention_mask=source_mask)
        x = self.attention_norm(inputs + attended)
        return self.projection_norm(x + self.projection(x))


class TransformerDecoder(layers.Layer):
    def __init__(self, hidden_dim: int, intermediate_dim: int, num_heads: int):
        super().__init__()
        self.attention = layers.MultiHeadAttention(num_heads, hidden_dim // num_heads)
        self.source_attention = layers.MultiHeadAttention(
            num_heads, hidden_dim // num_heads
        )
        self.projection = keras.Sequential(
            [
                layers.Dense(intermediate_dim, activation="relu"),
                layers.Dense(hidden_dim),
            ]
        )
        self.attention_norm = layers.LayerNormalization()
        self.source_norm = layers.LayerNormalization()
        self.projection_norm = layers.LayerNormalization()

    def call(self, inputs: Any, encoded: Any, source_mask: Any) -> Any:
        attended = self.attention(inputs, inputs, use_causal_mask=True)
        x = self.attention_norm(inputs + attended)
        attended = self.source_attention(x, encoded, attention_mask=source_mask)
        x = self.source_norm(x + attended)
        return self.projection_norm(x + self.projection(x))


def strip(text: Any) -> Any:
    return tf.strings.regex_replace(text, f"[{STRIPPED}]", "")


def train(task: Task) -> Trained:
    vectorize_source = layers.TextVectorization(
        task.vocabulary_size, output_sequence_length=LENGTH
    )
    vectorize_target = layers.TextVectorization(
        task.vocabulary_size, output_sequence_length=LENGTH + 1, standardize=strip
    )

    def read_pairs(files: tuple[str, str]) -> tuple[list[str], list[str]]:
        sources, targets = ([line.lower() for line in read(file)] for file in files)
        return sources, [f"[start] {target} [end]" for target in targets]

    sources, targets = read_pairs(task.train)
    vectorize_source.adapt(sources)
    vectorize_target.adapt(targets)

    def format_batch(sources: Any, targets: Any) -> Any:
        token_ids = vectorize_target(targets)
        return (vectorize_source(sources), token_ids[:, :-1]), token_ids[:, 1:]

    def make_dataset(pairs: tuple[list[str], list[str]]) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(pairs).batch(BATCH_SIZE)
        return dataset.map(format_batch).cache().shuffle(2048).prefetch(16)

    train, valid = (
        make_dataset((sources, targets)),
        make_dataset(read_pairs(task.valid)),
    )

    num_layers, hidden_dim = SIZE["num_layers"], SIZE["hidden_dim"]
    sizes = hidden_dim, SIZE["intermediate_dim"], SIZE["num_heads"]
    encoder_inputs = keras.Input((None,), dtype="int64")
    decoder_inputs = keras.Input((None,), dtype="int64")
    encoded = PositionalEmbedding(LENGTH, task.vocabulary_size, hidden_dim)(
        encoder_inputs
    )
    source_mask = ops.not_equal(encoder_inputs, 0)[:, None]
    for _ in range(num_layers):
        encoded = TransformerEncoder(*sizes)(encoded, source_mask)
    x = PositionalEmbedding(LENGTH, task.vocabulary_size, hidden_dim)(decoder_inputs)
    for _ in range(num_layers):
        x = TransformerDecoder(*sizes)(x, encoded, source_mask)
    x = layers.Dropout(0.5)(x)
    outputs = layers.Dense(task.vocabulary_size, activation="softmax")(x)
    model = keras.Model([encoder_inputs, decoder_inputs], outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=0)
    model.compile("rmsprop", loss, metrics=["accuracy"])
    model.fit(
        train,
        validation_data=valid,
        epochs=task.epochs,
        callbacks=task.callbacks,
        verbose=0,
    )
    words = vectorize_target.get_vocabulary()

    def translate_sentence(source: str) -> str:
        encoder_token_ids = vectorize_source([source.lower()])
        text = "[start]"
        for index in range(LENGTH):
            decoder_token_ids = vectorize_target([text])[:, :-1]
            predictions = model([encoder_token_ids, decoder_token_ids])
            word = words[np.argmax(predictions[0, index])]
            if word == "[end]":
                break
            text += " " + word
        return text.removeprefix("[start]").strip()

    def translate(sources: list[str]) -> list[str]:
        return [translate_sentence(source) for source in sources]

    return Trained(model, train, translate)
