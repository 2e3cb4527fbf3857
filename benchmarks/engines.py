r"""Compares `generate` with CTranslate2 and SavedModels on a trained model and a text.

All engines search with the same number of beams and without a length penalty, in
batches of 64 texts of similar length, tokenization included. CTranslate2 computes in
float32 and int8, TensorFlow in float32 with weights in float32, float16 and int8.

The engines are timed in turns, after all shapes have been compiled. "Equal" is the
share of texts that equal those of `generate`. "Difference" is the largest difference of
the log-probabilities of the references.

    python benchmarks/engines.py --model en-de.keras --source test.en \
        --target test.de --lowercase
"""

import argparse
import functools
import pathlib
import statistics
import tempfile
from typing import Any

import keras
import numpy as np
from measuring import environment, in_turns, print_header, print_row

from keras_transformer import evaluation
from keras_transformer.decoding.generation_options import search_from_options
from keras_transformer.keras_engine import KerasEngine
from keras_transformer.text import read_lines
from keras_transformer_runtime.engines.ctranslate2_engine import CTranslate2Engine
from keras_transformer_runtime.engines.engine import Engine
from keras_transformer_runtime.engines.generation_options import GenerationOptions
from keras_transformer_runtime.engines.saved_model_engine import SavedModelEngine

FORMATS = {
    "SavedModel": ("saved_model", SavedModelEngine, (None, "float16", "int8")),
    # A CPU computes float16 in float32.
    "CTranslate2": ("ctranslate2", CTranslate2Engine, (None, "int8")),
}


def exported(model: Any, options: GenerationOptions, folder: str) -> dict[str, Engine]:
    """Exports a model in each format, and loads it with its engine."""
    engines = {}
    for name, (format, engine, quantizations) in FORMATS.items():
        for quantization in quantizations:
            path = f"{folder}/{name}-{quantization}"
            model.export(
                path,
                search_from_options(options),
                format=format,
                quantization=quantization,
                max_length=options.max_length,
            )
            engines[f"{name} {quantization or 'float32'}"] = engine.load(path)
    return engines


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
    given = parser.parse_args()
    print(f"{environment()}; {keras.backend.backend()}\n")
    model: Any = keras.saving.load_model(given.model, compile=False)
    texts, references = (
        [line.lower() if given.lowercase else line for line in read_lines(path)]
        for path in (given.source, given.target)
    )
    options = GenerationOptions(
        num_beams=given.num_beams, length_penalty=0.0, max_length=given.max_length
    )
    with tempfile.TemporaryDirectory() as folder:
        engines: dict[str, Engine] = {
            "generate": KerasEngine(model, pathlib.Path(given.model)),
            **exported(model, options, folder),
        }
        outputs = {
            name: [best.text for best, *_ in engine.generate(texts, options)]
            for name, engine in engines.items()
        }
        scores = {
            name: np.array([x.log_probability for x in engine.score(texts, references)])
            for name, engine in engines.items()
        }
        calls = {
            name: functools.partial(engine.generate, texts, options)
            for name, engine in engines.items()
        }
        taken = in_turns(calls, given.repeats, warmups=0)
    print_header("", "sentences/s", "equal", "BLEU", "difference")
    for name, found in outputs.items():
        equal = [a == b for a, b in zip(found, outputs["generate"], strict=True)]
        print_row(
            name,
            f"{len(texts) / statistics.median(taken[name]):.0f}",
            f"{np.mean(equal):.1%}",
            f"{evaluation.bleu(found, references, given.lowercase).score:.2f}",
            f"{np.abs(scores[name] - scores['generate']).max():.2g}",
        )


if __name__ == "__main__":
    main()
