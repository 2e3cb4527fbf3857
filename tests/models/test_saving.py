import json
import subprocess
import sys

import h5py
import keras
import numpy as np
import pytest
from layer_contract import to_numpy, with_random_weights

from keras_transformer import CausalLM, EncoderStack, LabelSmoothedCrossEntropy, Seq2Seq
from keras_transformer.text import CharacterTokenizer, WordTokenizer

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
INPUTS = {
    "encoder_token_ids": np.array([[5, 6, 4, 3], [4, 3, 0, 0]]),
    "decoder_token_ids": np.array([[2, 4, 6], [2, 5, 0]]),
}


@pytest.fixture(scope="module")
def tokenizers():
    return CharacterTokenizer([*SPECIAL, *"abc"]), WordTokenizer([*SPECIAL, *"XYZ"])


@pytest.fixture
def model(tokenizers):
    source, target = tokenizers
    model = Seq2Seq(**SIZES, source_tokenizer=source, target_tokenizer=target)
    return with_random_weights(model)


def vocabularies(model):
    tokenizers = model.source_tokenizer, model.target_tokenizer
    return [(type(t), t.get_vocabulary()) for t in tokenizers]


@pytest.mark.once("torch")
def test_config_round_trip():
    arguments = {
        **SIZES,
        "source_vocabulary_size": 13,
        "target_vocabulary_size": 11,
        "num_decoder_layers": 2,
        "tie_embeddings": "none",
        "scale_embeddings": False,
        "output_bias": False,
        "dropout": 0.2,
        "activation": "gelu",
        "normalize_first": True,
        "layer_norm_epsilon": 1e-3,
        "rematerialize": True,
        "max_source_length": 17,
        "max_target_length": 19,
        "pad_token_id": 7,
        "start_token_id": 5,
        "end_token_id": 1,
    }
    model = Seq2Seq(**arguments, name="mine", dtype="mixed_bfloat16")
    config = json.loads(json.dumps(model.get_config()))
    assert arguments.items() <= config.items()
    restored = Seq2Seq.from_config(config)
    assert restored.get_config() == model.get_config()
    assert restored.name == "mine"
    assert restored.dtype_policy.name == "mixed_bfloat16"
    assert keras.saving.get_registered_name(Seq2Seq) == "keras_transformer>Seq2Seq"


@pytest.mark.once("torch")
def test_config_of_tokenizers(model, tokenizers):
    restored = Seq2Seq.from_config(json.loads(json.dumps(model.get_config())))
    assert vocabularies(restored) == vocabularies(model)
    assert restored.get_config() == model.get_config()
    shared = Seq2Seq(**SIZES, source_tokenizer=tokenizers[0])
    restored = Seq2Seq.from_config(json.loads(json.dumps(shared.get_config())))
    assert restored.target_tokenizer is restored.source_tokenizer
    assert restored.vocabulary_size == 7
    assert restored.get_config() == shared.get_config()


def test_one_file_holds_everything(model, tmp_path):
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=LabelSmoothedCrossEntropy(0.2),
        weighted_metrics=["sparse_categorical_accuracy"],
    )
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(17)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert type(loaded) is Seq2Seq
    assert vocabularies(loaded) == vocabularies(model)
    np.testing.assert_array_equal(to_numpy(loaded(INPUTS)), to_numpy(model(INPUTS)))
    assert int(loaded.optimizer.iterations) == 17
    np.testing.assert_allclose(float(loaded.optimizer.learning_rate), 2e-3)
    assert isinstance(loaded.loss, LabelSmoothedCrossEntropy)
    assert loaded.loss.label_smoothing == 0.2
    assert [file.name for file in tmp_path.iterdir()] == ["model.keras"]


class OnAFullDisk(Seq2Seq):
    """Fails while Keras writes the weights."""

    def save_own_variables(self, store):
        raise OSError("disk full")


@pytest.mark.once("torch")
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")
    with pytest.raises(OSError, match="disk full"):
        OnAFullDisk(**SIZES, vocabulary_size=11).save(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.once("torch")
def test_quantized_models_have_no_presets(model, tmp_path):
    model.encoder.blocks[0].feed_forward.output_dense.quantize("int8")
    with pytest.raises(ValueError, match="quantized .* the int8 layer .*feed_forward/"):
        model.save_to_preset(tmp_path / "preset")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.once("torch")
@pytest.mark.filterwarnings("ignore::UserWarning")  # of what is not quantized
@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_a_loaded_quantized_model_is_equal(mode, tmp_path):
    """A model, and a layer in a model of Keras."""
    language_model = CausalLM(**SIZES, vocabulary_size=11, tie_embeddings=False)
    inputs = keras.Input((None, 6))
    functional = keras.Model(inputs, EncoderStack(2, 7, 2)(inputs))
    rows = np.random.default_rng(3).normal(size=(2, 5, 6)).astype("float32")
    for model, x in ((language_model, np.array([[5, 6, 3]])), (functional, rows)):
        before = to_numpy(model(x))
        model.quantize(mode)
        expected = to_numpy(model(x))
        assert np.abs(expected - before).max() > 1e-5
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(to_numpy(loaded(x)), expected)


@pytest.mark.once("torch")
def test_files_of_other_quantizations_are_refused(model, tmp_path):
    dense = model.encoder.blocks[0].feed_forward.output_dense
    scale = keras.quantizers.AbsMaxQuantizer(axis=0, value_range=(-100, 100))
    config = keras.quantizers.Int8QuantizationConfig(weight_quantizer=scale)
    dense.quantize("int8", config=config)
    with pytest.raises(ValueError, match="feed_forward/.* must be quantized by one of"):
        model.save(tmp_path / "model.keras")


@pytest.mark.once("torch")
def test_a_truncated_file(model, tmp_path):
    path = tmp_path / "model.keras"
    model.save(path)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ValueError, match="filepath=.*accessible `.keras` zip file"):
        keras.saving.load_model(path)


@pytest.mark.once("torch")
def test_the_matrix_of_the_output_is_not_quantized():
    for tie_embeddings in ("all", "target", "none"):
        model = Seq2Seq(**SIZES, vocabulary_size=11, tie_embeddings=tie_embeddings)
        embedding = model.target_embedding
        if tie_embeddings == "none":
            embedding.quantize("int8")
            assert embedding.quantization_mode == "int8"
            continue
        with pytest.warns(UserWarning, match="`target_embedding` is not quantized"):
            embedding.quantize("int8")
        assert embedding.quantization_mode is None
        assert embedding.embeddings.dtype == "float32"


@pytest.mark.slow
@pytest.mark.once("torch")
@pytest.mark.parametrize("tie_embeddings", ["all", "none"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # of what is not quantized
def test_a_quantized_model_keeps_the_matrix_of_its_output(tie_embeddings):
    model = Seq2Seq(
        num_layers=1,
        hidden_dim=16,
        intermediate_dim=16,
        num_heads=2,
        vocabulary_size=11,
        tie_embeddings=tie_embeddings,
    )
    inputs = {
        "encoder_token_ids": np.array([[5, 6, 3]]),
        "decoder_token_ids": np.array([[2, 7, 9]]),
    }
    before = to_numpy(model(inputs))
    model.quantize("int8")
    assert model.decoder.blocks[0].feed_forward.output_dense.quantization_mode == "int8"
    quantized = model.target_embedding.quantization_mode == "int8"
    assert quantized == (tie_embeddings == "none")
    difference = np.abs(to_numpy(model(inputs)) - before).max()
    assert 0 < difference < 0.1 * np.abs(before).max()
    result = model.generate(np.array([[5, 6, 3]]), max_length=3)
    assert -20 < result.scores[0, 0] < 0


@pytest.mark.once("torch")
@pytest.mark.parametrize("tie_embeddings", ["all", "target", "none"])
def test_files_name_the_embedding_class_of_keras(tmp_path, tie_embeddings):
    model = Seq2Seq(**SIZES, vocabulary_size=11, tie_embeddings=tie_embeddings)
    model.save_weights(tmp_path / "model.weights.h5")
    with h5py.File(tmp_path / "model.weights.h5") as file:
        found = [name for name in file["layers"] if name.startswith("embedding")]
        shapes = [file["layers"][name]["vars"]["0"].shape for name in found]
    assert found == ["embedding", "embedding_1"][: 1 if tie_embeddings == "all" else 2]
    assert set(shapes) == {(11, 6)}


# HDF5 would end the process, so it is not that of the tests.
FULL_DISK = """
import pathlib, resource, signal, sys
from keras_transformer import Seq2Seq

folder = pathlib.Path(sys.argv[1])
sizes = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 2000, "num_heads": 3}
model = Seq2Seq(**sizes, vocabulary_size=7)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # bytes
for write, name in (
    (model.save, "old.keras"),
    (model.save, "new.keras"),
    (model.save_weights, "old.weights.h5"),
    (model.save_weights, "new.weights.h5"),
    (model.save_to_preset, "preset"),
):
    try:
        write(folder / name)
    except OSError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.once("torch")
def test_a_full_disk(tmp_path):
    old = [tmp_path / "old.keras", tmp_path / "old.weights.h5"]
    for path in old:
        path.write_bytes(b"old")
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    errors = result.stdout.splitlines()
    assert len(errors) == 5 and all("File too large" in error for error in errors)
    assert sorted(tmp_path.iterdir()) == old
    assert [path.read_bytes() for path in old] == [b"old", b"old"]


@pytest.mark.once("torch")
def test_weights_are_those_that_keras_writes(model, tmp_path, monkeypatch):
    ours, theirs = tmp_path / "ours.weights.h5", tmp_path / "theirs.weights.h5"
    model.save_weights(ours)
    keras.saving.save_weights(model, theirs)
    read = []
    for path in (ours, theirs):
        arrays = {}
        with h5py.File(path) as file:
            file.visititems(lambda name, item, to=arrays: to.update({name: item}))
            read.append({k: v[()] for k, v in arrays.items() if hasattr(v, "shape")})
    assert read[0].keys() == read[1].keys()
    for name, value in read[1].items():
        np.testing.assert_array_equal(read[0][name], value)
    with pytest.raises(ValueError, match="must end in `.weights.h5`"):
        model.save_weights(tmp_path / "weights.npz")
    before = ours.read_bytes()
    monkeypatch.setattr("builtins.input", lambda question: "n")
    model.save_weights(ours, overwrite=False)
    assert ours.read_bytes() == before
