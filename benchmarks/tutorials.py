r"""Compares the tutorials on translation of this library, KerasHub and TensorFlow.

All sides learn the same task with the same sizes of model and vocabulary and for the
same number of epochs: tokenizer, batches, optimizer, dropout and search are those of
each tutorial. `ours` is `examples/tutorials/translation.py`; `keras_hub` is the
tutorial of Keras with the tokenizer, the layers and the sampler of KerasHub;
`tensorflow_layers` is the tutorial of TensorFlow, which defines its layers.

The lines are those of the module of the side in `tutorial_sides/` without empty lines,
comments and docstrings. The speed of training is that of the steps of all epochs except
the first, without validation. The minutes of training include the vocabulary,
compilation, validation and checkpoints. The seconds of translation include compilation.
Each side runs in a separate process. On one core (`taskset --cpu-list 0 python …`)
seconds are processor time, which other processes affect little.

    python benchmarks/tutorials.py --train train.en train.de --valid val.en val.de \
        --test test.en test.de
"""

import argparse
import ast
import importlib
import io
import pathlib
import tempfile
import tokenize
from typing import Any

from measuring import clock, environment, in_a_process, print_header, print_row

SIDES = ("ours", "tensorflow_layers", "keras_hub")
COLUMNS = (
    *("tutorial", "lines of code", "parameters", "training, min", "pairs/s"),
    *("translation, s", "BLEU"),
)
NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def main() -> None:
    """Prints a row for each side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("train", "valid", "test"):
        parser.add_argument(
            f"--{name}",
            nargs=2,
            metavar="FILE",
            required=True,
            help="source and target text",
        )
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument(
        "--epochs", type=int, default=20, help="those of the tutorial of TensorFlow"
    )
    parser.add_argument("--vocabulary-size", type=int, default=8000, metavar="N")
    options = parser.parse_args()
    print(f"{environment()}\n")
    print_header(*COLUMNS)
    for side in options.sides:
        print_row(side, *in_a_process(run, side, options, backend="tensorflow"))


def run(name: str, options: argparse.Namespace) -> list[str]:
    """Trains and translates, and returns the cells of the side."""
    import keras
    import numpy as np
    from tutorial_sides.task import Task, read

    from keras_transformer import evaluation

    class Timer(keras.callbacks.Callback):
        """Seconds of the training steps of each epoch."""

        epochs: list[float] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.start = clock()

        def on_test_begin(self, logs: Any = None) -> None:
            self.epochs.append(clock() - self.start)

    keras.utils.set_random_seed(1)
    side = importlib.import_module(f"tutorial_sides.{name}")
    timer, start = Timer(), clock()
    sizes = options.vocabulary_size, options.epochs
    with tempfile.TemporaryDirectory() as folder:
        task = Task(options.train, options.valid, *sizes, [timer], folder)
        trained = side.train(task)
    trained_at = clock()
    sources, references = map(read, options.test)
    translations = trained.translate(sources)
    translated_at = clock()
    pairs = sum(
        int(np.asarray(targets).any(axis=1).sum()) for _, targets in trained.batches
    )
    steady = timer.epochs[1:] or timer.epochs  # The first epoch includes compilation.
    bleu = evaluation.bleu(translations, references, lowercase=True)
    return [
        f"{lines_of_code(pathlib.Path(side.__file__).read_text('utf-8'))}",
        f"{trained.model.count_params():,}",
        f"{(trained_at - start) / 60:.1f}",
        f"{pairs * len(steady) / sum(steady):,.0f}",
        f"{translated_at - trained_at:,.0f}",
        f"{bleu.score:.2f}",
    ]


def lines_of_code(source: str) -> int:
    """Returns the number of lines that are not empty, comments or docstrings."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


if __name__ == "__main__":
    main()
