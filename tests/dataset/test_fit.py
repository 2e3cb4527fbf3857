"""The dataset in `fit`, with every backend."""

import keras
import tensorflow as tf
from reversal import SOURCE, TARGET, epoch_batches, make_dataset, make_pairs


def test_fit():
    """A functional model: sample weights exclude padding, the epoch has a length."""
    data = make_dataset(pairs=make_pairs(31), tokens_per_batch=64, sample_weights=True)
    source = keras.Input([None], dtype="int32", name="encoder_token_ids")
    target = keras.Input([None], dtype="int32", name="decoder_token_ids")
    summary = keras.layers.GlobalAveragePooling1D(keepdims=True)(
        keras.layers.Embedding(SOURCE.vocabulary_size, 5)(source)
    )
    hidden = keras.layers.Embedding(TARGET.vocabulary_size, 5)(target) + summary
    outputs = keras.layers.Dense(TARGET.vocabulary_size)(hidden)
    model = keras.Model([source, target], outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.1), loss)
    history = model.fit(data.dataset, epochs=3, shuffle=False, verbose=0).history[
        "loss"
    ]
    assert history[-1] < 0.9 * history[0]
    assert int(model.optimizer.iterations) == 3 * data.batches_per_epoch


def test_dataset_after_clear_session():
    data = make_dataset(pairs=make_pairs(13), shuffle=False)
    expected = epoch_batches(data)
    tf.random.set_seed(3)
    keras.utils.clear_session()
    assert epoch_batches(data) == expected
