r"""Measures the memory of a loss over the vocabulary, of rematerialisation and search.

The loss: the peak memory of the process while it computes the gradient with respect to
the logits, as in `fit`, minus the memory in use before, which includes the logits (on
TensorFlow without XLA, the default on a CPU). The unit is the size of the logits. The
gradient has that size, so 1 is the minimum.

Rematerialisation: the peak memory in MB of an epoch of `fit`, minus the memory in use
before, and the seconds of the epoch, without and with `rematerialize=True`.

Search: the memory in MB of a process that has loaded the library of the backend, made a
model, translated one sentence, and then batches of 64 with 4 beams. The second batch
compiles nothing.

Each cell of the first two tables, and each row of the third, comes from a separate
process, which has run the same code once before. The script needs Linux.

    python benchmarks/memory.py
"""

import argparse
from collections.abc import Callable
from typing import Any

from measuring import (
    BACKENDS,
    environment,
    in_a_process,
    peak_mb,
    print_header,
    print_row,
    reset_peak,
    resident_mb,
    seconds,
)

LOSSES = ("LabelSmoothedCrossEntropy", "Keras's CategoricalCrossentropy")
BATCHES = 4
STEPS = ("library", "model", "one sentence", "64 sentences", "64, again")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=8192, help="rows of logits")
    parser.add_argument("--vocabulary-size", type=int, default=16000, metavar="N")
    parser.add_argument("--preset", default="transformer_small")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sentence")
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    options = parser.parse_args()
    backends = options.backends
    print(environment())

    def cells(function: Callable[..., str], *arguments: Any) -> list[str]:
        return [in_a_process(function, *arguments, backend=each) for each in backends]

    print()
    print_header("loss: copies of the logits", *backends)
    for loss in LOSSES:
        sizes = options.tokens, options.vocabulary_size
        print_row(loss, *cells(loss_copies, loss, *sizes))
    print()
    print_header("rematerialize: MB, seconds", *backends)
    for rematerialize in (False, True):
        sizes = options.preset, options.batch_size, options.length
        print_row(rematerialize, *cells(training_memory, rematerialize, *sizes))
    print()
    print_header("search: MB after each step", *STEPS)
    for backend in backends:
        memory = in_a_process(search_memory, options.preset, backend=backend)
        print_row(backend, *(f"{mb:,.0f}" for mb in memory))


def loss_copies(loss: str, tokens: int, vocabulary_size: int) -> str:
    """Returns the memory of the gradient, in sizes of the logits."""
    import keras
    import numpy as np

    rng = np.random.default_rng(1)
    compute = compiled_gradient(loss_function(loss, vocabulary_size))
    small = keras.ops.ones((1, 2), "int32"), keras.ops.ones((1, 2, vocabulary_size))
    compute(*small)  # Loads all libraries.
    start = resident_mb()
    targets = rng.integers(1, vocabulary_size, size=(1, tokens)).astype("int32")
    logits = rng.standard_normal((1, tokens, vocabulary_size), "float32")
    size = logits.nbytes / 1024**2
    targets, logits = map(keras.ops.convert_to_tensor, (targets, logits))
    for _ in range(2):
        reset_peak()
        result = compute(targets, logits)
        keras.ops.convert_to_numpy(result[0, -1, :1])  # Waits for the result.
        del result
    return f"{(peak_mb() - start) / size - 1:.2f}"


def loss_function(loss: str, vocabulary_size: int) -> Callable[[Any, Any], Any]:
    import keras

    from keras_transformer import LabelSmoothedCrossEntropy

    if loss == LOSSES[0]:
        return LabelSmoothedCrossEntropy(label_smoothing=0.1)
    theirs = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    return lambda y, x: theirs(keras.ops.one_hot(y, vocabulary_size), x)


def compiled_gradient(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns the gradient of a loss by the logits, compiled as in a training step."""
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        @tf.function(autograph=False)
        def gradient(targets: Any, logits: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(logits)
                value = loss(targets, logits)
            return tape.gradient(value, logits)

        return gradient
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(jax.grad(loss, argnums=1))

    import torch

    def gradient_of(targets: Any, logits: Any) -> Any:
        logits = logits.detach().requires_grad_()
        return torch.autograd.grad(loss(targets, logits), logits)[0]

    return gradient_of


def training_memory(
    rematerialize: bool, preset: str, batch_size: int, length: int
) -> str:
    """Returns the peak MB of an epoch above the memory before, and its seconds."""
    import keras
    import numpy as np

    from keras_transformer import LabelSmoothedCrossEntropy, Seq2Seq

    keras.utils.set_random_seed(1)
    model = Seq2Seq.from_preset(
        preset, vocabulary_size=1000, rematerialize=rematerialize
    )
    model.compile(optimizer="adam", loss=LabelSmoothedCrossEntropy())

    def fit(rows: int, length: int) -> None:
        ids = np.random.default_rng(1).integers(4, 1000, size=(rows * BATCHES, length))
        inputs = {"encoder_token_ids": ids, "decoder_token_ids": ids}
        model.fit(inputs, ids, batch_size=rows, verbose=0)

    fit(1, 2)  # Loads all libraries and builds the optimizer.
    start = resident_mb()
    fit(batch_size, length)
    reset_peak()
    taken = seconds(lambda: fit(batch_size, length))
    return f"{peak_mb() - start:,.0f}, {taken:.1f}"


def search_memory(preset: str) -> list[float]:
    """Returns the memory in MB after each of `STEPS`."""
    import keras
    import numpy as np

    from keras_transformer import BeamSearch, Seq2Seq

    keras.utils.set_random_seed(1)
    keras.ops.zeros(1)  # Initialises the library of the backend.
    memory = [resident_mb()]
    model = Seq2Seq.from_preset(preset, vocabulary_size=8000)
    memory.append(resident_mb())
    rows = np.random.default_rng(1).integers(4, 8000, size=(64, 24))
    for number in (1, 64, 64):
        model.generate(rows[:number], BeamSearch(4), max_length=24, min_length=24)
        memory.append(resident_mb())
    return memory


if __name__ == "__main__":
    main()
