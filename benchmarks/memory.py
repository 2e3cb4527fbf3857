r"""Measures the memory of a loss over the vocabulary, of rematerialisation and search.

The loss: the peak memory of the process while it computes the gradient with respect to
the logits, as in `fit`, minus the memory in use before, which includes the logits. On
TensorFlow both without XLA, the default on a CPU, and with XLA. The unit is the size of
the logits. The gradient has that size, so 1 is the minimum.

Rematerialisation: the peak memory in MB of an epoch of `fit`, minus the memory in use
before, and the seconds of the epoch, without and with `rematerialize=True`.

Each of these figures comes from a separate process, which has run the same code once
before.

Search: the resident memory in MB of a process that has loaded the library of the
backend, made a model, translated one sentence, and then batches of 64 with 4 beams. The
second batch compiles nothing.

The script needs Linux.

    python benchmarks/memory.py
"""

import argparse
import functools
import multiprocessing
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

BACKENDS = ("tensorflow", "jax", "torch")
LOSSES = ("LabelSmoothedCrossEntropy", "Keras's CategoricalCrossentropy")
BATCHES = 4
STEPS = ("library", "model", "one sentence", "64 sentences", "64, again")
XLA = " XLA"  # Suffix of a backend that is measured with XLA.


def main() -> None:
    """Prints both tables."""
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
    sides = [*options.backends]
    if "tensorflow" in sides:
        sides.insert(sides.index("tensorflow") + 1, f"tensorflow{XLA}")
    print(f"{'loss: copies of the logits':36}" + titles(sides))
    for loss in LOSSES:
        sizes = loss, options.tokens, options.vocabulary_size
        show(loss, sides, functools.partial(loss_copies, *sizes))
    print(f"\n{'rematerialize: MB, seconds':36}" + titles(options.backends))
    for rematerialize in (False, True):
        sizes = rematerialize, options.preset, options.batch_size, options.length
        measure = functools.partial(training_memory, *sizes)
        show(str(rematerialize), options.backends, measure)
    print(f"\n{'search: MB after each step':36}" + titles(STEPS))
    for backend in options.backends:
        show_search(backend, options.preset)


def titles(sides: Sequence[str]) -> str:
    return "".join(f"{side:>16}" for side in sides)


def show(title: str, sides: list[str], measure: Callable[[], str]) -> None:
    """Prints a row; each cell comes from a separate process."""
    print(f"{title:36}", end="", flush=True)
    for side in sides:
        os.environ["KERAS_BACKEND"] = side.removesuffix(XLA)
        os.environ["WITH_XLA"] = str(side.endswith(XLA))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(f"{pool.apply(measure):>16}", end="", flush=True)
    print()


def show_search(backend: str, preset: str) -> None:
    """Prints the row of a backend, which comes from one process."""
    os.environ["KERAS_BACKEND"] = backend
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        cells = pool.apply(search_memory, (preset,))
    print(f"{backend:36}" + "".join(f"{cell / 1e6:16,.0f}" for cell in cells))


def search_memory(preset: str) -> list[int]:
    """Returns the resident memory in bytes after each of `STEPS`."""
    import keras
    import numpy as np

    from keras_transformer import BeamSearch, Seq2Seq

    keras.utils.set_random_seed(1)
    keras.ops.zeros(1)  # Initialises the library of the backend.
    memory = [resident("VmRSS")]
    model = Seq2Seq.from_preset(preset, vocabulary_size=8000)
    memory.append(resident("VmRSS"))
    rows = np.random.default_rng(1).integers(4, 8000, size=(64, 24))
    for number in (1, 64, 64):
        model.generate(rows[:number], BeamSearch(4), max_length=24, min_length=24)
        memory.append(resident("VmRSS"))
    return memory


def loss_copies(loss: str, tokens: int, vocabulary_size: int) -> str:
    """Returns the memory of the gradient, in sizes of the logits."""
    import keras
    import numpy as np

    rng = np.random.default_rng(1)
    compute = compiled_gradient(loss_function(loss, vocabulary_size))
    small = keras.ops.ones((1, 2), "int32"), keras.ops.ones((1, 2, vocabulary_size))
    compute(*small)  # Loads all libraries.
    start = resident("VmRSS")
    targets = rng.integers(1, vocabulary_size, size=(1, tokens)).astype("int32")
    logits = rng.standard_normal((1, tokens, vocabulary_size), "float32")
    size = logits.nbytes
    targets, logits = map(keras.ops.convert_to_tensor, (targets, logits))
    for _ in range(2):
        forget_peak()
        result = compute(targets, logits)
        keras.ops.convert_to_numpy(result[0, -1, :1])  # Waits for the result.
        del result
    return f"{(resident('VmHWM') - start) / size - 1:.2f}"


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

        @tf.function(jit_compile=os.environ["WITH_XLA"] == "True", autograph=False)
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

    def fit(shape: tuple[int, int]) -> float:
        token_ids = np.random.default_rng(1).integers(4, 1000, size=shape)
        inputs = {"encoder_token_ids": token_ids, "decoder_token_ids": token_ids}
        begin = time.perf_counter()
        model.fit(inputs, token_ids, batch_size=shape[0] // BATCHES, verbose=0)
        return time.perf_counter() - begin

    fit((BATCHES, 2))  # Loads all libraries and builds the optimizer.
    start = resident("VmRSS")
    for _ in range(2):
        forget_peak()
        seconds = fit((BATCHES * batch_size, length))
    return f"{(resident('VmHWM') - start) / 1e6:,.0f}, {seconds:.1f}"


def forget_peak() -> None:
    """Resets the peak memory of this process to its current memory."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def resident(name: str) -> int:
    """Returns the memory of this process in bytes, now (`VmRSS`) or peak (`VmHWM`)."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split(f"{name}:")[1].split()[0]) * 1024


if __name__ == "__main__":
    main()
