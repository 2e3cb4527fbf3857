"""Fine-tunes a model with all weights, with LoRA and not at all.

A model is pretrained on one part of a text. Then it is trained further on most of the
other part, and its loss on the rest of that part is compared: in nats per character of
running text, or per target token of pairs. The question is how close LoRA comes to
fine-tuning of all weights, and how far both are from the pretrained model.

`--text` is running text such as tinyshakespeare: its first 60 % are for pretraining,
30 % for fine-tuning and the last 10 % for the loss. `--pairs` are a source and a target
file such as Multi30k. Pairs whose source has a word for women or girls are one part,
of which each tenth pair is for the loss, and all others are for pretraining, with a
model of the design of Marian.

Each run is one of `keras_transformer.recipe` in a folder of `--output`. The same
command resumes a benchmark that was stopped.

    python benchmarks/fine_tuning.py --text input.txt --output runs/shakespeare
    python benchmarks/fine_tuning.py --pairs train.en train.de --output runs/multi30k
"""

import argparse
import pathlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from measuring import environment, print_header, print_row

COLUMNS = ("loss", "of full", "trained parameters", "seconds")
PRETRAINING, TUNING = 0.6, 0.9  # where these parts of a running text end
OF_WOMEN = re.compile(r"\b(woman|women|girl|girls|lady|ladies|female)\b", re.IGNORECASE)
WIDTH, LAYERS, HEADS, CONTEXT = 128, 4, 4, 64
LORA: dict[str, dict[str, Any]] = {
    "LoRA of all dense layers": {"lora_targets": ["all"]},
    "LoRA of query and value": {"lora_targets": ["query", "value"]},
}


def main() -> None:
    """Prints a row for each way of fine-tuning."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", help="a file of running text")
    parser.add_argument("--pairs", nargs=2, help="a source and a target file")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--steps", type=int, default=2000, help="of pretraining")
    parser.add_argument("--tuning-steps", type=int, default=600)
    parser.add_argument("--rank", type=int, nargs="*", default=[8])
    parser.add_argument("--rate", type=float, help="of LoRA; default: that of train")
    parser.add_argument(
        "--full-rate", type=float, nargs="*", default=[], help="further rates of full"
    )
    options = parser.parse_args()
    if (options.text is None) == (options.pairs is None):
        parser.error("one of --text and --pairs is required")
    options.output.mkdir(parents=True, exist_ok=True)
    shared, start, loss_of = (
        running_text(options) if options.text else parallel_text(options)
    )
    print(f"{environment()}\n")
    print_header("", *COLUMNS)
    full, seconds, trained = run(options, "full", shared, start)
    best = loss_of(full)
    row("no fine-tuning", loss_of(start), best, 0, 0.0)
    row("all weights", best, best, trained, seconds)
    for rate in options.full_rate:
        recipe = {**shared, "learning_rate": rate}
        tuned, seconds, trained = run(options, f"full-{rate:g}", recipe, start)
        row(f"all weights, rate {rate:g}", loss_of(tuned), best, trained, seconds)
    for rank in options.rank:
        for name, targets in LORA.items():
            lora = {"lora": rank, "learning_rate": options.rate, **targets}
            folder = f"lora-{rank}-{'-'.join(targets['lora_targets'])}"
            tuned, seconds, trained = run(options, folder, {**shared, **lora}, start)
            row(f"{name}, rank {rank}", loss_of(tuned), best, trained, seconds)


def row(name: str, loss: float, best: float, trained: int, seconds: float) -> None:
    """Prints the figures of a run; `best` is the loss after training all weights."""
    figures = f"{loss:.4f}", f"{loss / best:.3f}", f"{trained:,}", f"{seconds:.0f}"
    print_row(name, *figures)


def run(
    options: argparse.Namespace, name: str, recipe: dict[str, Any], start: pathlib.Path
) -> tuple[pathlib.Path, float, int]:
    """Fine-tunes; returns the folder, the seconds and the number of parameters."""
    from keras_transformer.recipe import Recipe, train

    folder = options.output / name
    begin = time.perf_counter()
    result = train(
        Recipe(
            **recipe,
            steps=options.tuning_steps,
            start_from=str(start),
            output=str(folder),
            export=False,
            verbose=0,
        )
    )
    return folder, time.perf_counter() - begin, result.figures.trained_parameters or 0


def write(path: pathlib.Path, text: str) -> str:
    """Writes a text if it does not exist, since a run refuses texts that change."""
    if not path.exists():
        path.write_text(text, "utf-8")
    return str(path)


def running_text(
    options: argparse.Namespace,
) -> tuple[dict[str, Any], pathlib.Path, Callable[[pathlib.Path], float]]:
    """Pretrains a language model; returns options, its folder, and the loss of one."""
    from keras_transformer.inference.perplexity import score_running_text
    from keras_transformer.recipe import Recipe, train
    from keras_transformer.recipe.loading import load_trained_model

    text = pathlib.Path(options.text).read_text("utf-8")
    ends = [0, *(int(part * len(text)) for part in (PRETRAINING, TUNING)), len(text)]
    names = ("pretraining", "tuning", "valid")
    files = {
        name: write(options.output / f"{name}.txt", text[ends[i] : ends[i + 1]])
        for i, name in enumerate(names)
    }
    shared = {"model": "causal", "valid": [files["valid"]], "tokens_per_batch": 1024}
    start = options.output / "pretrained"
    train(
        Recipe(
            **shared,
            train=[files["pretraining"]],
            output=str(start),
            tokenizer="characters",
            num_layers=LAYERS,
            hidden_dim=WIDTH,
            num_heads=HEADS,
            length=CONTEXT,
            dropout=0.1,
            steps=options.steps,
            export=False,
            verbose=0,
        )
    )

    def loss_of(folder: pathlib.Path) -> float:
        valid = pathlib.Path(files["valid"]).read_text("utf-8")
        return score_running_text(load_trained_model(folder), [valid]).loss

    return {**shared, "train": [files["tuning"]]}, start, loss_of


def parallel_text(
    options: argparse.Namespace,
) -> tuple[dict[str, Any], pathlib.Path, Callable[[pathlib.Path], float]]:
    """Pretrains a model of Marian's design; returns what `running_text` returns."""
    import keras

    from keras_transformer import SentencePieceTokenizer, Seq2Seq
    from keras_transformer.layers import PositionalEncoding
    from keras_transformer.recipe import Recipe, train
    from keras_transformer.recipe.loading import load_trained_model

    texts = (pathlib.Path(path).read_text("utf-8") for path in options.pairs)
    lines = zip(*(text.splitlines(keepends=True) for text in texts), strict=True)
    parts: dict[str, list[tuple[str, str]]] = {"pretraining": [], "women": []}
    for pair in lines:
        parts["women" if OF_WOMEN.search(pair[0]) else "pretraining"].append(pair)
    women = parts.pop("women")
    parts["valid"] = women[::10]
    parts["tuning"] = [pair for i, pair in enumerate(women) if i % 10]

    def sides(name: str) -> Iterator[str]:
        for number, side in enumerate(("source", "target")):
            text = "".join(pair[number] for pair in parts[name])
            yield write(options.output / f"{name}.{side}", text)

    files = {name: [*sides(name)] for name in parts}
    shared = {"valid": files["valid"], "metric": "loss", "tokens_per_batch": 2048}
    shared |= {"selection": False}
    random = options.output / "random.keras"
    if not random.exists():
        keras.utils.set_random_seed(1)
        tokenizer = SentencePieceTokenizer.train(
            files["pretraining"], vocabulary_size=4000
        )
        Seq2Seq(
            num_layers=3,
            hidden_dim=WIDTH,
            intermediate_dim=4 * WIDTH,
            num_heads=HEADS,
            source_tokenizer=tokenizer,
            target_tokenizer=tokenizer,
            activation="silu",
            normalize_first=False,
            output_bias=True,
            positions=PositionalEncoding(interleaved=False),
        ).save(random)
    start = options.output / "pretrained"
    train(
        Recipe(
            **shared,
            train=files["pretraining"],
            output=str(start),
            start_from=str(random),
            learning_rate=3e-3,
            dropout=0.1,
            warmup_steps=max(options.steps // 4, 1),
            steps=options.steps,
            export=False,
            verbose=0,
        )
    )

    def loss_of(folder: pathlib.Path) -> float:
        texts = zip(*parts["valid"], strict=True)
        sources, targets = ([line.strip() for line in side] for side in texts)
        result = load_trained_model(folder).score(sources, targets)
        return float(-result.scores.sum() / result.lengths.sum())

    return {**shared, "train": files["tuning"]}, start, loss_of


if __name__ == "__main__":
    main()
