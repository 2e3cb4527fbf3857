"""Training with `fit`."""

from collections.abc import Callable, Iterable
from typing import Any

import keras

import keras_transformer as kt
from training_sides.batches import Batch

try:  # Its memory is not that of training, so it is imported before the measurement.
    import tensorflow as tf

    from keras_transformer.backend.freed_memory import keep_freed_memory
except ImportError:
    tf = None


def adam() -> keras.optimizers.Optimizer:
    schedule = kt.WarmupInverseSquareRoot(peak_learning_rate=1e-3, warmup_steps=2000)
    return keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9)


def fit(model: keras.Model, dataset: Iterable[Any], done: Callable[[], None]) -> None:
    if hasattr(dataset, "prefetch"):
        dataset = dataset.prefetch(2)
    model.fit(dataset, shuffle=False, callbacks=[StepDone(done)])


class StepDone(keras.callbacks.Callback):
    """Calls a function after each step, when the progress bar is updated."""

    async_safe = True  # JAX does not wait for the result of a step.

    def __init__(self, done: Callable[[], None]):
        super().__init__()
        self.done = done

    def on_train_batch_end(self, batch, logs=None):
        self.done()


def as_dataset(batches: list[Batch]) -> Any:
    """Returns a dataset with the structure of `parallel_dataset`.

    It is a generator where TensorFlow is not installed.
    """

    def elements():
        for batch in batches:
            ids = dict(vars(batch))
            yield ids, ids.pop("target_token_ids")

    if tf is None:
        return elements()

    def tf_elements():
        keep_freed_memory()
        return elements()

    ids = tf.TensorSpec((None, None), tf.int32)
    inputs = {"encoder_token_ids": ids, "decoder_token_ids": ids}
    dataset = tf.data.Dataset.from_generator(
        tf_elements, output_signature=(inputs, ids)
    )
    return dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))
