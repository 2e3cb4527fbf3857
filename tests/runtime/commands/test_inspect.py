"""The command `inspect` on each kind of file and folder."""

import json
import pathlib
import re

import keras
import marian_folders
import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from keras_transformer import (
    CausalLM,
    Checkpoints,
    GreedySearch,
    Seq2Seq,
)
from keras_transformer.recipe import Figures
from keras_transformer.text import CharacterTokenizer, SentencePieceTokenizer
from keras_transformer_runtime.command import make_app
from keras_transformer_runtime.runs.recipe import PlannedRecipe

pytestmark = pytest.mark.once("torch")

LINES = ["a small toy", "two toys", "a boat"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of all files that the tests describe."""
    folder = tmp_path_factory.mktemp("inspect")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module", autouse=True)
def model(folder):
    model = Seq2Seq(
        num_layers=2,
        num_decoder_layers=1,
        hidden_dim=6,
        intermediate_dim=7,
        num_heads=3,
        source_tokenizer=CharacterTokenizer.train(lines=LINES),
    )
    model.save("model.keras")
    model.save_weights("model.weights.h5")
    model.save_to_preset("preset")
    model.source_tokenizer.save("tokenizer.json")
    return model


@pytest.fixture(scope="module", autouse=True)
def checkpoints(folder):
    """Two checkpoints of a run of a small model of Keras."""
    run = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(5)])
    run.compile("sgd", "mse")
    x, y = np.ones((2, 3), "float32"), np.ones((2, 5), "float32")
    callbacks = [Checkpoints("runs/stopped/checkpoints", callbacks=[])]
    run.fit(x, y, epochs=2, verbose=0, callbacks=callbacks)
    return sorted(folder.glob("runs/stopped/checkpoints/*.npz"))


HISTORY = "epoch,loss,val_loss,val_bleu\n1,3.25,3.5,21.5\n2,3.125,3.75,20.25\n"


def write_run(path, saved=None, history=HISTORY, **options):
    values = {
        **{"train": ["a.en", "a.de"], "valid": ["b.tsv"], "output": path, "epochs": 7},
        **{"dropout": 0.3, "tokens_per_batch": 4096, "learning_rate": 4e-3},
        **{"warmup_steps": 2000, "cooldown": 1, "average": 1, "save_every": 500},
        "metric": "bleu",
        **options,
    }
    recipe = PlannedRecipe.of(values)
    output = pathlib.Path(path)
    output.mkdir(parents=True, exist_ok=True)
    (output / "options.toml").write_text(recipe.to_toml())
    (output / "history.csv").write_text(history)
    if saved is not None:
        saved.save(output / "model.keras")
        scores = [41.5, "case:lc", 65.25, "nc:6", {"0.6": 43.0}, 12.5, 35.5, 21.25]
        weights = "mean of epochs 3 to 7"
        figures = Figures(1234, 0.6, *scores, "bleu", weights, {weights: 43.0})
        figures.write(output / "figures.json")


def inspect(path):
    """Returns the facts by name, the lines of each joined by spaces."""
    result = CliRunner().invoke(make_app(), ["inspect", str(path)])
    assert result.exit_code == 0, result.exception
    facts, last = {}, ""
    for line in result.output.splitlines():
        name, value = re.fullmatch(r"((?:\S+ )*\S+)? +(\S.*)", line).groups()
        last = name or last
        assert len(line) <= 80 or last == "next"
        facts[last] = f"{facts[last]} {value}" if last in facts else value
    return facts


def test_a_keras_file(model):
    facts = inspect("model.keras")
    assert facts["kind"] == ".keras file"
    assert facts["class"] == "Seq2Seq"
    assert facts["parameters"] == f"{model.count_params():,}"
    assert facts["num_layers"] == "2" and facts["num_decoder_layers"] == "1"
    assert facts["source vocabulary"] == "14, CharacterTokenizer"
    assert facts["written"].endswith(f" by Keras {keras.__version__}")
    assert facts["size"].endswith(" MB")
    assert facts["next"].startswith("keras-transformer translate model.keras SOURCE ")


@pytest.mark.parametrize("path", ["preset", "preset/config.json"])
def test_a_preset(path):
    facts = inspect(path)
    assert facts["kind"] == "preset folder"
    assert facts["class"] == "Seq2Seq"
    assert facts["next"].startswith("keras-transformer translate preset SOURCE TARGET")


def test_weights(model):
    facts = inspect("model.weights.h5")
    arrays = [weight.shape for weight in model.weights]
    numbers = sum(map(np.prod, arrays))
    assert facts["kind"] == "weights file"
    assert facts["numbers"] == f"{numbers:,} in {len(arrays)} arrays"


def test_a_tokenizer():
    facts = inspect("tokenizer.json")
    assert facts["kind"] == "tokenizer"
    assert facts["class"] == "CharacterTokenizer"
    assert facts["vocabulary_size"] == "14"
    assert facts["end_token_id"] == "3"
    assert facts["tokens"].startswith("' ' 'a' 'o' 't' ")


def test_a_sentence_piece_model(folder):
    tokenizer = SentencePieceTokenizer.train(lines=LINES, vocabulary_size=23)
    (folder / "source.spm").write_bytes(tokenizer.proto)
    facts = inspect("source.spm")
    assert facts["kind"] == "SentencePiece model"
    assert facts["vocabulary_size"] == "23"
    assert facts["model_type"] == "bpe"
    assert facts["tokens"].split()[0] == repr(tokenizer.get_vocabulary()[4])
    (folder / "marian.spm").write_bytes(marian_folders.pieces(LINES, 20))
    assert inspect("marian.spm")["pad_token_id"] == "none"


def test_a_model_of_marian(folder):
    written = marian_folders.random_model(folder / "marian")
    facts = inspect("marian")
    assert facts["kind"] == "model of transformers"
    assert facts["hidden_dim"] == str(written.config.d_model)
    size = written.config.vocab_size
    assert facts["source vocabulary"] == f"{size}, MarianTokenizer"
    assert facts["next"] == "keras-transformer import marian MODEL.keras"


def test_a_language_model_of_ctranslate2(folder):
    model = CausalLM(
        num_layers=1,
        hidden_dim=6,
        intermediate_dim=7,
        num_heads=3,
        tokenizer=CharacterTokenizer.train(lines=LINES),
    )
    model.export(folder / "stories", GreedySearch(), format="ctranslate2")
    facts = inspect("stories")
    assert facts["kind"] == "CTranslate2 model"
    assert facts["format"] == "version 6, weights in float32"
    assert facts["loaded as"] == "CausalLM"
    assert facts["next"] == "keras-transformer import stories MODEL.keras"
    config = json.loads((folder / "stories/config.json").read_text())
    config["quantization_type"] = 1
    (folder / "stories/config.json").write_text(json.dumps(config))
    facts = inspect("stories")
    assert "a model without 'quantization_type'" in facts["not loaded"]
    assert facts["next"] == 'in Python: ctranslate2.Generator("stories")'


def test_onnx(folder):
    (folder / "onnx").mkdir()
    tensors = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 3])
        for name in ("one", "other")
    ]
    node = onnx.helper.make_node("Identity", ["one"], ["other"])
    graph = onnx.helper.make_graph([node], "graph", tensors[:1], tensors[1:])
    opset = [onnx.helper.make_opsetid("", 18)]
    onnx_model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=9)
    for name in ("encoder", "decoder_step"):
        onnx.save(onnx_model, folder / "onnx" / f"{name}.onnx")
    (folder / "onnx/config.json").write_text(json.dumps({"source_vocabulary_size": 9}))
    facts = inspect("onnx/encoder.onnx")
    assert facts["kind"] == "ONNX graph"
    assert facts["inputs"] == "one float32(·, 3)"
    assert facts["outputs"] == "other float32(·, 3)"
    facts = inspect("onnx")
    assert facts["kind"] == "ONNX model"
    assert facts["source_vocabulary_size"] == "9"
    (folder / "stories-onnx").mkdir()
    (folder / "stories-onnx/config.json").write_text('{"vocabulary_size": 7}')
    onnx.save(onnx_model, folder / "stories-onnx/decoder.onnx")
    facts = inspect("stories-onnx")
    assert facts["kind"] == "ONNX language model"
    assert facts["vocabulary_size"] == "7"
    (folder / "onnx/encoder.onnx").write_bytes(b"\xff" * 9)
    assert "encoder.onnx must be an ONNX graph; it is damaged" in failure("onnx")


def test_checkpoints(checkpoints):
    facts = inspect("runs/stopped/checkpoints")
    assert facts["kind"] == "checkpoints of a run"
    assert facts["checkpoints"] == "2"
    assert facts["checkpoint"] == "epoch-0002.npz"
    assert facts["complete epochs"] == "2"
    assert facts["resumes at"] == "epoch 3, batch 1"
    assert facts["parameters"] == "20"  # 3 * 5 + 5
    assert facts["last epoch"].startswith("loss ")
    assert facts["next"].startswith("in Python: fit with the callback Checkpoints(")
    assert inspect(checkpoints[0])["complete epochs"] == "1"


def test_a_stopped_run():
    write_run("runs/stopped")
    facts = inspect("runs/stopped")
    assert facts["kind"] == "run"
    assert facts["status"] == "not complete"
    assert facts["training text"].endswith("a.de")
    assert facts["epochs"] == "2 of 7"
    assert facts["last epoch"] == "2: loss 3.125, val_loss 3.75, val_bleu 20.25"
    assert facts["best epoch"] == "1: loss 3.25, val_loss 3.5, val_bleu 21.5"
    assert facts["resumes at"] == "epoch 3, batch 1"
    command = (
        "keras-transformer train --config runs/stopped/options.toml --output "
        "runs/stopped"
    )
    assert facts["next"] == command
    assert inspect("runs/stopped/checkpoints")["next"] == command


@pytest.mark.parametrize(
    ("options", "name", "best"),
    [
        ({"metric": "chrf"}, "val_chrf", 2),
        ({"metric": "token_error_rate"}, "val_token_error_rate", 1),
        ({"metric": "loss"}, "val_loss", 1),
        ({"model": "causal", "metric": "loss"}, "val_perplexity", 1),
    ],
)
def test_the_best_epoch_is_that_of_the_metric(options, name, best):
    rows = ["3,3.5,0.25", "2,3.25,0.5", "1,3,nan"]  # not measured in the last epoch
    lines = [f"{epoch},{row}" for epoch, row in enumerate(rows, 1)]
    history = "\n".join([f"epoch,loss,val_token_accuracy,{name}", *lines])
    path = f"runs/{name}"
    write_run(path, history=history, **options)
    facts = inspect(path)
    assert facts["last epoch"] == "3: loss 1"
    values = {1: f"loss 3, {name} 0.25", 2: f"loss 2, {name} 0.5"}
    assert facts["best epoch"] == f"{best}: {values[best]}"


def test_a_complete_run(model):
    write_run("runs/complete", model)
    facts = inspect("runs/complete")
    assert facts["status"] == "complete"
    assert facts["figures of"] == "the validation text, 1,234 sentences"
    assert facts["figures"].split() == [
        *("bleu", "41.50", "chrf", "65.25", "exact", "match", "12.50"),
        *("token", "error", "rate", "35.50", "character", "error", "rate", "21.25"),
        *("sacreBLEU", "case:lc"),
    ]
    assert facts["weights"] == "mean of epochs 3 to 7"
    assert facts["search"] == "--num-beams 5 --length-penalty 0.6"
    assert facts["class"] == "Seq2Seq"
    assert facts["next"].startswith("keras-transformer translate runs/complete SOURCE")


# Other and damaged files.


def failure(path):
    """Returns the message of an error, not that of Typer for wrong usage."""
    result = CliRunner().invoke(make_app(), ["inspect", str(path)])
    assert result.exit_code == 1
    assert isinstance(result.exception, ValueError | OSError)
    return str(result.exception)


@pytest.mark.parametrize("name", ["notes.txt", "folder"])
def test_other_paths(name, folder):
    path = folder / name
    if path.suffix:
        path.write_text("hello")
    else:
        path.mkdir()
    kind = "file" if path.suffix else "folder"
    message = f"received `path={name!r}`, a {kind} of another kind. The known kinds are"
    error = failure(name)
    assert message in error
    for known in ("tokenizer", "CTranslate2 model", "checkpoints of a run", "SavedMod"):
        assert known in error


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other.json", "must be a file that `Tokenizer.save` wrote"),
        ("other.model", "must be a SentencePiece model; it is damaged or another"),
        ("other.h5", "must be a file of weights; it is damaged or another file"),
        ("epoch-0007.npz", "must be a checkpoint; it is damaged or another file"),
        ("damaged/options.toml", "must be a TOML file"),
        ("damaged/model.bin", "must be of version 2 to 6 of CTranslate2's format"),
    ],
)
@pytest.mark.filterwarnings("ignore:A checkpoint is skipped:UserWarning")
def test_damaged_files(name, message, folder):
    path = folder / "damaged files" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\xff" * 40)
    assert message in failure(path)
    path.unlink()


@pytest.mark.parametrize(
    "content", ["step,loss\n1,2\n", "epoch,loss\n1,much\n", "\xff"]
)
def test_a_damaged_history(content):
    write_run("runs/damaged")
    path = pathlib.Path("runs/damaged/history.csv")
    path.write_text(content, "latin-1")
    assert f"{path} must have the logs of a run; it is damaged" in failure(path.parent)


def test_a_damaged_checkpoint_is_skipped(checkpoints, folder):
    newest = folder / "copies" / checkpoints[1].name
    newest.parent.mkdir()
    (newest.parent / checkpoints[0].name).write_bytes(checkpoints[0].read_bytes())
    newest.write_bytes(checkpoints[1].read_bytes()[:-99])
    with pytest.warns(UserWarning, match="A checkpoint is skipped: "):
        assert inspect("copies")["checkpoint"] == "epoch-0001.npz"
