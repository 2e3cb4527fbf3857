"""The tutorial of KerasHub: its WordPiece tokenizer, layers and sampler."""

from typing import Any

import keras
import keras_nlp
import tensorflow as tf
from keras import ops
from tutorial_sides.task import SIZE, Task, Trained, read

LENGTH = 40
BATCH_SIZE = 64
RESERVED = ["[PAD]", "[UNK]", "[START]", "[END]"]


def train_tokenizer(lines: list[str], vocabulary_size: int) -> Any:
    vocabulary = keras_nlp.tokenizers.compute_word_piece_vocabulary(
        tf.data.Dataset.from_tensor_slices(lines).batch(1000).prefetch(2),
        vocabulary_size=vocabulary_size,
        reserved_tokens=RESERVED,
    )
    return keras_nlp.tokenizers.WordPieceTokenizer(vocabulary, lowercase=False)


def train(task: Task) -> Trained:
    def read_pairs(files: tuple[str, str]) -> tuple[list[str], ...]:
        return tuple([line.lower() for line in read(file)] for file in files)

    pairs = read_pairs(task.train)
    source_tokenizer, target_tokenizer = (
        train_tokenizer(lines, task.vocabulary_size) for lines in pairs
    )
    pad, start, end = (
        target_tokenizer.token_to_id(token) for token in ("[PAD]", "[START]", "[END]")
    )
    pack_source = keras_nlp.layers.StartEndPacker(LENGTH, pad_value=pad)
    pack_target = keras_nlp.layers.StartEndPacker(
        LENGTH + 1, start_value=start, end_value=end, pad_value=pad
    )

    def preprocess(sources: Any, targets: Any) -> Any:
        encoder_token_ids = pack_source(source_tokenizer(sources))
        token_ids = pack_target(target_tokenizer(targets))
        return (encoder_token_ids, token_ids[:, :-1]), token_ids[:, 1:]

    def make_dataset(pairs: tuple[list[str], ...]) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(pairs).batch(BATCH_SIZE)
        dataset = dataset.map(preprocess, num_parallel_calls=tf.data.AUTOTUNE)
        return dataset.cache().shuffle(2048).prefetch(16)

    train, valid = make_dataset(pairs), make_dataset(read_pairs(task.valid))

    def embed(token_ids: Any) -> Any:
        return keras_nlp.layers.TokenAndPositionEmbedding(
            task.vocabulary_size, LENGTH, SIZE["hidden_dim"], mask_zero=True
        )(token_ids)

    sizes = SIZE["intermediate_dim"], SIZE["num_heads"]
    encoder_inputs = keras.Input((None,), dtype="int32")
    decoder_inputs = keras.Input((None,), dtype="int32")
    encoded, x = embed(encoder_inputs), embed(decoder_inputs)
    for _ in range(SIZE["num_layers"]):
        encoded = keras_nlp.layers.TransformerEncoder(*sizes)(encoded)
    for _ in range(SIZE["num_layers"]):
        x = keras_nlp.layers.TransformerDecoder(*sizes)(x, encoded)
    x = keras.layers.Dropout(0.5)(x)
    outputs = keras.layers.Dense(task.vocabulary_size, activation="softmax")(x)
    model = keras.Model([encoder_inputs, decoder_inputs], outputs)
    model.compile(
        "rmsprop", loss="sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    model.fit(
        train,
        validation_data=valid,
        epochs=task.epochs,
        callbacks=task.callbacks,
        verbose=0,
    )
    sampler = keras_nlp.samplers.GreedySampler()

    def translate_sentence(source: str) -> str:
        encoder_token_ids = pack_source(source_tokenizer([source.lower()]))

        def next_token(prompt: Any, cache: Any, index: Any) -> tuple[Any, Any, Any]:
            return model([encoder_token_ids, prompt])[:, index - 1, :], None, cache

        prompt = ops.concatenate(
            [
                ops.full((1, 1), start, "int32"),
                ops.full((1, LENGTH - 1), pad, "int32"),
            ],
            axis=1,
        )
        token_ids = sampler(next_token, prompt, stop_token_ids=[end], index=1)
        text = target_tokenizer.detokenize(token_ids)[0]
        for token in RESERVED:
            text = text.replace(token, "")
        return text.strip()

    def translate(sources: list[str]) -> list[str]:
        return [translate_sentence(source) for source in sources]

    return Trained(model, train, translate)
