"""The tutorial of TensorFlow: layers that the program defines, and a `tf.Module`."""

import pathlib
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow_text.tools.wordpiece_vocab import bert_vocab_from_dataset
from tutorial_sides.task import SIZE, Task, Trained, read

LENGTH = 128
BATCH_SIZE = 64
DROPOUT = 0.1
RESERVED = ["[PAD]", "[UNK]", "[START]", "[END]"]


class Tokenizer(tf.Module):
    def __init__(self, lines: list[str], vocabulary_size: int):
        super().__init__()
        vocabulary = bert_vocab_from_dataset.bert_vocab_from_dataset(
            tf.data.Dataset.from_tensor_slices(lines).batch(1000).prefetch(2),
            vocab_size=vocabulary_size,
            reserved_tokens=RESERVED,
            bert_tokenizer_params={"lower_case": False},
        )
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "vocabulary.txt"
            path.write_text("\n".join(vocabulary) + "\n", "utf-8")
            table = tf.lookup.StaticHashTable(
                tf.lookup.TextFileInitializer(
                    str(path),
                    tf.string,
                    tf.lookup.TextFileIndex.WHOLE_LINE,
                    tf.int64,
                    tf.lookup.TextFileIndex.LINE_NUMBER,
                ),
                default_value=RESERVED.index("[UNK]"),
            )
        self.tokenizer = tf_text.BertTokenizer(table, lower_case=False)
        self.vocabulary = tf.constant(vocabulary)
        self.start = tf.constant(RESERVED.index("[START]"), tf.int64)
        self.end = tf.constant(RESERVED.index("[END]"), tf.int64)

    def tokenize(self, texts: Any) -> tf.RaggedTensor:
        token_ids = self.tokenizer.tokenize(texts).merge_dims(-2, -1)
        edge = tf.ones([token_ids.nrows(), 1], tf.int64)
        return tf.concat([edge * self.start, token_ids, edge * self.end], axis=1)

    def detokenize(self, token_ids: Any) -> Any:
        token_ids = tf.boolean_mask(token_ids, token_ids >= len(RESERVED))
        pieces = tf.strings.reduce_join(
            tf.gather(self.vocabulary, token_ids), separator=" "
        )
        return tf.strings.regex_replace(pieces, " ##", "")


def positional_encoding(length: int, hidden_dim: int) -> tf.Tensor:
    depths = np.arange(hidden_dim / 2)[np.newaxis] / (hidden_dim / 2)
    angles = np.arange(length)[:, np.newaxis] / 10_000**depths
    return tf.cast(
        np.concatenate([np.sin(angles), np.cos(angles)], axis=-1), tf.float32
    )


class PositionalEmbedding(keras.layers.Layer):
    def __init__(self, vocabulary_size: int):
        super().__init__()
        self.hidden_dim = SIZE["hidden_dim"]
        self.embedding = keras.layers.Embedding(vocabulary_size, self.hidden_dim)
        self.encoding = positional_encoding(2048, self.hidden_dim)

    def call(self, inputs: Any) -> Any:
        scale = tf.math.sqrt(tf.cast(self.hidden_dim, tf.float32))
        length = tf.shape(inputs)[1]
        return self.embedding(inputs) * scale + self.encoding[tf.newaxis, :length]


class Attention(keras.layers.Layer):
    def __init__(self, causal: bool = False):
        super().__init__()
        self.causal = causal
        num_heads = SIZE["num_heads"]
        self.attention = keras.layers.MultiHeadAttention(
            num_heads, SIZE["hidden_dim"] // num_heads, dropout=DROPOUT
        )
        self.add = keras.layers.Add()
        self.norm = keras.layers.LayerNormalization()

    def call(self, x: Any, context: Any, attention_mask: Any = None) -> Any:
        attended = self.attention(
            x, context, attention_mask=attention_mask, use_causal_mask=self.causal
        )
        return self.norm(self.add([x, attended]))


class FeedForward(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.network = keras.Sequential(
            [
                keras.layers.Dense(SIZE["intermediate_dim"], activation="relu"),
                keras.layers.Dense(SIZE["hidden_dim"]),
                keras.layers.Dropout(DROPOUT),
            ]
        )
        self.add = keras.layers.Add()
        self.norm = keras.layers.LayerNormalization()

    def call(self, x: Any) -> Any:
        return self.norm(self.add([x, self.network(x)]))


class Encoder(keras.layers.Layer):
    def __init__(self, vocabulary_size: int):
        super().__init__()
        self.embedding = PositionalEmbedding(vocabulary_size)
        self.dropout = keras.layers.Dropout(DROPOUT)
        numbers = range(SIZE["num_layers"])
        self.attention = [Attention() for _ in numbers]
        self.feed_forward = [FeedForward() for _ in numbers]

    def call(self, x: Any, padding_mask: Any) -> Any:
        x = self.dropout(self.embedding(x))
        blocks = zip(self.attention, self.feed_forward, strict=True)
        for attention, feed_forward in blocks:
            x = feed_forward(attention(x, x, padding_mask))
        return x


class Decoder(keras.layers.Layer):
    def __init__(self, vocabulary_size: int):
        super().__init__()
        self.embedding = PositionalEmbedding(vocabulary_size)
        self.dropout = keras.layers.Dropout(DROPOUT)
        numbers = range(SIZE["num_layers"])
        self.attention = [Attention(causal=True) for _ in numbers]
        self.cross_attention = [Attention() for _ in numbers]
        self.feed_forward = [FeedForward() for _ in numbers]

    def call(self, x: Any, context: Any, padding_mask: Any) -> Any:
        x = self.dropout(self.embedding(x))
        blocks = zip(
            self.attention, self.cross_attention, self.feed_forward, strict=True
        )
        for attention, cross_attention, feed_forward in blocks:
            x = cross_attention(attention(x, x), context, padding_mask)
            x = feed_forward(x)
        return x


class Transformer(keras.Model):
    def __init__(self, source_vocabulary_size: int, target_vocabulary_size: int):
        super().__init__()
        self.encoder = Encoder(source_vocabulary_size)
        self.decoder = Decoder(target_vocabulary_size)
        self.output_layer = keras.layers.Dense(target_vocabulary_size)

    def call(self, inputs: Any) -> Any:
        context, x = inputs
        padding_mask = (context != 0)[:, tf.newaxis]
        context = self.encoder(context, padding_mask)
        return self.output_layer(self.decoder(x, context, padding_mask))


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, hidden_dim: int, warmup_steps: int = 4000):
        self.hidden_dim, self.warmup_steps = hidden_dim, warmup_steps

    def __call__(self, step: Any) -> Any:
        step = tf.cast(step, tf.float32)
        rising = step * self.warmup_steps**-1.5
        return self.hidden_dim**-0.5 * tf.minimum(tf.math.rsqrt(step), rising)


def masked_loss(labels: Any, logits: Any) -> Any:
    losses = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction="none"
    )(labels, logits)
    mask = tf.cast(labels != 0, losses.dtype)
    return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)


def masked_accuracy(labels: Any, logits: Any) -> Any:
    labels = tf.cast(labels, tf.int64)
    mask = labels != 0
    correct = (labels == tf.argmax(logits, axis=2)) & mask
    return tf.reduce_sum(tf.cast(correct, tf.float32)) / tf.reduce_sum(
        tf.cast(mask, tf.float32)
    )


class Translator(tf.Module):
    def __init__(self, source: Tokenizer, target: Tokenizer, model: Transformer):
        super().__init__()
        self.source, self.target, self.model = source, target, model

    @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
    def __call__(self, sentence: Any) -> Any:
        encoder_token_ids = self.source.tokenize(sentence[tf.newaxis]).to_tensor()
        output = tf.TensorArray(tf.int64, size=0, dynamic_size=True)
        output = output.write(0, self.target.start)
        for index in tf.range(LENGTH):
            decoder_token_ids = output.stack()[tf.newaxis]
            logits = self.model([encoder_token_ids, decoder_token_ids], training=False)
            token_id = tf.argmax(logits[0, -1])
            output = output.write(index + 1, token_id)
            if token_id == self.target.end:
                break
        return self.target.detokenize(output.stack())


def train(task: Task) -> Trained:
    def read_pairs(files: tuple[str, str]) -> tuple[list[str], ...]:
        return tuple([line.lower() for line in read(file)] for file in files)

    pairs = read_pairs(task.train)
    source, target = (Tokenizer(lines, task.vocabulary_size) for lines in pairs)

    def prepare_batch(sources: Any, targets: Any) -> Any:
        encoder_token_ids = source.tokenize(sources)[:, :LENGTH].to_tensor()
        token_ids = target.tokenize(targets)[:, : LENGTH + 1]
        inputs, labels = token_ids[:, :-1].to_tensor(), token_ids[:, 1:].to_tensor()
        return (encoder_token_ids, inputs), labels

    def make_batches(pairs: tuple[list[str], ...]) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(pairs).shuffle(20_000)
        dataset = dataset.batch(BATCH_SIZE).map(prepare_batch, tf.data.AUTOTUNE)
        return dataset.prefetch(tf.data.AUTOTUNE)

    train, valid = make_batches(pairs), make_batches(read_pairs(task.valid))
    model = Transformer(len(source.vocabulary), len(target.vocabulary))
    optimizer = keras.optimizers.Adam(
        Schedule(SIZE["hidden_dim"]), beta_1=0.9, beta_2=0.98, epsilon=1e-9
    )
    model.compile(
        optimizer, loss=masked_loss, metrics=[masked_accuracy], jit_compile=False
    )
    model.fit(
        train,
        validation_data=valid,
        epochs=task.epochs,
        callbacks=task.callbacks,
        verbose=0,
    )
    translator = Translator(source, target, model)

    def translate(sources: list[str]) -> list[str]:
        return [
            translator(tf.constant(text.lower())).numpy().decode() for text in sources
        ]

    return Trained(model, train, translate)
