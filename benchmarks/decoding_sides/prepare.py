"""Writes the decoded model in all formats."""

import json
import pathlib
import tempfile

from training_sides.batches import VOCABULARY_SIZE, generate_corpus


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
