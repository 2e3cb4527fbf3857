import json
import pathlib
import runpy
import subprocess
import sys

import marian_folders
import numpy as np
import onnxruntime
import pytest

from keras_transformer import (
    Ensemble,
    GreedySearch,
    LocalWindow,
    RelativePositionBias,
    RotaryEmbedding,
    Seq2Seq,
    load_pretrained,
)
from keras_transformer.export import onnx
from keras_transformer.text import CharacterTokenizer, SentencePieceTokenizer

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "onnx_runtime.py"
SIZES = {"num_layers": 1, "hidden_dim": 12, "intermediate_dim": 7, "num_heads": 2}
LETTERS = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdefg"])
TEXTS = ["the dog sat", "", "the cat sat on the mat on the log"]

REFUSED = [
    ({"dtype": "mixed_bfloat16"}, "`dtype` must be 'float32' for ONNX; received"),
]

# Runs the example as a script, once for all texts and once for the first alone, and
# checks its imports.
RUN = """
import runpy, sys
path, folder, *texts = sys.argv[1:]
for chosen in (texts, texts[:1]):
    sys.argv[1:] = [folder, *chosen, "--threads", "1"]
    runpy.run_path(path, run_name="__main__")
assert not {"keras", "keras_transformer", "tensorflow"} & set(sys.modules)
"""


def with_random_weights(model):
    rng = np.random.default_rng(30)  # The outputs of all texts differ.
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model


@pytest.fixture(scope="module")
def model():
    lines = ["the cat sat on the mat", "the dog sat on the log"]
    return with_random_weights(
        Seq2Seq(
            **SIZES,
            source_tokenizer=SentencePieceTokenizer.train(
                lines=lines, vocabulary_size=30
            ),
            num_decoder_layers=2,
            positions=RotaryEmbedding(),
            normalize_first=True,
            attention_options={"use_gate": True},
            feed_forward_options={"gated": True},
            max_target_length=23,
        )
    )


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx") / "animals"
    model.export(folder, GreedySearch(), format="onnx", check_texts=TEXTS)
    return folder


@pytest.mark.slow
@pytest.mark.once
def test_outputs_of_the_example_equal_those_of_generate(model, folder):
    expected = model.generate(TEXTS, GreedySearch())
    assert len(set(expected)) == 3
    process = subprocess.run(
        [sys.executable, "-c", RUN, EXAMPLE, folder, *TEXTS],
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.split("\n") == [*expected, *expected[:1], ""]


@pytest.mark.slow
@pytest.mark.once
def test_the_example_reads_marian_tokenizers(tmp_path):
    """A multilingual model, whose texts begin with a language token."""
    marian_folders.trained_model(tmp_path / "opus", steps=40)
    model = load_pretrained(tmp_path / "opus")
    texts = [*marian_folders.SOURCES, ">>deu<< two cats", ">>deu<<", ">>deu<< ", "a ☃"]
    model.export(tmp_path / "onnx", GreedySearch(), format="onnx", check_texts=texts)
    expected = model.generate(texts, GreedySearch())
    assert expected[0] == marian_folders.TARGETS[0] and expected[5:7] == ["", ""]
    example = runpy.run_path(str(EXAMPLE))
    translator = example["Translator"](tmp_path / "onnx")
    assert translator.decode_texts(texts) == expected
    tokenizer = marian_folders.tokenizer_of(tmp_path / "opus")
    for text in texts:
        ids = [*translator.source.encode(text), tokenizer.eos_token_id]
        assert ids == tokenizer(text).input_ids
    with pytest.raises(ValueError, match="no language token >>fra<<"):
        translator.decode_texts([">>fra<< a cat"])


@pytest.mark.slow
@pytest.mark.once
def test_the_files_of_the_folder(model, folder):
    names = {"encoder.onnx", "decoder_step.onnx", "config.json"}
    assert {path.name for path in folder.iterdir()} == names | {
        "source.model",
        "target.model",
    }
    assert (folder / "source.model").read_bytes() == model.source_tokenizer.proto
    config = json.loads((folder / "config.json").read_text())
    assert config["end_token_id"] == 3 and config["max_target_length"] == 23
    assert config["value_dim"] == 6 and config["num_decoder_layers"] == 2
    session = onnxruntime.InferenceSession(folder / "decoder_step.onnx")
    inputs = {argument.name for argument in session.get_inputs()}
    kinds = [
        f"{part}_{kind}" for part in ("past", "source") for kind in ("keys", "values")
    ]
    assert inputs == {"token_ids", "encoder_token_ids"} | {
        f"{kind}_{i}" for kind in kinds for i in range(2)
    }


@pytest.mark.slow
@pytest.mark.once
def test_other_designs_and_tokenizers(tmp_path):
    model = with_random_weights(
        Seq2Seq(
            **SIZES,
            source_tokenizer=LETTERS,
            positions=RelativePositionBias(),
            tie_embeddings="none",
            attention_options={"pattern": LocalWindow(3), "num_key_value_heads": 1},
        )
    )
    model.export(tmp_path / "1", format="onnx", check_texts=["a", "badge", ""])
    loaded = CharacterTokenizer.load(tmp_path / "1" / "target.json")
    assert loaded.get_vocabulary() == LETTERS.get_vocabulary()


@pytest.mark.slow
@pytest.mark.once
def test_a_failed_check_leaves_nothing(model, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx, "_score", lambda _, sources, targets: len(sources) * [7])
    with pytest.raises(RuntimeError, match="log-probability of 7 after .*nothing was"):
        model.export(tmp_path / "1", GreedySearch(), format="onnx", check_texts=TEXTS)
    assert not list(tmp_path.iterdir())


@pytest.mark.once("torch")
def test_unsupported_models_are_refused(model, tmp_path):
    with pytest.raises(ValueError, match="for ONNX; .* `Ensemble`.*saved_model"):
        Ensemble([model]).export(tmp_path / "1", format="onnx")
    for options, message in REFUSED:
        other = Seq2Seq(**SIZES, source_tokenizer=LETTERS, **options)
        with pytest.raises(ValueError, match=message):
            other.export(tmp_path / "1", format="onnx")
    message = "`quantization` must not be given for `format='onnx'`"
    with pytest.raises(ValueError, match=message):
        model.export(tmp_path / "1", format="onnx", quantization="int8")
    assert not list(tmp_path.iterdir())
