"""Translates with ONNX Runtime, NumPy and sentencepiece, without Keras.

    keras-transformer export en-de.keras en-de-onnx --format onnx
    python examples/onnx_runtime.py en-de-onnx "a man sees two dogs"

The search is that of `generate(texts, GreedySearch())`: it chooses the most probable
token at each step until all outputs have ended.
"""

import argparse
import json
import pathlib
import re
from collections.abc import Sequence

import numpy as np
import onnxruntime
import sentencepiece

# Greatest length of an output beyond the length of its source.
EXTRA_LENGTH = 50


class Translator:
    """A model that `model.export(folder, format="onnx")` has written.

    Args:
        folder: the folder.
        threads: number of threads; 0 = one for each core.
    """

    def __init__(self, folder: pathlib.Path, threads: int = 0):
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        self.config = json.loads((folder / "config.json").read_text("utf-8"))
        self.encoder, self.step = (
            onnxruntime.InferenceSession(folder / name, settings)
            for name in ("encoder.onnx", "decoder_step.onnx")
        )
        self.source, self.target = (
            tokenizer_of(folder, side) for side in ("source", "target")
        )

    def translate(self, texts: list[str]) -> list[str]:
        """Translates texts. The translation of a text without words is empty."""
        rows = [self.source.encode(text) for text in texts]
        found = self.decode([[*row, self.config["end_token_id"]] for row in rows])
        return [
            self.target.decode(output[:-1]) if self.source.has_words(row) else ""
            for row, output in zip(rows, found, strict=True)
        ]

    def decode(self, rows: list[list[int]]) -> list[list[int]]:
        """Decodes token ids. Inputs and outputs include the end token."""
        pad, end = self.config["pad_token_id"], self.config["end_token_id"]
        lengths = np.array([len(row) for row in rows])
        limits = lengths + EXTRA_LENGTH
        if self.config["max_target_length"] is not None:
            limits = np.minimum(limits, self.config["max_target_length"])
        sources = np.full((len(rows), lengths.max()), pad, "int32")
        for source, row in zip(sources, rows, strict=True):
            source[: len(row)] = row
        state = self.start(sources)
        tokens = np.full((len(rows), 1), self.config["start_token_id"], "int32")
        ended = np.zeros(len(rows), bool)
        outputs: list[list[int]] = [[] for _ in rows]
        for length in range(1, limits.max() + 1):
            logits = run(self.step, {"token_ids": tokens, **state}, state)
            logits[:, pad] = -np.inf
            chosen = np.where(length >= limits, end, logits.argmax(axis=1))
            for output, token, done in zip(outputs, chosen, ended, strict=True):
                if not done:
                    output.append(int(token))
            ended |= chosen == end
            if ended.all():
                break
            tokens = chosen[:, None].astype("int32")
        return outputs

    def start(self, sources: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the inputs of the first step, without the start token."""
        state = {"encoder_token_ids": sources}
        names = [output.name for output in self.encoder.get_outputs()]
        state |= zip(names, self.encoder.run(names, state), strict=True)
        batch, heads = len(sources), self.config["num_key_value_heads"]
        for i in range(self.config["num_decoder_layers"]):
            keys = (batch, heads, self.config["key_dim"], 0)
            values = (batch, heads, 0, self.config["value_dim"])
            state[f"past_keys_{i}"] = np.zeros(keys, "float32")
            state[f"past_values_{i}"] = np.zeros(values, "float32")
        return state


class Tokenizer:
    """The tokenizer of a model that this library has trained."""

    def __init__(self, file: pathlib.Path):
        self.pieces = sentencepiece.SentencePieceProcessor(model_file=str(file))

    def encode(self, text: str) -> list[int]:
        """Converts a text to token ids."""
        return self.pieces.encode(text)

    def decode(self, token_ids: list[int]) -> str:
        """Converts token ids to a text."""
        return self.pieces.decode(token_ids)

    def has_words(self, token_ids: list[int]) -> bool:
        """Tells whether a text is not blank."""
        return bool(token_ids)


class MarianTokenizer(Tokenizer):
    """The tokenizer of a Marian model: pieces, whose ids are in a vocabulary.

    A text for a multilingual model begins with a token such as `>>deu<<`.
    """

    def __init__(self, file: pathlib.Path, vocabulary: list[str]):
        super().__init__(file)
        self.vocabulary = vocabulary
        special = {"<pad>", "<unk>", "</s>"}
        self.ids = {t: id for id, t in enumerate(vocabulary) if t not in special}
        self.unknown = vocabulary.index("<unk>")

    def encode(self, text: str) -> list[int]:
        begin = re.match(r"(?s)>>.*?<<", text)
        language = begin.group() if begin else ""
        words = text[len(language) :]
        if language and language not in self.ids:
            raise ValueError(f"the model has no language token {language}")
        tokens = [language] if language else []
        tokens += self.pieces.encode(words, out_type=str)
        return [self.ids.get(token, self.unknown) for token in tokens]

    def decode(self, token_ids: list[int]) -> str:
        tokens = [self.vocabulary[id] for id in token_ids if id != self.unknown]
        return self.pieces.decode(tokens).replace("▁", " ").strip()

    def has_words(self, token_ids: list[int]) -> bool:
        return any(not self.vocabulary[id].startswith(">>") for id in token_ids)


def tokenizer_of(folder: pathlib.Path, side: str) -> Tokenizer:
    """Returns the tokenizer of the source or the target."""
    vocabulary = folder / f"{side}_vocabulary.json"
    if not vocabulary.exists():
        return Tokenizer(folder / f"{side}.model")
    names = json.loads(vocabulary.read_text("utf-8"))
    return MarianTokenizer(folder / f"{side}.model", names)


def run(
    step: onnxruntime.InferenceSession,
    inputs: dict[str, np.ndarray],
    state: dict[str, np.ndarray],
) -> np.ndarray:
    """Runs a step, updates the state and returns the logits of the next tokens."""
    names = [output.name for output in step.get_outputs()]
    outputs = dict(zip(names, step.run(names, inputs), strict=True))
    logits = outputs.pop("logits")
    state.update({f"past_{name}": value for name, value in outputs.items()})
    return logits


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("texts", nargs="+", metavar="text")
    parser.add_argument("--threads", type=int, default=0, help="0 = one for each core")
    options = parser.parse_args(arguments)
    translator = Translator(options.folder, options.threads)
    for text in translator.translate(options.texts):
        print(text)


if __name__ == "__main__":
    main()
