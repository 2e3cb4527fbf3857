"""Runs that start from a trained model, with all weights or LoRA."""

import csv
import json
import pathlib
import shutil

import gpt2_folders
import keras
import marian_folders
import numpy as np
import published_models
import pytest
from test_run import TOY, make_options

from keras_transformer import load_adapter, load_pretrained, merge_lora
from keras_transformer.models import CausalLM, Seq2Seq
from keras_transformer.recipe import Recipe, read_options, train
from keras_transformer.recipe.loading import load_starting_model, load_trained_model
from keras_transformer.recipe.preparation import prepare
from keras_transformer.recipe.stages import fit
from keras_transformer_runtime.display import Display

LORA = {"lora": 2, "lora_targets": ["query", "feed_forward.output"]}


def without_design(options):
    """Returns options without those that the trained model determines."""
    removed = {*TOY, "vocabulary_size", "tokenizer", "max_length", "attention_dropout"}
    return {name: value for name, value in options.items() if name not in removed}


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The options of further runs, and the folder of a first run."""
    options = make_options(tmp_path_factory.mktemp("run"))
    train(Recipe(**options))
    folder = options["output"]
    return without_design(options) | {"start_from": folder}, pathlib.Path(folder)


def history(folder):
    with (pathlib.Path(folder) / "history.csv").open() as file:
        return list(csv.DictReader(file))


def arrays(model):
    return [keras.ops.convert_to_numpy(weight) for weight in model.weights]


def test_a_run_with_lora(started, tmp_path, capsys):
    options, folder = started
    options = {**options, **LORA, "output": str(tmp_path / "tuned"), "verbose": 2}
    options |= {"epochs": 2, "average": 2}
    result = train(Recipe(**options))
    printed = capsys.readouterr().out
    before = load_trained_model(folder)
    matrices = 3 * 2 * (8 + 8) + 2 * 2 * (16 + 8)  # of three attentions, two networks
    assert f"parameters, {matrices} of them trained" in printed
    assert "--lora-alpha 4" in printed and "twice the rank" in printed
    assert "--max-length 14" in printed and "the limit of the model" in printed
    output = tmp_path / "tuned"
    figures = json.loads((output / "figures.json").read_text())
    assert figures["start_from"] == str(folder)
    assert figures["trained_parameters"] == matrices
    assert len(figures["candidates"]) >= 2
    # The result has the merged kernels, and the adapter gives the same.
    model = load_trained_model(output)
    changed = [
        weight.path
        for weight, old, new in zip(
            before.weights, arrays(before), arrays(model), strict=True
        )
        if not np.array_equal(old, new)
    ]
    assert len(changed) == 5
    assert all("query/kernel" in path or "output/kernel" in path for path in changed)
    load_adapter(before, output / "adapter")
    for ours, theirs in zip(arrays(merge_lora(before)), arrays(model), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    texts = ["ka lo", "mi nu pe"]
    assert model.generate(texts, result.search) == result.model.generate(
        texts, result.search
    )
    recorded = read_options(output / "options.toml")
    assert recorded["start_from"] == str(folder)
    assert (recorded["lora"], recorded["lora_alpha"]) == (2, 4)
    again = train(Recipe(**options))  # It is complete, and read.
    assert again.figures == result.figures


@pytest.mark.parametrize("lora", [None, 2])
def test_a_stopped_run_resumes_exactly(lora, started, tmp_path):
    """A run that ends within an epoch goes on with equal losses, without its start."""
    options, folder = started
    start = tmp_path / "start"
    shutil.copytree(folder, start)
    options = {**options, "start_from": str(start), "lora": lora, "epochs": 2}
    options |= {"metric": "loss", "save_every": 2}
    whole = Recipe(**{**options, "output": str(tmp_path / "whole")})
    fit(prepare(whole, Display(0)), Display(0))

    class Killed(Exception):
        pass

    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations.numpy() >= 3:
                raise Killed

    stopped = Recipe(**{**options, "output": str(tmp_path / "stopped")})
    run = prepare(stopped, Display(0))
    run.evaluator.callbacks = lambda: [Kill()]
    with pytest.raises(Killed):
        fit(run, Display(0))
    shutil.rmtree(start)
    keras.utils.set_random_seed(99)  # Another process has other random numbers.
    resumed = prepare(stopped, Display(0))
    fit(resumed, Display(0))
    rows = [history(tmp_path / name) for name in ("whole", "stopped")]
    for one, other in zip(*rows, strict=True):
        for name in ("loss", "val_loss"):
            assert one[name] == other[name]
    other = Recipe(**{**options, "output": str(tmp_path / "stopped"), "lora": 3})
    with pytest.raises(ValueError, match="`lora` must be that of the run to resume"):
        prepare(other, Display(0))
    elsewhere = {"output": str(tmp_path / "stopped"), "start_from": str(folder)}
    with pytest.raises(ValueError, match="`start_from` must be that of the run to re"):
        prepare(Recipe(**{**options, **elsewhere}), Display(0))


@pytest.mark.once("torch")
def test_a_language_model_keeps_its_context(tmp_path):
    folder = tmp_path / "gpt2"
    end = 19
    sizes = {"vocab_size": 20, "bos_token_id": end, "eos_token_id": end}
    theirs = gpt2_folders.random_model(**sizes, attn_pdrop=0.05, resid_pdrop=0.1)
    theirs.save_pretrained(folder)
    gpt2_folders.write_tokenizer(
        folder, lambda size: {"bos_token_id": end, "eos_token_id": end}
    )
    text = tmp_path / "text.txt"
    random = np.random.default_rng(4)
    words = random.choice(["man", "see", "so", "to", "wood", "game"], (60, 7))
    text.write_text("".join(f"{' '.join(row)}\n" for row in words), "utf-8")
    options = {"train": [str(text)], "model": "causal", "start_from": str(folder)}
    options |= {"epochs": 1, "export": False, "verbose": 0, "documents": "line"}
    options["output"] = str(tmp_path / "run")
    result = train(Recipe(**options, lora=2))
    model = result.model
    assert isinstance(model, CausalLM) and model.max_length == 20
    assert model.get_config()["attention_options"] == {"dropout": 0.05}
    recorded = read_options(tmp_path / "run/options.toml")
    assert recorded["length"] <= 20 and recorded["dropout"] == 0.1
    config = json.loads((tmp_path / "run/adapter/adapter_config.json").read_text())
    assert config["target_modules"] == [
        f"transformer.h.{number}.{module}"
        for number in (0, 1)
        for module in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    ]
    adapted = load_pretrained(folder)
    load_adapter(adapted, tmp_path / "run/adapter")
    rows = np.array([[3, 5, 7]])
    np.testing.assert_allclose(
        *(keras.ops.convert_to_numpy(each(rows)) for each in (adapted, model)),
        atol=1e-4,
    )
    with pytest.raises(ValueError, match="`length` must be at most 20, the number of"):
        train(Recipe(**{**options, "output": str(tmp_path / "other")}, length=32))


@pytest.mark.once("torch")
def test_a_model_of_marian(tmp_path):
    folder = tmp_path / "marian"
    marian_folders.random_model(folder)
    sides = {"source": marian_folders.SOURCES, "target": marian_folders.TARGETS}
    files = []
    for side, lines in sides.items():
        files.append(str(tmp_path / f"text.{side}"))
        rows = [f"{a} {b}" for a in lines for b in lines]
        (tmp_path / f"text.{side}").write_text("\n".join(rows) + "\n", "utf-8")
    options = {"train": files, "valid": files, "export": False, "verbose": 0}
    options |= {"epochs": 1, "num_beams": 2, "output": str(tmp_path / "run")}
    model = train(Recipe(**options, start_from=str(folder), lora=2)).model
    assert (model.max_source_length, model.max_target_length) == (23, 23)
    config = json.loads((tmp_path / "run/adapter/adapter_config.json").read_text())
    assert "model.decoder.layers.0.encoder_attn.q_proj" in config["target_modules"]
    adapted = load_pretrained(folder)
    load_adapter(adapted, tmp_path / "run/adapter")
    for ours, theirs in zip(arrays(merge_lora(adapted)), arrays(model), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.once("torch")
def test_folders_to_start_from(started, tmp_path):
    _, folder = started
    theirs = marian_folders.random_model(tmp_path / "marian")
    loaded = load_starting_model(str(tmp_path / "marian"))
    assert isinstance(loaded, Seq2Seq) and theirs.config.d_model == loaded.hidden_dim
    for ours, expected in zip(
        arrays(loaded), arrays(load_pretrained(tmp_path / "marian")), strict=True
    ):
        np.testing.assert_array_equal(ours, expected)
    first = load_starting_model(str(folder))
    first.save_to_preset(tmp_path / "preset")
    for path in (folder / "model.keras", tmp_path / "preset"):
        for ours, expected in zip(
            arrays(load_starting_model(str(path))), arrays(first), strict=True
        ):
            np.testing.assert_array_equal(ours, expected)
    file = tmp_path / "marian/config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_type": "bloom"}))
    with pytest.raises(ValueError, match="`model_type in config.json` must be 'gpt2'"):
        load_starting_model(str(tmp_path / "marian"))


@pytest.mark.once("torch")
def test_a_wrong_start_is_refused_before_the_text_is_read(started, tmp_path):
    options, folder = started
    options = {**options, "output": str(tmp_path / "other")}
    text = tmp_path / "bad.tsv"
    text.write_bytes(b"\xff\n")
    causal = {**options, "train": [str(text)], "valid": 0.1, "test": None}
    causal |= {"model": "causal", "num_beams": 5}
    with pytest.raises(ValueError, match="`start_from` must be a CausalLM for `model="):
        train(Recipe(**causal))
    for name, value in (("preset", "transformer_tiny"), ("vocabulary_size", 99)):
        message = f"`{name}` must not be given with `start_from`"
        with pytest.raises(ValueError, match=message):
            Recipe(**options, **{name: value})
    del options["start_from"]
    with pytest.raises(ValueError, match="`lora` must not be given with a new model"):
        Recipe(**options, lora=2)
    with pytest.raises(ValueError, match="`lora_alpha` must not be given with all we"):
        Recipe(**options, start_from=str(folder), lora_alpha=2.0)


@pytest.mark.once("torch")
def test_a_mixed_dtype(started, tmp_path):
    options, folder = started
    options = {**options, **LORA, "output": str(tmp_path / "tuned")}
    result = train(Recipe(**options, dtype="mixed_bfloat16"))
    assert result.model.dtype_policy.name == "float32"
    before = load_trained_model(folder)
    load_adapter(before, tmp_path / "tuned/adapter")
    for ours, theirs in zip(
        arrays(merge_lora(before)), arrays(result.model), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.once("torch")
@pytest.mark.parametrize("name", ["nllb", "llama 3"])
def test_a_published_model_is_fine_tuned(name, tmp_path):
    published_models.write_folder(name, tmp_path / "model")
    lines = ["a man sees two dogs", "two women see a man", "the dog runs"] * 8
    pairs = {"source": lines, "target": lines[::-1]}
    for side, texts in pairs.items():
        (tmp_path / side).write_text("".join(f"{text}\n" for text in texts))
    files = [str(tmp_path / side) for side in pairs]
    options = {"train": files, "valid": files, "metric": "loss", "languages": None}
    if name == "nllb":
        options |= {"languages": ["eng_Latn", "fra_Latn"]}
    else:
        options |= {"model": "causal", "train": files[:1], "valid": files[:1]}
        options |= {"length": 16}
    output = tmp_path / "run"
    options |= {"start_from": str(tmp_path / "model"), "output": str(output)}
    train(Recipe(**options, lora=2, epochs=2, export=False, verbose=0))
    first, *_, last = (float(row["loss"]) for row in history(output))
    assert last < first
    model = load_trained_model(output)
    model.save_pretrained(tmp_path / "out")
    languages = {}
    if name == "nllb":
        languages = {"source_language": "eng_Latn", "target_language": "fra_Latn"}
    again = load_pretrained(tmp_path / "out", **languages)
    assert model.generate(lines[:2], max_length=5, num_beams=1) == again.generate(
        lines[:2], max_length=5, num_beams=1
    )
