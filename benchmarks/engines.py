r"""Compares `generate` with CTranslate2 and SavedModels on a trained model and a text.

All engines search with the same number of beams and without a length penalty, so that
their searches are equivalent, in batches of 64 sorted by length. At `--max-length`
tokens, `generate` adds the end token and CTranslate2 does not. CTranslate2 runs the
exported model in float32 and int8, TensorFlow the SavedModel in float32, float16 and
int8.

Sentences per second include the tokenization, in CTranslate2 with the package
sentencepiece. The engines are timed in turns, after all shapes have been compiled.
"Same" is the share of sentences with the tokens of `generate` (for a SavedModel, with
its texts). The differences are the largest differences of log-probabilities, of
hypotheses that have ended and of the references.

The benchmark then prints the hypotheses of CTranslate2 in float32 that differ, with the
log-probabilities of both by `Seq2Seq.score`. They are equal for ties; a search error
has the lower one.

    python benchmarks/engines.py --model en-de.keras --source test.en \
        --target test.de --lowercase
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from typing import Any

import ctranslate2
import keras
import numpy as np
import sentencepiece
import tensorflow as tf

from keras_transformer import BeamSearch, Seq2Seq, evaluation
from keras_transformer.text import read_lines

BATCH_SIZE = 64
QUANTIZATIONS = {"float32": None, "int8": "int8"}
SAVED_MODELS = {
    "SavedModel": None,
    "SavedModel float16": "float16",
    "SavedModel int8": "int8",
}
COLUMNS = {
    "sentences_a_second": "sentences/s",
    "bleu": "BLEU",
    "same": "same %",
    "difference": "difference",
    "reference_difference": "of references",
}


class Generate:
    """Decodes with the model."""

    def __init__(self, model: Seq2Seq, num_beams: int, max_length: int):
        self.model = model
        self.search = BeamSearch(num_beams, length_penalty=0)
        self.max_length = max_length

    def search_all(self, sources: list[list[int]]) -> tuple[list[list[int]], Any]:
        """Returns the best hypotheses, without end tokens, and their scores."""
        result = self.model.generate(sources, self.search, self.max_length, BATCH_SIZE)
        best = zip(result.token_ids[:, 0], result.lengths[:, 0], strict=True)
        rows = [row[: length - 1].tolist() for row, length in best]
        return rows, result.scores[:, 0]

    def score_all(self, sources: list[list[int]], targets: list[list[int]]) -> Any:
        """Returns the log-probabilities of the targets."""
        return self.model.score(sources, targets).scores

    def translate(self, texts: list[str]) -> list[str]:
        """Returns the best hypotheses."""
        return self.model.generate(texts, self.search, self.max_length, BATCH_SIZE)


class SavedModel:
    """Decodes with a SavedModel, in batches of texts of similar length."""

    def __init__(
        self,
        model: Seq2Seq,
        num_beams: int,
        max_length: int,
        folder: str,
        quantization: str | None,
    ):
        search = BeamSearch(num_beams, length_penalty=0)
        options = {"max_length": max_length, "quantization": quantization}
        model.export(folder, search, **options)
        self.loaded = tf.saved_model.load(folder)

    def translate(self, texts: list[str]) -> list[str]:
        """Returns the best hypotheses."""
        serve = self.loaded.signatures["serving_default"]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        outputs = [""] * len(texts)
        for start in range(0, len(texts), BATCH_SIZE):
            chosen = order[start : start + BATCH_SIZE]
            found = serve(text=tf.constant([texts[i] for i in chosen]))["text"].numpy()
            for i, output in zip(chosen, found, strict=True):
                outputs[i] = output.decode()
        return outputs


class CTranslate2:
    """Decodes with CTranslate2."""

    def __init__(
        self,
        model: Seq2Seq,
        num_beams: int,
        max_length: int,
        folder: str,
        quantization: str | None,
    ):
        model.export(folder, format="ctranslate2", quantization=quantization)
        self.num_beams = num_beams
        self.max_length = max_length
        self.translator = ctranslate2.Translator(folder, intra_threads=os.cpu_count())
        self.source_tokens = model.source_tokenizer.get_vocabulary()
        self.target_tokens = model.target_tokenizer.get_vocabulary()
        self.target_ids = {token: row for row, token in enumerate(self.target_tokens)}
        self.source_pieces, self.target_pieces = (
            sentencepiece.SentencePieceProcessor(model_proto=tokenizer.proto)
            for tokenizer in (model.source_tokenizer, model.target_tokenizer)
        )

    def search_all(self, sources: list[list[int]]) -> tuple[list[list[int]], Any]:
        """Returns the best hypotheses, without end tokens, and their scores."""
        rows = [[self.source_tokens[i] for i in row[:-1]] for row in sources]
        results = self._search(rows)
        best = [result.hypotheses[0][: self.max_length - 1] for result in results]
        rows = [[self.target_ids[token] for token in tokens] for tokens in best]
        return rows, np.array([result.scores[0] for result in results])

    def translate(self, texts: list[str]) -> list[str]:
        """Returns the best hypotheses."""
        results = self._search(self.source_pieces.encode(texts, out_type=str))
        return self.target_pieces.decode([found.hypotheses[0] for found in results])

    def _search(self, rows: list[list[str]]) -> Any:
        return self.translator.translate_batch(
            rows,
            beam_size=self.num_beams,
            length_penalty=0,
            min_decoding_length=0,
            max_decoding_length=self.max_length,
            max_batch_size=BATCH_SIZE,
            return_scores=True,
        )

    def score_all(self, sources: list[list[int]], targets: list[list[int]]) -> Any:
        """Returns the log-probabilities of the targets."""
        results = self.translator.score_batch(
            [[self.source_tokens[i] for i in row[:-1]] for row in sources],
            [[self.target_tokens[i] for i in row[:-1]] for row in targets],
            max_batch_size=BATCH_SIZE,
        )
        return np.array([sum(result.log_probs) for result in results])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", metavar="FILE", help="a .keras file")
    parser.add_argument("--source", metavar="FILE")
    parser.add_argument("--target", metavar="FILE", help="the references")
    parser.add_argument("--lowercase", action="store_true", help="ignore case")
    parser.add_argument("--num-beams", type=int, default=5, metavar="N")
    parser.add_argument("--max-length", type=int, default=100, metavar="N")
    parser.add_argument(
        "--repeats", type=int, default=3, help="timed runs of each engine"
    )
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if None in (options.model, options.source, options.target):
        print("Nothing to compare: give --model, --source and --target.")
        return
    rows = compare(options)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Prints the table and the hypotheses that differ; returns the rows."""
    model: Any = keras.saving.load_model(options.model, compile=False)
    texts, references = (
        [line.lower() if options.lowercase else line for line in read_lines(path)]
        for path in (options.source, options.target)
    )
    sources = model.source_tokenizer.tokenize(texts, add_end=True).to_list()
    targets = model.target_tokenizer.tokenize(references, add_end=True).to_list()
    with tempfile.TemporaryDirectory() as folder:
        limits = options.num_beams, options.max_length
        sides: dict[str, Any] = {"generate": Generate(model, *limits)}
        for name, quantization in QUANTIZATIONS.items():
            path = f"{folder}/{name}"
            sides[name] = CTranslate2(model, *limits, path, quantization)
        found = {name: side.search_all(sources) for name, side in sides.items()}
        scores = {n: side.score_all(sources, targets) for n, side in sides.items()}
        for name, quantization in SAVED_MODELS.items():
            path = f"{folder}/{name}"
            sides[name] = SavedModel(model, *limits, path, quantization)
        served = {name: sides[name].translate(texts) for name in SAVED_MODELS}
        seconds = time_in_turns(sides, texts, options.repeats)
    rows = []
    wanted, wanted_scores = found["generate"]
    print(f"{'side':20}" + "".join(f"{title:>15}" for title in COLUMNS.values()))
    for name, (given, given_scores) in found.items():
        same = np.array([a == b for a, b in zip(given, wanted, strict=True)])
        ended = np.array([len(row) < options.max_length - 1 for row in wanted])
        outputs = to_texts(model, given)
        row = {
            "side": name,
            "sentences_a_second": len(sources) / seconds[name],
            "bleu": evaluation.bleu(outputs, references, options.lowercase).score,
            "same": 100 * same.mean(),
            "difference": np.abs(given_scores - wanted_scores)[same & ended].max(),
            "reference_difference": np.abs(scores[name] - scores["generate"]).max(),
        }
        rows.append({key: v if key == "side" else float(v) for key, v in row.items()})
        print(f"{name:20}" + "".join(f"{row[key]:15.6g}" for key in COLUMNS))
    wanted_texts = to_texts(model, wanted)
    for name, outputs in served.items():
        same = np.array([a == b for a, b in zip(outputs, wanted_texts, strict=True)])
        row = {
            "side": name,
            "sentences_a_second": len(sources) / seconds[name],
            "bleu": evaluation.bleu(outputs, references, options.lowercase).score,
            "same": float(100 * same.mean()),
        }
        rows.append(row)
        print(f"{name:20}" + "".join(f"{row[key]:15.6g}" for key in list(row)[1:]))
    show_differences(model, sources, wanted, found["float32"][0])
    return rows


def time_in_turns(
    sides: dict[str, Any], texts: list[str], repeats: int
) -> dict[str, float]:
    """Returns the median seconds of each engine for all texts."""
    for side in sides.values():
        side.translate(texts)
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _, (name, side) in itertools.product(range(repeats), sides.items()):
        start = time.perf_counter()
        side.translate(texts)
        taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def to_texts(model: Any, rows: list[list[int]]) -> list[str]:
    longest = max(map(len, rows))
    padded = [row + [model.pad_token_id] * (longest - len(row)) for row in rows]
    return [text.decode() for text in model.target_tokenizer.detokenize(padded).numpy()]


def show_differences(
    model: Any,
    sources: list[list[int]],
    wanted: list[list[int]],
    given: list[list[int]],
) -> None:
    """Prints both hypotheses of each sentence whose hypotheses differ."""
    numbers = [i for i, row in enumerate(wanted) if row != given[i]]
    if not numbers:
        return
    chosen = [sources[i] for i in numbers]
    for name, rows in {"generate": wanted, "float32": given}.items():
        ended = [[*rows[i], model.end_token_id] for i in numbers]
        scores = model.score(chosen, ended).scores
        texts = to_texts(model, ended)
        for number, score, text in zip(numbers, scores, texts, strict=True):
            print(f"{name:10}{number + 1:6}{score:12.5f}  {text}")


if __name__ == "__main__":
    main()
