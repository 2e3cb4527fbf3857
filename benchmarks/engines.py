r"""Compares `generate` with CTranslate2 and SavedModels on a trained model and a text.

All engines search with the same number of beams and without a length penalty, so that
their searches are equivalent, in batches of 64 sorted by length. CTranslate2 runs the
exported model in float32 and int8, TensorFlow the SavedModel in float32, float16 and
int8.

Sentences per second include the tokenization, in CTranslate2 with the package
sentencepiece. The engines are timed in turns, after all shapes have been compiled.
"Equal" is the share of texts that equal those of `generate`. "Difference" is the
largest difference of the log-probabilities of the references.

    python benchmarks/engines.py --model en-de.keras --source test.en \
        --target test.de --lowercase
"""

import argparse
import functools
import os
import statistics
import tempfile
from typing import Any

import ctranslate2
import keras
import numpy as np
import sentencepiece
import tensorflow as tf
from measuring import environment, in_turns, print_header, print_row

from keras_transformer import BeamSearch, Seq2Seq, evaluation
from keras_transformer.text import read_lines

BATCH_SIZE = 64
QUANTIZATIONS = {"float32": None, "float16": "float16", "int8": "int8"}


class SavedModel:
    """Decodes with a SavedModel, in batches of texts of similar length."""

    def __init__(self, model: Seq2Seq, folder: str, quantization: str | None, **limits):
        search = BeamSearch(limits["num_beams"], length_penalty=0)
        options = {"max_length": limits["max_length"], "quantization": quantization}
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

    def __init__(self, model: Seq2Seq, folder: str, quantization: str | None, **limits):
        model.export(folder, format="ctranslate2", quantization=quantization)
        self.limits = limits
        self.translator = ctranslate2.Translator(folder, intra_threads=os.cpu_count())
        self.source_pieces, self.target_pieces = (
            sentencepiece.SentencePieceProcessor(model_proto=tokenizer.proto)
            for tokenizer in (model.source_tokenizer, model.target_tokenizer)
        )

    def translate(self, texts: list[str]) -> list[str]:
        """Returns the best hypotheses."""
        results = self.translator.translate_batch(
            self.source_pieces.encode(texts, out_type=str),
            beam_size=self.limits["num_beams"],
            length_penalty=0,
            min_decoding_length=0,
            max_decoding_length=self.limits["max_length"],
            max_batch_size=BATCH_SIZE,
        )
        return self.target_pieces.decode([found.hypotheses[0] for found in results])

    def score(self, sources: list[str], targets: list[str]) -> np.ndarray:
        """Returns the log-probabilities of the targets."""
        results = self.translator.score_batch(
            self.source_pieces.encode(sources, out_type=str),
            self.target_pieces.encode(targets, out_type=str),
            max_batch_size=BATCH_SIZE,
        )
        return np.array([sum(result.log_probs) for result in results])


def main() -> None:
    """Prints a row for each engine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, metavar="FILE", help="a .keras file")
    parser.add_argument("--source", required=True, metavar="FILE")
    parser.add_argument("--target", required=True, metavar="FILE", help="references")
    parser.add_argument("--lowercase", action="store_true", help="ignore case")
    parser.add_argument("--num-beams", type=int, default=5, metavar="N")
    parser.add_argument("--max-length", type=int, default=100, metavar="N")
    parser.add_argument(
        "--repeats", type=int, default=3, help="timed runs of each engine"
    )
    options = parser.parse_args()
    print(f"{environment()}; {keras.backend.backend()}\n")
    model: Any = keras.saving.load_model(options.model, compile=False)
    texts, references = (
        [line.lower() if options.lowercase else line for line in read_lines(path)]
        for path in (options.source, options.target)
    )
    limits = {"num_beams": options.num_beams, "max_length": options.max_length}
    search = BeamSearch(options.num_beams, length_penalty=0)
    translators = {
        "generate": functools.partial(
            model.generate,
            search=search,
            max_length=options.max_length,
            batch_size=BATCH_SIZE,
        )
    }
    differences = {}
    scores = model.score(texts, references).scores
    with tempfile.TemporaryDirectory() as folder:
        for engine in SavedModel, CTranslate2:
            for form, quantization in QUANTIZATIONS.items():
                if engine is CTranslate2 and form == "float16":
                    continue  # A CPU computes it in float32.
                name = f"{engine.__name__} {form}"
                side = engine(model, f"{folder}/{name}", quantization, **limits)
                translators[name] = side.translate
                if engine is CTranslate2:
                    theirs = side.score(texts, references)
                    differences[name] = f"{np.abs(theirs - scores).max():.2g}"
        outputs = {name: call(texts) for name, call in translators.items()}
        calls = {n: functools.partial(c, texts) for n, c in translators.items()}
        taken = in_turns(calls, options.repeats, warmups=0)
    print_header("", "sentences/s", "equal", "BLEU", "difference")
    for name, found in outputs.items():
        equal = [a == b for a, b in zip(found, outputs["generate"], strict=True)]
        print_row(
            name,
            f"{len(texts) / statistics.median(taken[name]):.0f}",
            f"{np.mean(equal):.1%}",
            f"{evaluation.bleu(found, references, options.lowercase).score:.2f}",
            differences.get(name, ""),
        )


if __name__ == "__main__":
    main()
