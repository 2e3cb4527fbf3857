r"""Compares decoding speed with CTranslate2 and Hugging Face.

All sides decode the same sentences, with outputs forced to the same length. Ours is
`generate` with its defaults on each backend, and the SavedModel, which takes and
returns texts. The peers are CTranslate2 with the exported weights in float32 and int8
(on a GPU in float32, float16 and int8_float16), and Marian's `generate` with random
weights.

Each side runs in a separate process with the default number of threads of its library.
The sides alternate. The first pass on each shape measures compilation. On one core
(`taskset --cpu-list 0 python …`) seconds are processor time. Memory is the peak without
the memory before the library is loaded (Linux), and on a GPU the peak there.
Without texts, the sources are random ids, the SavedModel and int8 are left out, and no
TensorFlow is needed.

    python benchmarks/decoding.py --sizes small --train train.en train.de \
        --source test.en
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from measuring import (
    BACKENDS,
    environment,
    gpu_name,
    in_a_process,
    is_installed,
    median_ratio,
    peak_mb,
    print_header,
    print_row,
    report,
    reset_peak,
    seconds,
    worker,
)
from training import (
    VOCABULARY_SIZE,
    allow_tf32,
    marian_model,
    torch_device,
)

SIZES = ("tiny", "small", "base", "big")
PEERS = ("ctranslate2", "ctranslate2-int8", "marian")
REFERENCE = "CTranslate2 float32"
PAD, START, END = 0, 2, 3

Figures = dict[str, float]
# Decodes the first sentences, of this number, with this batch size.
Decode = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class Setting:
    """The size of the model, the search, and the folder of `prepare`."""

    size: str
    num_beams: int
    length: int
    folder: str
    dtype: str

    @property
    def dimensions(self) -> dict[str, int]:
        from keras_transformer.models import PRESETS

        return PRESETS[f"transformer_{self.size}"]

    def path(self, name: str) -> str:
        return str(pathlib.Path(self.folder) / name)

    def read(self, name: str) -> list[Any]:
        """Returns the texts, their `rows` of ids with end tokens, or the tokens."""
        return json.loads(pathlib.Path(self.path(f"{name}.json")).read_text())


def main() -> None:
    """Prints a table per size, beams and batch."""
    options = parse_arguments()
    sides = choose_sides(options)
    print(environment())
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            if options.train and options.source:
                in_a_process(prepare, folder, size, options, backend="tensorflow")
            else:
                in_a_process(prepare_random, folder, size, options, backend="jax")
            for num_beams in options.beams:
                setting = Setting(
                    size, num_beams, options.length, folder, options.dtype
                )
                measure_rounds(sides, setting, options)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--train",
        nargs=2,
        metavar="FILE",
        help="text of the vocabulary; default: random ids",
    )
    parser.add_argument("--source", metavar="FILE", help="text to decode")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of ours and Marian with random ids",
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["small"])
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 1])
    parser.add_argument("--backends", nargs="*", choices=BACKENDS, default=BACKENDS)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--length", type=int, default=24, help="tokens of each output")
    parser.add_argument("--sentences", type=int, default=512, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, help="measured rounds")
    return parser.parse_args()


def choose_sides(options: argparse.Namespace) -> list[str]:
    sides = []
    for backend in filter(is_installed, options.backends):
        sides.append(f"ours, {backend}")
        if backend == "tensorflow" and options.source:
            sides.append("SavedModel")
    if "ctranslate2" in options.peers and is_installed("ctranslate2"):
        sides.append(REFERENCE)
        if gpu_name() is not None:
            sides += ["CTranslate2 float16", "CTranslate2 int8_float16"]
        elif "ctranslate2-int8" in options.peers and options.source:
            sides.append("CTranslate2 int8")
    if "marian" in options.peers and is_installed("transformers"):
        sides.append("Marian")
    return sides


def measure_rounds(
    sides: list[str], setting: Setting, options: argparse.Namespace
) -> None:
    """Prints a table of all sides for each batch size."""
    with contextlib.ExitStack() as stack:
        workers = {}
        for side in sides:
            backend = "tensorflow" if side == "SavedModel" else "torch"
            backend = side.partition(", ")[2] or backend
            workers[side] = stack.enter_context(worker(backend))
        starting = [workers[side].submit(start, side, setting) for side in sides]
        for work in starting:
            work.result()
        for batch_size in options.batches:
            count = min(options.sentences, 16 * batch_size)
            rounds = []
            for number in range(options.repeats + 1):
                figures = {}
                for side in sides:
                    work = workers[side].submit(measure, count, batch_size)
                    figures[side] = work.result()
                    report(f"batch {batch_size}, round {number}: {side}", figures[side])
                rounds.append(figures)
            print_table(setting, batch_size, count, sides, rounds)


def print_table(
    setting: Setting,
    batch_size: int,
    count: int,
    sides: list[str],
    rounds: list[dict[str, Figures]],
) -> None:
    """Prints a row per side with medians of all rounds but the first."""
    first, *rounds = rounds
    print(f"\n{setting.size}, {setting.num_beams} beams, batch {batch_size}\n")
    print_header(
        *("", "tokens/s", "lowest to highest", "ratio to CTranslate2"),
        *("ms per batch", "compilation, s", "additional MB"),
    )
    for side in sides:
        taken = [figures[side]["seconds"] for figures in rounds]
        usual = statistics.median(taken)
        speeds = [setting.length * count / each for each in taken]
        ratio = ""
        if REFERENCE in first:
            reference = (figures[REFERENCE]["seconds"] for figures in rounds)
            ratio = f"{median_ratio(reference, taken):.2f}"
        print_row(
            side,
            f"{statistics.median(speeds):,.0f}",
            f"{min(speeds):,.0f} to {max(speeds):,.0f}",
            ratio,
            f"{1000 * usual / -(-count // batch_size):,.0f}",
            f"{first[side]['seconds'] - usual:.1f}",
            f"{rounds[-1][side]['extra_mb']:,.0f}",
        )


# Functions that run in the process of a side.

_side: dict[str, Any] = {}


def start(side: str, setting: Setting) -> None:
    """Builds a side."""
    before = reset_peak()
    kind, _, form = side.replace(",", "").partition(" ")
    _side.update(decode=KINDS[kind](setting, form), before=before)


def measure(count: int, batch_size: int) -> Figures:
    """Decodes sentences and returns the figures."""
    decode: Decode = _side["decode"]
    taken = seconds(lambda: decode(count, batch_size))
    return {"seconds": taken, "extra_mb": peak_mb() - _side["before"]}


def make_search(num_beams: int) -> Any:
    import keras_transformer as kt

    return kt.GreedySearch() if num_beams == 1 else kt.BeamSearch(num_beams)


def ours(setting: Setting, _: str) -> Decode:
    """`Seq2Seq.generate` with default arguments and a forced length."""
    import keras

    import keras_transformer as kt  # noqa: F401 (registers the classes)

    if keras.backend.backend() == "torch":
        allow_tf32()
    model: Any = keras.saving.load_model(setting.path("model.keras"), compile=False)
    rows, search = setting.read("rows"), make_search(setting.num_beams)
    length = setting.length

    def decode(count: int, batch_size: int) -> None:
        result = model.generate(
            rows[:count], search, length, batch_size, min_length=length
        )
        assert (result.lengths == length).all()

    return decode


def saved_model(setting: Setting, _: str) -> Decode:
    """The exported SavedModel, which takes and returns texts."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 (its operations)

    name = f"saved_model-{setting.num_beams}"
    serve = tf.saved_model.load(setting.path(name)).signatures["serving_default"]
    rows, texts = setting.read("rows"), setting.read("texts")

    def decode(count: int, batch_size: int) -> None:
        for chosen in by_length(rows[:count], batch_size):
            batch = tf.constant([texts[number] for number in chosen])
            serve(text=batch)["text"].numpy()

    return decode


def ctranslate2(setting: Setting, form: str) -> Decode:
    """CTranslate2 with the exported model; on a GPU it converts the weights."""
    import ctranslate2

    if gpu_name() is None:
        cores = len(os.sched_getaffinity(0))
        translator = ctranslate2.Translator(setting.path(form), intra_threads=cores)
    else:
        translator = ctranslate2.Translator(
            setting.path("float32"), device="cuda", compute_type=form
        )
    vocabulary = setting.read("vocabulary")
    tokens = [[vocabulary[i] for i in row[:-1]] for row in setting.read("rows")]

    def decode(count: int, batch_size: int) -> None:
        results = translator.translate_batch(
            tokens[:count],
            beam_size=setting.num_beams,
            length_penalty=0.6 if setting.num_beams > 1 else 0,
            min_decoding_length=setting.length,
            max_decoding_length=setting.length,
            max_batch_size=batch_size,
        )
        # `max_decoding_length` does not count the end token.
        assert all(len(result.hypotheses[0]) == setting.length for result in results)

    return decode


def marian(setting: Setting, _: str) -> Decode:
    """`generate` of Hugging Face's Marian with random weights."""
    import torch

    from keras_transformer.inference.token_ids import pad_rows

    allow_tf32()
    model = marian_model(setting.dimensions).eval()
    model.to(torch_device(), getattr(torch, setting.dtype))
    rows = setting.read("rows")

    def decode(count: int, batch_size: int) -> None:
        for chosen in by_length(rows[:count], batch_size):
            batch = [rows[number] for number in chosen]
            ids = pad_rows(batch, len(batch), None, PAD)
            sources = torch.tensor(ids, device=torch_device())
            outputs = model.generate(
                input_ids=sources,
                attention_mask=(sources != PAD).long(),
                num_beams=setting.num_beams,
                do_sample=False,
                min_new_tokens=setting.length,
                max_new_tokens=setting.length,
                pad_token_id=PAD,
                decoder_start_token_id=START,
                eos_token_id=END,
                use_cache=True,
            )
            assert outputs.shape[1] == setting.length + 1

    return decode


def by_length(rows: list[list[int]], batch_size: int) -> Iterator[list[int]]:
    """Yields the numbers of the rows of each batch, sorted by length as `generate`."""
    ordered = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    for begin in range(0, len(rows), batch_size):
        yield ordered[begin : begin + batch_size]


KINDS: dict[str, Callable[[Setting, str], Decode]] = {
    "ours": ours,
    "SavedModel": saved_model,
    "CTranslate2": ctranslate2,
    "Marian": marian,
}


# The model in all formats.


def prepare(folder: str, size: str, options: argparse.Namespace) -> None:
    """Writes texts, token ids, vocabulary and models to a folder."""
    import keras

    import keras_transformer as kt

    path = pathlib.Path(folder)
    tokenizer = kt.SentencePieceTokenizer.train(
        options.train, VOCABULARY_SIZE, lowercase=True
    )
    lines = pathlib.Path(options.source).read_text("utf-8").splitlines()
    texts = lines[: options.sentences]
    write(path / "texts.json", texts)
    write(path / "rows.json", tokenizer.tokenize(texts, add_end=True).to_list())
    write(path / "vocabulary.json", tokenizer.get_vocabulary())
    keras.utils.set_random_seed(1)
    model = kt.Seq2Seq.from_preset(
        f"transformer_{size}", source_tokenizer=tokenizer, normalize_first=True
    )
    model.save(path / "model.keras")
    model.export(path / "float32", format="ctranslate2")
    model.export(path / "int8", format="ctranslate2", quantization="int8")
    if "tensorflow" in options.backends:
        for num_beams in options.beams:
            model.export(
                path / f"saved_model-{num_beams}",
                make_search(num_beams),
                max_length=options.length,
                min_length=options.length,
                check_texts=texts[:2],
            )


def prepare_random(folder: str, size: str, options: argparse.Namespace) -> None:
    """Writes random token ids, numbers for a vocabulary and models to a folder.

    The sources have the length of the outputs or up to a half less.
    """
    import keras

    import keras_transformer as kt

    path, rng = pathlib.Path(folder), np.random.default_rng(0)
    lengths = rng.integers(options.length // 2, options.length + 1, options.sentences)
    rows = [[*rng.integers(4, VOCABULARY_SIZE, n - 1).tolist(), END] for n in lengths]
    vocabulary = [str(number) for number in range(VOCABULARY_SIZE)]
    write(path / "rows.json", rows)
    write(path / "vocabulary.json", vocabulary)
    keras.utils.set_random_seed(1)

    def make_model(dtype: str) -> kt.Seq2Seq:
        return kt.Seq2Seq.from_preset(
            f"transformer_{size}",
            vocabulary_size=VOCABULARY_SIZE,
            normalize_first=True,
            dtype=dtype,
        )

    make_model(options.dtype).save(path / "model.keras")
    if importlib.util.find_spec("ctranslate2") is not None:
        from keras_transformer.export.ctranslate2_spec import make_spec

        model = make_model("float32")
        model.source_tokenizer = model.target_tokenizer = Numbers(vocabulary)
        spec = make_spec(model)
        spec.validate()
        spec.optimize(None)
        (path / "float32").mkdir()
        spec.save(str(path / "float32"))


class Numbers(NamedTuple):
    """A vocabulary of numbers, with what `make_spec` uses of a tokenizer."""

    vocabulary: list[str]
    unknown_token_id: int = 1

    def get_vocabulary(self) -> list[str]:
        return self.vocabulary


def write(path: pathlib.Path, value: list[Any]) -> None:
    path.write_text(json.dumps(value))


if __name__ == "__main__":
    main()
