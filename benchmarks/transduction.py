"""Trains on few pairs of words with nothing but the files: letters to sounds.

`--data` has files such as `dut_train.tsv`, `dut_dev.tsv` and `dut_test.tsv`, with a
word and its symbols, separated by a tab; those of SIGMORPHON 2021, task 1, have this
form. Each combination of a language, a size and a seed is a run of `keras-transformer
train` in a folder of `--output`; options after `--` are those of `train`. Complete runs
are not repeated, and the same command resumes one that was stopped. It prints a table
of all runs in `--output`: the percentage of words with an error. Settings are chosen on
`dev` alone; `--test` adds the test words.

    python benchmarks/transduction.py --data g2p --languages dut kor --output runs/g2p
    python benchmarks/transduction.py --data g2p --languages dut --output runs/g2p
        --setting wide -- --hidden-dim 256 --num-layers 3
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

from measuring import environment, print_header, print_row, report

RESULT = "transduction.json"  # in the folder of a run


def main() -> None:
    """Trains what is missing, and prints a row for each setting."""
    options = parse_arguments()
    print(f"{environment()}\n", flush=True)
    for language in options.languages:
        for words in options.words:
            for seed in options.seeds:
                run(options, language, words, seed)
    print_table(options.output, options.test)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--languages", nargs="+", default=[])
    parser.add_argument(
        "--words", type=int, nargs="+", default=[0], help="training words; 0 = all"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--setting", default="default", help="name of the options")
    parser.add_argument(
        "--test", action="store_true", help="also decode the test words"
    )
    parser.add_argument("further", nargs="*", help="options of train, after --")
    return parser.parse_args()


def run(options: argparse.Namespace, language: str, words: int, seed: int) -> None:
    """Trains a model, unless its run is complete, and writes its figures."""
    size = str(words or "all")
    folder = options.output / options.setting / f"{language}-{size}-{seed}"
    result = read_result(folder)
    dev = options.data / f"{language}_dev.tsv"
    if "dev" not in result:
        began = time.monotonic()
        command = ["train", "--train", str(training_words(options, language, words))]
        command += ["--valid", str(dev), "--output", str(folder), "--no-export"]
        command += ["--seed", str(seed), *options.further]
        report(f"{options.setting}: {language}, {size} words, seed {seed}")
        try:
            call(command)
        finally:  # Also of a run that is stopped.
            minutes = (time.monotonic() - began) / 60
            result["minutes"] = result.get("minutes", 0.0) + minutes
            write_result(folder, result)
        figures = json.loads((folder / "figures.json").read_text())
        result["dev"] = 100 - figures["exact_match"]
        result["options"] = options.further
        write_result(folder, result)
    if options.test and "test" not in result:
        test = options.data / f"{language}_test.tsv"
        result["test"] = word_errors(folder, test)
        write_result(folder, result)


def call(arguments: list[str]) -> None:
    """Runs the command of the library, whose lines go to the standard error."""
    command = [sys.executable, "-m", "keras_transformer", *arguments]
    subprocess.run(command, check=True, stdout=sys.stderr)


def training_words(
    options: argparse.Namespace, language: str, words: int
) -> pathlib.Path:
    """Returns the file of the training words; the first ones of a random order."""
    path: pathlib.Path = options.data / f"{language}_train.tsv"
    if not words:
        return path
    import numpy as np

    lines = path.read_text("utf-8").splitlines()
    chosen = np.random.default_rng(0).permutation(len(lines))[:words]
    options.output.mkdir(parents=True, exist_ok=True)
    part: pathlib.Path = options.output / f"{language}_train_{words}.tsv"
    part.write_text("".join(f"{lines[row]}\n" for row in sorted(chosen)), "utf-8")
    return part


def word_errors(folder: pathlib.Path, path: pathlib.Path) -> float:
    """Returns the percentage of words with an error."""
    pairs = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    sources, found = folder / "test.words", folder / "test.found"
    sources.write_text("".join(f"{source}\n" for source, _ in pairs), "utf-8")
    found.unlink(missing_ok=True)
    call(["translate", str(folder), str(sources), str(found)])
    outputs = found.read_text("utf-8").splitlines()
    errors = [
        output != target for output, (_, target) in zip(outputs, pairs, strict=True)
    ]
    return 100 * statistics.mean(errors)


def read_result(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / RESULT
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def write_result(folder: pathlib.Path, result: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT).write_text(json.dumps(result))


def print_table(output: pathlib.Path, has_test: bool) -> None:
    """Prints the mean of the seeds, and each seed, of all complete runs."""
    runs: dict[tuple[str, ...], dict[int, dict[str, Any]]] = {}
    for path in sorted(output.glob(f"*/*/{RESULT}")):
        result = json.loads(path.read_text())
        language, words, seed = path.parent.name.rsplit("-", 2)
        if "dev" in result:
            setting = path.parents[1].name
            runs.setdefault((setting, language, words), {})[int(seed)] = result
    parts = ["dev", "test"] if has_test else ["dev"]
    titles = [title for part in parts for title in (part, f"{part} of each seed")]
    print_header("setting", "language", "words", "seeds", *titles, "minutes", "options")
    for group, results in runs.items():
        cells = []
        for part in parts:
            values = [each[part] for each in results.values() if part in each]
            cells.append(f"{statistics.mean(values):.1f} %" if values else "")
            cells.append(", ".join(f"{value:.1f}" for value in values))
        minutes = statistics.mean(each["minutes"] for each in results.values())
        given = " ".join(next(iter(results.values()))["options"])
        print_row(*group, len(results), *cells, f"{minutes:.0f}", given)


if __name__ == "__main__":
    main()
