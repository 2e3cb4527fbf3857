"""Writes the decoded model in all formats."""

import importlib.util
import json
import pathlib
import tempfile
from typing import NamedTuple

import numpy as np
from training_sides.batches import VOCABULARY_SIZE, generate_corpus

from decoding_sides.setting import END


def prepare(
    folder: str,
    size: str,
    beams: list[int],
    length: int,
    files: list[str] | None,
    source: str | None,
    count: int,
) -> None:
    """Writes texts, token ids, vocabulary and models to a folder.

    `files` are the text of the vocabulary, `source` is the text to decode.
    """
    import keras

    import keras_transformer as kt
    from decoding_sides.ours import make_search

    path = pathlib.Path(folder)
    with tempfile.TemporaryDirectory() as generated:
        files = files or generate_corpus(pathlib.Path(generated))
        tokenizer = kt.SentencePieceTokenizer.train(
            files, VOCABULARY_SIZE, lowercase=True
        )
        lines = pathlib.Path(source or files[0]).read_text("utf-8").splitlines()
    texts = lines[:count]
    rows = tokenizer.tokenize(texts, add_end=True).to_list()
    (path / "texts.json").write_text(json.dumps(texts))
    (path / "rows.json").write_text(json.dumps(rows))
    (path / "vocabulary.json").write_text(json.dumps(tokenizer.get_vocabulary()))
    keras.utils.set_random_seed(1)
    model = kt.Seq2Seq.from_preset(
        f"transformer_{size}", source_tokenizer=tokenizer, normalize_first=True
    )
    model.save(path / "model.keras")
    model.export(path / "float32", format="ctranslate2")
    model.export(path / "int8", format="ctranslate2", quantization="int8")
    for num_beams in beams:
        model.export(
            path / f"saved_model-{num_beams}",
            make_search(num_beams),
            max_length=length,
            min_length=length,
            check_texts=texts[:2],
        )


def prepare_random(folder: str, size: str, dtype: str, length: int, count: int) -> None:
    """Writes random token ids, numbers for a vocabulary and a model to a folder.

    The sources have the length of the outputs or up to a half less.
    """
    import keras

    import keras_transformer as kt

    path, rng = pathlib.Path(folder), np.random.default_rng(0)
    rows = [
        [*rng.integers(4, VOCABULARY_SIZE, number - 1).tolist(), END]
        for number in rng.integers(length // 2, length + 1, count)
    ]
    (path / "rows.json").write_text(json.dumps(rows))
    vocabulary = [str(number) for number in range(VOCABULARY_SIZE)]
    (path / "vocabulary.json").write_text(json.dumps(vocabulary))
    keras.utils.set_random_seed(1)

    def make_model(dtype: str) -> kt.Seq2Seq:
        return kt.Seq2Seq.from_preset(
            f"transformer_{size}",
            vocabulary_size=VOCABULARY_SIZE,
            normalize_first=True,
            dtype=dtype,
        )

    make_model(dtype).save(path / "model.keras")
    if importlib.util.find_spec("ctranslate2") is None:
        return
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
