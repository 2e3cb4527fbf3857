r"""Compares decoding speed with CTranslate2, Hugging Face, KerasHub and a simple loop.

All sides decode the same sentences, with outputs forced to the same length. Ours is
`generate` with its defaults on each backend, and the SavedModel, which takes and
returns texts. The peers are CTranslate2 with the exported weights in float32 and int8,
Marian's `generate`, KerasHub's samplers and layers, and the loop of the Keras
tutorials, which evaluates the whole model for each token (greedy, a single batch).
Marian and KerasHub have random weights.

Each side runs in a separate process with the default number of threads of its library.
The sides alternate. The first pass on each shape measures compilation. On one core
(`taskset --cpu-list 0 python …`) seconds are processor time. Memory is the peak without
the resident memory before the library is loaded (on Linux), and on a GPU the peak
there. `--random` needs no TensorFlow.

    python benchmarks/decoding.py --sizes small --train train.en train.de \
        --source test.en
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from typing import Any

from decoding_sides.prepare import prepare, prepare_random
from decoding_sides.setting import Setting
from decoding_sides.worker import measure, start
from training import Side, environment, in_a_process, is_installed, worker
from training_sides.devices import gpu_name

SIZES = ("tiny", "small", "base", "big")
BACKENDS = ("tensorflow", "jax", "torch")
PEERS = ("ctranslate2", "ctranslate2-int8", "marian", "keras_hub", "tutorial")
LOOP_SENTENCES = 64

Figures = dict[str, float]


def main() -> None:
    """Prints a table per size, beams and batch, and writes all figures to `--json`."""
    options = parse_arguments()
    sides = choose_sides(options)
    print(environment())
    results: dict[str, Any] = {}
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            if options.random:
                model = folder, size, options.dtype, options.length
                in_a_process(prepare_random, *model, options.sentences, backend="jax")
            else:
                in_a_process(
                    prepare,
                    folder,
                    size,
                    options.beams,
                    options.length,
                    options.train,
                    options.source,
                    options.sentences,
                    backend="tensorflow",
                )
            for num_beams in options.beams:
                setting = Setting(
                    size, num_beams, options.length, folder, options.dtype
                )
                rounds = measure_rounds(sides, setting, options)
                results[f"{size}, {num_beams} beams"] = rounds
                for batch_size in options.batches:
                    print_table(setting, batch_size, sides, rounds[batch_size])
        if options.json:
            with open(options.json, "w") as file:
                json.dump({"options": vars(options), "results": results}, file)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--train",
        nargs=2,
        metavar="FILE",
        help="text of the vocabulary; default: generated",
    )
    parser.add_argument("--source", metavar="FILE", help="text to decode")
    parser.add_argument(
        "--random",
        action="store_true",
        help="random ids in place of texts, without the sides that need TensorFlow",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of ours and Marian with `--random`",
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["small"])
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 1])
    parser.add_argument("--backends", nargs="*", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--length", type=int, default=24, help="tokens of each output")
    parser.add_argument("--sentences", type=int, default=512, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, help="measured rounds")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def choose_sides(options: argparse.Namespace) -> list[Side]:
    peers = {*options.peers}
    if options.random:
        peers -= {"ctranslate2-int8", "keras_hub", "tutorial"}
    forms = {"float32": "ctranslate2", "int8": "ctranslate2-int8"}
    if gpu_name() is not None:
        forms = {form: "ctranslate2" for form in ("float32", "float16", "int8_float16")}
    sides = []
    for backend in options.backends:
        if not is_installed(backend):
            continue
        sides.append(Side(f"ours, {backend}", "ours", backend))
        if backend == "tensorflow" and not options.random:
            sides.append(Side("ours, SavedModel", "saved_model", backend))
        if "keras_hub" in peers:
            sides.append(Side(f"KerasHub, {backend}", "keras_hub", backend))
        if "tutorial" in peers:
            name = f"tutorials' loop, {backend}"
            sides.append(Side(name, "tutorial_loop", backend))
    for form, name in forms.items():
        if name in peers and is_installed("ctranslate2"):
            build = {"form": form}
            sides.append(
                Side(f"CTranslate2 {form}", "ctranslate2_translator", options=build)
            )
    if "marian" in peers and is_installed("transformers"):
        sides.append(Side("Marian", "marian"))
    return sides


def measure_rounds(
    sides: list[Side], setting: Setting, options: argparse.Namespace
) -> dict[int, list[dict[str, Figures]]]:
    """Returns the figures of all sides, by batch size and round."""
    sides = [
        side
        for side in sides
        if setting.num_beams == 1 or side.module != "tutorial_loop"
    ]
    rounds: dict[int, list[dict[str, Figures]]] = {size: [] for size in options.batches}
    with contextlib.ExitStack() as stack:
        workers = {
            side.name: stack.enter_context(worker(side.backend)) for side in sides
        }
        starting = [
            workers[side.name].submit(start, side.module, side.options, setting)
            for side in sides
        ]
        for work in starting:
            work.result()
        for batch_size in options.batches:
            for number in range(options.repeats + 1):
                figures = {}
                for side in sides:
                    count = sentences(side, batch_size, options.sentences)
                    work = workers[side.name].submit(measure, count, batch_size)
                    figures[side.name] = {**work.result(), "sentences": count}
                    report(setting, batch_size, number, side, figures[side.name])
                rounds[batch_size].append(figures)
    return rounds


def sentences(side: Side, batch_size: int, most: int) -> int:
    if side.module == "tutorial_loop":
        return min(most, LOOP_SENTENCES, 4 * batch_size)
    return min(most, 16 * batch_size)


def report(
    setting: Setting, batch_size: int, number: int, side: Side, figures: Figures
) -> None:
    print(
        f"{time.strftime('%H:%M:%S')} {setting.size}, {setting.num_beams} beams, batch "
        f"{batch_size}, round {number}: {side.name}, {figures['seconds']:.2f} s",
        file=sys.stderr,
        flush=True,
    )


def print_table(
    setting: Setting,
    batch_size: int,
    sides: list[Side],
    rounds: list[dict[str, Figures]],
) -> None:
    """Prints a row per side with medians of all rounds but the first."""
    first, *rounds = rounds
    print(f"\n{setting.size}, {setting.num_beams} beams, batch {batch_size}\n")
    print(
        "| | tokens/s | lowest to highest | ratio to CTranslate2 | ms per batch ",
        end="",
    )
    print("| compilation, s | additional MB | load of others |\n|" + " --- |" * 8)
    for side in sides:
        if side.name not in first:
            continue
        runs = [figures[side.name] for figures in rounds]
        speeds = [setting.length * run["sentences"] / run["seconds"] for run in runs]
        usual = statistics.median(run["seconds"] for run in runs)
        batches = -(-runs[0]["sentences"] // batch_size)
        cells = [
            side.name,
            f"{statistics.median(speeds):,.0f}",
            f"{min(speeds):,.0f} to {max(speeds):,.0f}",
            ratio_to_reference(side.name, rounds),
            f"{1000 * usual / batches:,.0f}",
            f"{first[side.name]['seconds'] - usual:.1f}",
            f"{runs[-1]['extra_mb']:,.0f}",
            f"{statistics.median(run['taken_by_others'] for run in runs):.0%}",
        ]
        print("|", " | ".join(cells), "|")
    sys.stdout.flush()


def ratio_to_reference(name: str, rounds: list[dict[str, Figures]]) -> str:
    """Returns the median ratio of a side's speed to that of CTranslate2."""
    reference = "CTranslate2 float32"
    if reference not in rounds[0]:
        return ""

    def speed(figures: Figures) -> float:
        return figures["sentences"] / figures["seconds"]

    ratios = [speed(run[name]) / speed(run[reference]) for run in rounds]
    return f"{statistics.median(ratios):.2f}"


if __name__ == "__main__":
    main()
