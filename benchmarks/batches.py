"""Measures the time per text of a SavedModel for several batch sizes.

It calls `serving_default` in this process, without HTTP. The results show how much a
server can gain from batches. The first call of a batch size compiles its shapes; later
calls are timed, in wall-clock time and in processor time of all cores.

    python benchmarks/batches.py
    python benchmarks/batches.py --model saved_models/en-de/1 --texts test.en
"""

import argparse
import json
import os
import pathlib
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tensorflow_text  # noqa: F401 (registers its operations)
from serving import PRONOUNCE, texts_of

SIZES = (1, 2, 4, 8, 16, 32, 64)
COLUMNS = {
    "first_seconds": "first call, s",
    "milliseconds": "ms/text",
    "processor_milliseconds": "CPU ms/text",
}


def main() -> None:
    """Prints one row per batch size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        type=pathlib.Path,
        default=PRONOUNCE / "1",
        help="Folder of the SavedModel. Default: the pronunciation model.",
    )
    parser.add_argument(
        "--texts",
        type=pathlib.Path,
        metavar="FILE",
        help="Texts, one per line. Default: words.",
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=SIZES, help="Batch sizes."
    )
    parser.add_argument(
        "--calls", type=int, default=30, help="Timed calls of each size."
    )
    parser.add_argument("--json", metavar="FILE", help="File for the results.")
    options = parser.parse_args()
    texts = texts_of(options.texts)
    started = time.perf_counter()
    model = tf.saved_model.load(str(options.model))
    print(f"loaded in {time.perf_counter() - started:.1f} s")
    print(f"{'texts':8}" + "".join(f"{title:>15}" for title in COLUMNS.values()))
    rows = {}
    for size in options.sizes:
        serve = model.signatures["serving_default"]
        rows[size] = row = time_batches(serve, texts, size, options.calls)
        print(f"{size:<8}" + "".join(f"{row[key]:15.2f}" for key in COLUMNS))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


def time_batches(
    serve: tf.types.experimental.ConcreteFunction,
    texts: list[str],
    size: int,
    calls: int,
) -> dict[str, float]:
    """Returns the times of one batch size."""
    starts = [i * size % (len(texts) - size) for i in range(calls)]
    batches = [tf.constant(texts[start : start + size]) for start in starts]
    started = time.perf_counter()
    serve(text=batches[0])
    first = time.perf_counter() - started
    for batch in batches:  # Compiles the shapes of all lengths.
        serve(text=batch)
    walls, processors = [], []
    for batch in batches:
        clocks = time.perf_counter(), time.process_time()
        serve(text=batch)["text"].numpy()
        walls.append((time.perf_counter() - clocks[0]) * 1e3 / size)
        processors.append((time.process_time() - clocks[1]) * 1e3 / size)
    return {
        "first_seconds": first,
        "milliseconds": statistics.median(walls),
        "processor_milliseconds": statistics.median(processors),
    }


if __name__ == "__main__":
    main()
