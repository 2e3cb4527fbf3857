"""Times of the parts of a training step."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from training_sides.batches import Batch, first_of_each_shape, read_batches
from training_sides.clocks import seconds
from training_sides.keras_fit import as_dataset, fit
from training_sides.ours import compiled_model
from training_sides.setting import Setting

# Each part includes the previous ones.
PARTS = ("forward", "loss", "backward", "optimizer", "metrics and fit")

Step = Callable[[dict[str, Any], Any], Any]


def profile(setting: Setting, path: str, passes: int) -> dict[str, float]:
    """Returns the mean milliseconds of each part of a compiled step."""
    batches = read_batches(path)
    model = compiled_model(setting)
    model.optimizer.build(model.trainable_variables)
    backends = {"jax": jax_steps, "tensorflow": tensorflow_steps, "torch": torch_steps}
    steps = [*backends[keras.backend.backend()](model)]
    trains = [lambda batches, step=step: run(step, batches) for step in steps]
    trains.append(lambda batches: fit(model, as_dataset(batches), lambda: None))
    for train in trains:
        train(first_of_each_shape(batches))
    taken = [
        [seconds(lambda train=train: train(batches)) for train in trains]
        for _ in range(passes)
    ]
    totals = 1000 * np.median(taken, axis=0) / len(batches)
    return dict(zip(PARTS, np.diff(totals, prepend=0).tolist(), strict=True))


def run(step: Step, batches: list[Batch]) -> None:
    for batch in batches:
        inputs = dict(vars(batch))
        targets = keras.ops.convert_to_tensor(inputs.pop("target_token_ids"))
        step(keras.tree.map_structure(keras.ops.convert_to_tensor, inputs), targets)


def torch_steps(model: keras.Model) -> list[Step]:
    import torch

    weights = model.trainable_variables

    def forward(inputs, targets):
        return model(inputs, training=True)

    def loss(inputs, targets):
        return model.compute_loss(inputs, targets, forward(inputs, targets))

    def backward(inputs, targets):
        model.zero_grad()
        loss(inputs, targets).backward()
        return [weight.value.grad for weight in weights]

    def optimizer(inputs, targets):
        gradients = backward(inputs, targets)
        with torch.no_grad():
            model.optimizer.apply(gradients, weights)

    return [forward, loss, backward, optimizer]


def tensorflow_steps(model: keras.Model) -> list[Step]:
    import tensorflow as tf

    weights = model.trainable_variables

    def forward(inputs, targets):
        return model(inputs, training=True)

    def loss(inputs, targets):
        return model.compute_loss(inputs, targets, forward(inputs, targets))

    def backward(inputs, targets):
        with tf.GradientTape() as tape:
            value = loss(inputs, targets)
        return tape.gradient(value, [weight.value for weight in weights])

    def optimizer(inputs, targets):
        model.optimizer.apply(backward(inputs, targets), weights)

    ids = tf.TensorSpec((None, None), tf.int32)
    inputs = {"encoder_token_ids": ids, "decoder_token_ids": ids}
    return [
        tf.function(step, [inputs, ids], jit_compile=model.jit_compile)
        for step in (forward, loss, backward, optimizer)
    ]


def jax_steps(model: keras.Model) -> list[Step]:
    import jax

    def values(variables):
        # Copies, because `fit` donates the buffers of the variables.
        return [jax.numpy.copy(variable.value) for variable in variables]

    weights = values(model.trainable_variables)
    others = values(model.non_trainable_variables)
    moments = values(model.optimizer.variables)

    def forward(weights, inputs, targets):
        return model.stateless_call(weights, others, inputs, training=True)[0]

    def loss(weights, inputs, targets):
        return model.compute_loss(inputs, targets, forward(weights, inputs, targets))

    backward = jax.grad(loss)

    def optimizer(weights, inputs, targets):
        gradients = backward(weights, inputs, targets)
        return model.optimizer.stateless_apply(moments, gradients, weights)

    def compiled(part):
        function = jax.jit(part)
        return lambda *batch: jax.block_until_ready(function(weights, *batch))

    return [compiled(part) for part in (forward, loss, backward, optimizer)]
