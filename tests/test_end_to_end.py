"""The whole path at toy size, from lines of text to strings on every backend."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_transformer import (
    BeamSearch,
    CharacterTokenizer,
    LabelSmoothedCrossEntropy,
    MaskedTokenAccuracy,
    Seq2Seq,
    WarmupInverseSquareRoot,
    parallel_dataset,
)

ROOT = pathlib.Path(__file__).parents[1]
BACKENDS = ("jax", "tensorflow", "torch")
OTHERS = [backend for backend in BACKENDS if backend != keras.backend.backend()]
LETTERS = "abcde"
WORDS = ["".join(np.random.default_rng(i).choice(list(LETTERS), 4)) for i in range(331)]
UNSEEN = sorted({"abcd", "dcba", "bead", "edda", "caba", "decb"} - set(WORDS))
SEARCH = BeamSearch(num_beams=3)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The task: to spell words backwards."""
    source, target = (tmp_path_factory.mktemp("text") / name for name in ("in", "out"))
    source.write_text("".join(f"{word}\n" for word in WORDS), "utf-8")
    target.write_text("".join(f"{word[::-1]}\n" for word in WORDS), "utf-8")
    return source, target


@pytest.fixture(scope="module")
def model(files):
    keras.utils.set_random_seed(3)
    tokenizer = CharacterTokenizer.train(files)
    data = parallel_dataset(
        *files,
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        tokens_per_batch=331,
    )
    model = make_model(tokenizer)
    model.compile(
        optimizer=keras.optimizers.Adam(WarmupInverseSquareRoot(8e-3, 60)),
        loss=LabelSmoothedCrossEntropy(0.1),
        metrics=[MaskedTokenAccuracy()],
    )
    model.fit(data.dataset, epochs=40, shuffle=False, verbose=0)
    return model


def make_model(tokenizer, **options):
    return Seq2Seq(
        num_layers=1,
        hidden_dim=32,
        intermediate_dim=64,
        num_heads=2,
        normalize_first=True,
        dropout=0.0,
        max_source_length=11,
        source_tokenizer=tokenizer,
        **options,
    )


@pytest.fixture(scope="module")
def keras_file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "backwards.keras"
    model.save(path)
    return path


def inputs_of(model):
    tokenizer = model.source_tokenizer
    target = [word[::-1] for word in UNSEEN]
    return {
        "encoder_token_ids": tokenizer.tokenize(UNSEEN, add_end=True).numpy(),
        "decoder_token_ids": tokenizer.tokenize(target, add_start=True).numpy(),
    }


@pytest.mark.once("torch")
def test_learns_the_task(model):
    assert len(UNSEEN) >= 4
    assert model.generate(UNSEEN, SEARCH) == [word[::-1] for word in UNSEEN]


IN_ANOTHER_PROCESS = """
import json, sys
import keras
import numpy as np
import keras_transformer

path, inputs, texts = json.load(sys.stdin)
model = keras.saving.load_model(path)
inputs = {name: np.array(ids, "int32") for name, ids in inputs.items()}
logits = keras.ops.convert_to_numpy(model(inputs))
texts, scores = model.generate(
    texts, keras_transformer.BeamSearch(num_beams=3), return_scores=True
)
print(json.dumps([keras.backend.backend(), logits.tolist(), texts, scores.tolist()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", OTHERS)
def test_model_file_gives_the_same_on_every_backend(model, keras_file, backend):
    inputs = inputs_of(model)
    settings = [
        str(keras_file),
        {name: ids.tolist() for name, ids in inputs.items()},
        [*UNSEEN, ""],
    ]
    process = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS],
        input=json.dumps(settings),
        env={**os.environ, "KERAS_BACKEND": backend},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    used, logits, texts, scores = json.loads(process.stdout.splitlines()[-1])
    expected_texts, expected_scores = model.generate(
        [*UNSEEN, ""], SEARCH, return_scores=True
    )
    assert used == backend
    assert texts == expected_texts
    np.testing.assert_allclose(scores, expected_scores, atol=1e-4)
    np.testing.assert_allclose(
        logits, keras.ops.convert_to_numpy(model(inputs)), rtol=1e-4, atol=1e-4
    )


@pytest.mark.slow
@pytest.mark.once
def test_saved_model_gives_the_same_strings(model, tmp_path):
    import tensorflow as tf

    model.export(tmp_path / "1", SEARCH, check_texts=UNSEEN)
    serve = tf.saved_model.load(tmp_path / "1").signatures["serving_default"]
    served = serve(text=tf.constant([*UNSEEN, ""]))["text"].numpy()
    assert [text.decode() for text in served] == model.generate([*UNSEEN, ""], SEARCH)


# Errors a user will make: each names the argument and the remedy.


def dataset_of(source, target):
    tokenizer = CharacterTokenizer.train(lines=[LETTERS])
    return parallel_dataset(
        source, target, source_tokenizer=tokenizer, target_tokenizer=tokenizer
    )


@pytest.mark.once("torch")
def test_width_that_heads_do_not_divide():
    with pytest.raises(ValueError, match=r"`hidden_dim` must be .*`num_heads`.*; rec"):
        Seq2Seq(
            num_layers=1,
            hidden_dim=14,
            intermediate_dim=7,
            num_heads=5,
            vocabulary_size=11,
        )


@pytest.mark.once("torch")
def test_files_of_unequal_length(files, tmp_path):
    shorter = tmp_path / "shorter"
    shorter.write_text("a\nb\n", "utf-8")
    with pytest.raises(
        ValueError,
        match=r"`source` and `target` must have the same number of lines; received "
        r"331 in .*in` and 2 in .*shorter`\. Line n of one must translate line n",
    ):
        dataset_of(files[0], shorter)


@pytest.mark.once("torch")
def test_empty_file(files, tmp_path):
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(ValueError, match=r"must contain lines; `.*empty` is empty"):
        dataset_of(files[0], empty)
    with pytest.raises(ValueError, match=r"must contain lines; `.*empty` is empty"):
        CharacterTokenizer.train(empty)


@pytest.mark.once("torch")
def test_invalid_utf8(files, tmp_path):
    latin = tmp_path / "latin"
    latin.write_bytes(files[0].read_bytes().replace(b"\n", b"\n\xe9", 2))
    with pytest.raises(
        ValueError,
        match=r"must be valid UTF-8; line 2 of `.*latin` is not .*Convert the file",
    ):
        dataset_of(latin, files[1])


@pytest.mark.once("torch")
@pytest.mark.parametrize("token_id", [-1, 9])
def test_token_id_outside_the_vocabulary(token_id):
    model = make_model(CharacterTokenizer.train(lines=[LETTERS]))
    with pytest.raises(
        ValueError,
        match=rf"`inputs` must have token ids from 0 to 8 .* \[{token_id}\] in row 1",
    ):
        model.generate([[4, 3], [token_id, 3]])


@pytest.mark.once("torch")
def test_source_that_is_too_long():
    model = make_model(CharacterTokenizer.train(lines=[LETTERS]))
    with pytest.raises(
        ValueError,
        match=r"at most `max_source_length=11` tokens .*12 tokens in row 1\. Shorten",
    ):
        model.generate(["ab", "abcdeabcdea"])


@pytest.mark.once("torch")
def test_truncated_model_file(keras_file, tmp_path):
    part = tmp_path / "part.keras"
    content = keras_file.read_bytes()
    part.write_bytes(content[: len(content) // 2])
    with pytest.raises(
        ValueError, match=r"filepath=.*part\.keras.*[Ee]nsure .*`\.keras` zip file"
    ):
        keras.saving.load_model(part)


@pytest.mark.once("torch")
def test_export_to_a_folder_that_is_not_empty(tmp_path):
    model = make_model(CharacterTokenizer.train(lines=[LETTERS]))
    kept = tmp_path / "kept"
    kept.touch()
    with pytest.raises(
        FileExistsError,
        match=r"`filepath` must be a new or an empty folder; .*Choose the next",
    ):
        model.export(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]
