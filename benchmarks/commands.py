r"""Times the commands with CTranslate2 as a user waits for them, and their memory.

Each command runs in a new process, from its start to its last output; nothing of an
earlier run is cached but the files of the operating system. `loop` is a program of
CTranslate2's own calls: the same batches of the same sorted lines through the package
sentencepiece and `translate_batch`. Ratios are those of a round, in which the sides
alternate.

    python benchmarks/commands.py --translator en-de/ctranslate2 --source test.en \
        --generator stories/ctranslate2 --prompt "Once upon a time"
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from measuring import environment, print_header, print_row

BATCH_SIZE = 64
LOOP = """
import collections, os, sys
import ctranslate2
import sentencepiece
folder, source, target, beams, penalty = sys.argv[1:]
cores = len(os.sched_getaffinity(0))
translator = ctranslate2.Translator(folder, inter_threads=cores, intra_threads=1)
sides = [
    sentencepiece.SentencePieceProcessor(model_file=f"{folder}/{side}.model")
    for side in ("source", "target")
]
with open(source, encoding="utf-8") as file:
    rows = sides[0].encode(file.read().splitlines(), out_type=str)
order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
batches = [order[i : i + 64] for i in range(0, len(order), 64)]
outputs = [""] * len(rows)
running = collections.deque()
def collect():
    for place, result in zip(*running.popleft()):
        outputs[place] = sides[1].decode(result.result().hypotheses[0])
for batch in batches:
    found = translator.translate_batch(
        [rows[i] for i in batch],
        beam_size=int(beams),
        length_penalty=float(penalty),
        max_decoding_length=len(rows[batch[-1]]) + 51,
        max_input_length=0,
        return_scores=True,
        asynchronous=True,
    )
    running.append((batch, found))
    if len(running) > 2 * cores:
        collect()
while running:
    collect()
with open(target, "w", encoding="utf-8") as file:
    file.writelines(f"{line}\\n" for line in outputs)
"""


class Run(NamedTuple):
    """A command that has ended."""

    seconds: float
    peak_mb: float
    output: str


def run(command: list[str], text: str = "") -> Run:
    """Runs a command with a standard input in a new process."""
    with tempfile.TemporaryFile("w+") as source, tempfile.TemporaryFile("w+") as output:
        source.write(text)
        source.seek(0)
        began = time.perf_counter()
        process = subprocess.Popen(command, stdin=source, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{command} ends with {process.returncode}")
        output.seek(0)
        return Run(seconds, usage.ru_maxrss / 1024, output.read())


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "keras_transformer_runtime", *arguments]


def print_runs(name: str, runs: list[Run]) -> None:
    seconds = [each.seconds for each in runs]
    memory = statistics.median(each.peak_mb for each in runs)
    print_row(name, f"{statistics.median(seconds):.2f}", f"{memory:.0f}")


def many_lines(source: pathlib.Path, count: int, target: pathlib.Path) -> None:
    """Writes `count` different lines, those of a text with numbers after the first."""
    lines = source.read_text("utf-8").splitlines()
    rows = (f"{lines[i % len(lines)]} {i // len(lines) or ''}" for i in range(count))
    target.write_text("".join(f"{row.rstrip()}\n" for row in rows), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--translator", help="folder of a CTranslate2 model or a run")
    parser.add_argument("--source", help="text to translate")
    parser.add_argument("--generator", help="the same of a language model")
    parser.add_argument("--prompt", default="")
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(environment())
    print_header("command", "seconds", "peak MB")
    if options.translator:
        translate(options)
    if options.generator:
        arguments = ("--prompt", options.prompt, "--max-length", "64", "--quiet")
        generate = command("generate", options.generator, *arguments)
        print_runs("generate", [run(generate) for _ in range(options.repeats)])


def translate(options: argparse.Namespace) -> None:
    """Measures one line, and a file against the loop of CTranslate2."""
    source = pathlib.Path(options.source)
    first = source.read_text("utf-8").splitlines()[0]
    one = command("translate", options.translator, "--quiet")
    runs = [run(one, f"{first}\n") for _ in range(options.repeats)]
    print_runs("translate, one line", runs)
    folder = pathlib.Path(options.translator)
    if (folder / "ctranslate2").is_dir():
        folder = folder / "ctranslate2"
    from keras_transformer_runtime.engines.model_description import ModelDescription

    search = ModelDescription.read(folder).options
    settings = str(search.num_beams), str(search.length_penalty)
    sides: dict[str, list[Run]] = {"translate": [], "loop": []}
    with tempfile.TemporaryDirectory() as temporary:
        path = pathlib.Path(temporary)
        many_lines(source, options.lines, path / "source")
        for _ in range(options.repeats):
            files = str(path / "source"), str(path / "target")
            ours = command("translate", str(folder), *files, "--overwrite", "--quiet")
            loop = [sys.executable, "-c", LOOP, str(folder), *files[:1]]
            loop += [str(path / "loop"), *settings]
            sides["translate"].append(run(ours))
            sides["loop"].append(run(loop))
        pairs = zip(
            *(
                (path / name).read_text("utf-8").splitlines()
                for name in ("target", "loop")
            ),
            strict=True,
        )
        equal = statistics.mean(one == other for one, other in pairs)
    for name, runs in sides.items():
        print_runs(f"{name}, {options.lines:,} lines", runs)
    pairs_of_runs = zip(sides["loop"], sides["translate"], strict=True)
    ratio = statistics.median(b.seconds / a.seconds for b, a in pairs_of_runs)
    print(f"speed of translate divided by the loop: {ratio:.2f}; equal: {equal:.1%}")


if __name__ == "__main__":
    main()
