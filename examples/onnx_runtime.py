"""Decodes with ONNX Runtime, NumPy and sentencepiece, without Keras.

    keras-transformer export en-de.keras en-de-onnx --format onnx
    python examples/onnx_runtime.py en-de-onnx "a man sees two dogs"

A `Seq2Seq` translates the texts, and a `CausalLM` continues them. The search is that of
`generate(texts, GreedySearch())`: it chooses the most probable token at each step until
all outputs have ended.
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
# Greatest length of the continuation of a prompt.
NEW_TOKENS = 256


class Translator:
    """A model that `model.export(folder, format="onnx")` has written.

    Args:
        folder: the folder.
        threads: number of threads; 0 = one for each core.
    """

    def __init__(self, folder: pathlib.Path, threads: int = 0):
        self.config = json.loads((folder / "config.json").read_text("utf-8"))
        self.encoder = load(folder / "encoder.onnx", threads)
        self.step = load(folder / "decoder_step.onnx", threads)
        self.source, self.target = (
            tokenizer_of(folder, side) for side in ("source", "target")
        )

    def decode_texts(self, texts: list[str]) -> list[str]:
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
        layers = self.config["num_decoder_layers"]
        return state | empty_caches(self.config, layers, len(sources))


class LanguageModel:
    """A language model that `model.export(folder, format="onnx")` has written.

    Args:
        folder: the folder.
        threads: number of threads; 0 = one for each core.
    """

    def __init__(self, folder: pathlib.Path, threads: int = 0):
        self.config = json.loads((folder / "config.json").read_text("utf-8"))
        self.decoder = load(folder / "decoder.onnx", threads)
        self.tokenizer = tokenizer_of(folder, "tokenizer")

    def decode_texts(self, texts: list[str]) -> list[str]:
        """Continues texts. The first token of an empty text is the start token."""
        start, end = self.config["start_token_id"], self.config["end_token_id"]
        rows = [self.tokenizer.encode(text) for text in texts]
        always = self.config["add_start_token"]
        rows = [[start, *row] if always or not row else row for row in rows]
        outputs = self.decode(rows)
        return [
            self.tokenizer.decode([token for token in output if token != end])
            for output in outputs
        ]

    def decode(self, rows: list[list[int]]) -> list[list[int]]:
        """Continues token ids. Only an output that has ended has the end token."""
        pad, end = self.config["pad_token_id"], self.config["end_token_id"]
        lengths = np.array([len(row) for row in rows])
        limits = np.full(len(rows), NEW_TOKENS)
        if self.config["max_length"] is not None:  # The last token is not an input.
            limits = np.minimum(limits, self.config["max_length"] + 1 - lengths)
        tokens = np.full((len(rows), lengths.max()), pad, "int32")
        for prompt, row in zip(tokens, rows, strict=True):
            prompt[len(prompt) - len(row) :] = row  # after the padding
        mask = np.arange(lengths.max()) >= lengths.max() - lengths[:, None]
        state = empty_caches(self.config, self.config["num_layers"], len(rows))
        ended = np.zeros(len(rows), bool)
        outputs: list[list[int]] = [[] for _ in rows]
        for length in range(1, limits.max() + 1):
            inputs = {"token_ids": tokens, "attention_mask": mask, **state}
            logits = run(self.decoder, inputs, state)
            logits[:, pad] = -np.inf
            chosen = logits.argmax(axis=1)
            for output, token, done in zip(outputs, chosen, ended, strict=True):
                if not done:
                    output.append(int(token))
            ended |= (chosen == end) | (length >= limits)
            if ended.all():
                break
            tokens = chosen[:, None].astype("int32")
            mask = np.pad(mask, ((0, 0), (0, 1)), constant_values=True)
        return outputs


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
    """Returns the tokenizer of the `"source"`, the `"target"`, or `"tokenizer"`."""
    vocabulary = folder / f"{side}_vocabulary.json"
    if not vocabulary.exists():
        return Tokenizer(folder / f"{side}.model")
    names = json.loads(vocabulary.read_text("utf-8"))
    return MarianTokenizer(folder / f"{side}.model", names)


def load(file: pathlib.Path, threads: int) -> onnxruntime.InferenceSession:
    """Loads a graph."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(file, settings)


def empty_caches(config: dict, layers: int, batch: int) -> dict[str, np.ndarray]:
    """Returns the keys and values of the first step, of length 0."""
    heads = config["num_key_value_heads"]
    shapes = {
        "keys": (batch, heads, config["key_dim"], 0),
        "values": (batch, heads, 0, config["value_dim"]),
    }
    return {
        f"past_{name}_{i}": np.zeros(shape, "float32")
        for i in range(layers)
        for name, shape in shapes.items()
    }


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
    is_language_model = (options.folder / "decoder.onnx").exists()
    kind = LanguageModel if is_language_model else Translator
    for text in kind(options.folder, options.threads).decode_texts(options.texts):
        print(text)


if __name__ == "__main__":
    main()
