"""Runs of classifiers of texts and words, and the commands that use them."""

import csv
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

from keras_transformer import CharacterTokenizer, TextEncoder
from keras_transformer.recipe import LabelRecipe, train_labels
from keras_transformer.recipe.label_choices import (
    choose_model_options,
    make_label_tokenizer,
    make_plan,
    new_encoder,
)
from keras_transformer.recipe.label_data import (
    data_remarks,
    labelled_rows,
    read_data,
    scores_of,
)
from keras_transformer.recipe.loading import load_encoder_model
from keras_transformer_runtime.command import make_app
from keras_transformer_runtime.runs.label_recipe import PlannedLabelRecipe

GOOD, BAD = ("good", "fine", "great"), ("bad", "dull", "weak")
TINY = {
    "num_layers": 1,
    "hidden_dim": 16,
    "intermediate_dim": 16,
    "num_heads": 2,
    "dropout": 0.0,
    "tokenizer": "words",
    "batch_size": 8,
    "learning_rate": 0.01,
    "warmup_steps": 5,
    "schedule": "constant",
    "verbose": 0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of labelled texts and tagged words."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(2)
    lines = ["text\tlabel"]
    for _ in range(80):
        label, words = [("good", GOOD), ("bad", BAD)][rng.integers(2)]
        first, second = rng.choice(words), rng.choice(["film", "plot", "cast"])
        lines.append(f"a {first} {second} {rng.integers(50)}\t{label}")
    (folder / "films.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    sentences = []
    for _ in range(60):
        name, place = rng.choice(["anna", "bob"]), rng.choice(["rome", "new york"])
        rows = [f"{name} B-PER", f"{rng.choice(['likes', 'leaves'])} O"]
        rows += [f"{w} {'BI'[n > 0]}-LOC" for n, w in enumerate(place.split())]
        sentences.append("\n".join([*rows, f"{rng.integers(50)} O"]) + "\n")
    (folder / "names.conll").write_text("\n".join(sentences), "utf-8")
    return folder


def recipe(folder, output, task="classify", **options):
    file = {"classify": "films.tsv", "tag": "names.conll"}[task]
    options = {"train": str(folder / file), "output": str(output)} | TINY | options
    return LabelRecipe(task=task, **options)


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """The folder of a run, and its result."""
    output = tmp_path_factory.mktemp("runs") / "films"
    options = {"epochs": 8, "test": 0.2, "export": False}
    return output, train_labels(recipe(folder, output, **options))


@pytest.mark.slow
def test_a_run_learns_and_has_its_files(run, folder):
    output, (model, figures) = run
    assert figures.data == "test" and figures.scores.values["accuracy"] > 0.8
    assert figures.metric == "accuracy" and figures.candidates
    assert model.classify(["a dull plot"])[0].label == "bad"
    names = {path.name for path in output.iterdir()}
    assert names >= {
        *("model.keras", "figures.json", "options.toml", "checksums.json"),
        *("history.csv", "tokenizer.json", "checkpoints", "confusion_matrix.png"),
    }
    with (output / "history.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == 8 and float(rows[-1]["val_accuracy"]) > 0.8
    held_out = json_lines(output / "data/test.jsonl")
    assert 14 <= len(held_out) <= 18 and {*held_out[0]} == {"text", "label"}
    trained = [row.text for row in labelled_rows(model, read_data_of(output).train)]
    assert not {row["text"] for row in held_out} & {*trained}
    loaded = load_encoder_model(output)
    text = ["a great plot"]
    assert loaded.classify(text)[0].label == model.classify(text)[0].label


def json_lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def read_data_of(output):
    return read_data(PlannedLabelRecipe.from_toml(output / "options.toml"))


@pytest.mark.slow
def test_a_complete_run_is_read(run, folder, capsys):
    output, (model, figures) = run
    options = {"epochs": 8, "test": 0.2, "export": False, "verbose": 2}
    again = train_labels(recipe(folder, output, **options))
    assert "is complete" in capsys.readouterr().out
    assert again.figures.scores.values == figures.scores.values
    for a, b in zip(model.get_weights(), again.model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "tag"])
def test_a_resumed_run_equals_one_without_a_stop(task, folder, tmp_path):
    options = {"task": task, "export": False, "average": 1, "metric": "loss"}
    whole = train_labels(recipe(folder, tmp_path / "a", epochs=3, **options))
    train_labels(recipe(folder, tmp_path / "b", epochs=1, **options))
    resumed = train_labels(recipe(folder, tmp_path / "b", epochs=3, **options))
    pairs = zip(whole.model.weights, resumed.model.weights, strict=True)
    for own, other in pairs:
        if "key/bias" not in own.path:  # without a gradient, but for rounding
            np.testing.assert_allclose(own, other, atol=1e-6, err_msg=own.path)


@pytest.mark.slow
def test_a_tagger_of_a_started_encoder(run, folder, tmp_path):
    output = tmp_path / "tags"
    options = {"epochs": 10, "valid": 0.2, "export": False, "class_weight": "balanced"}
    started = {"start_from": str(run[0])}
    removed = ("num_layers", "hidden_dim", "intermediate_dim", "num_heads", "tokenizer")
    file = str(folder / "names.conll")
    design = {name: x for name, x in TINY.items() if name not in removed} | options
    result = train_labels(
        LabelRecipe(task="tag", train=file, output=str(output), **design, **started)
    )
    # The words of names are not in the vocabulary of films.
    assert result.figures.metric == "entity_f1"
    assert (output / "initial.keras").is_file()
    assert result.model.encoder.max_length == run[1].model.encoder.max_length
    resumed = train_labels(
        LabelRecipe(
            task="tag",
            train=file,
            output=str(output),
            **{**design, "epochs": 11},
            **started,
        )
    )
    assert resumed.model.encoder.tokenizer.get_vocabulary() == (
        run[1].model.tokenizer.get_vocabulary()
    )


@pytest.mark.slow
def test_a_run_of_half_types_and_both_exports(folder, tmp_path):
    options = {"dtype": "mixed_bfloat16", "epochs": 2, "export_format": "both"}
    model, _ = train_labels(recipe(folder, tmp_path / "run", **options))
    assert {v.dtype for v in model.variables} <= {"float32", "int64", "uint32"}
    assert model.encoder.dtype_policy.name == "float32"
    loaded = tf.saved_model.load(str(tmp_path / "run/saved_model/1"))
    found = loaded.signatures["serving_default"](text=tf.constant(["a dull plot"]))
    [own] = model.classify(["a dull plot"])
    assert found["label"].numpy() == [own.label.encode()]
    np.testing.assert_allclose(found["score"], [own.score], atol=1e-5)
    assert (tmp_path / "run/onnx/1/model.onnx").is_file()


@pytest.mark.slow
@pytest.mark.once("torch")
def test_pairs_of_texts_and_several_labels(tmp_path):
    pairs = [("a film", "a good film", "yes"), ("a plot", "no plot", "no")] * 20
    rows = [
        {"premise": f"{a} {n}", "hypothesis": b, "label": label}
        for n, (a, b, label) in enumerate(pairs)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    options = {"task": "classify", "epochs": 4, "export": False}
    model, figures = train_labels(
        LabelRecipe(train=str(path), output=str(tmp_path / "pairs"), **TINY, **options)
    )
    assert model.encoder.num_segments == 2
    assert model.classify([("a film 3", "a good film")])[0].label == "yes"
    held_out = json_lines(tmp_path / "pairs/data/valid.jsonl")
    assert {*held_out[0]} == {"text_a", "text_b", "label"}
    printed = invoke(
        "evaluate", tmp_path / "pairs", tmp_path / "pairs/data/valid.jsonl"
    ).stdout
    values = figures.scores.values
    assert f"accuracy             {100 * values['accuracy']:8.2f}" in printed
    labels = {"good": ["new"], "dull": [], "fine": ["new", "old"]}
    rows = [{"text": f"a {word} film", "labels": x} for word, x in labels.items()] * 9
    rows = [{**row, "text": f"{row['text']} {n}"} for n, row in enumerate(rows)]
    path.write_text("\n".join(map(json.dumps, rows)))
    options |= {"multi_label": True, "epochs": 25, "valid": 0.2}
    model, figures = train_labels(
        LabelRecipe(
            train=str(path), output=str(tmp_path / "several"), **TINY, **options
        )
    )
    assert figures.metric == "macro_f1" and figures.scores.confusion is None
    assert model.classify(["a fine film 3"])[0].label == ["new", "old"]
    assert model.classify(["a dull film 4"])[0].label == []
    line = invoke("predict", tmp_path / "several", pipe="a fine film 3\n").stdout
    assert line.startswith("new,old\t")


def planned(recipe):
    plan, data = make_plan(recipe), read_data(recipe)
    tokenizer = make_label_tokenizer(plan, data)
    encoder = new_encoder(plan, data, tokenizer)
    choose_model_options(plan, data, encoder)
    return plan, data


@pytest.mark.once
def test_options_are_chosen_from_the_data(folder, tmp_path):
    given = {"task": "classify", "train": str(folder / "films.tsv"), "output": "x"}
    plan, data = planned(LabelRecipe(**given))
    assert plan["preset"] == "transformer_tiny" and plan["num_layers"] == 2
    assert plan["batch_size"] == 16 and plan["epochs"] == 30
    assert plan["metric"] == "accuracy" and plan["pooling"] == "mean"
    assert len(data.valid) == 8 and data.test is None
    assert all(choice.reason for choice in plan.choices)
    given |= {"task": "tag", "train": str(folder / "names.conll")}
    plan, _ = planned(LabelRecipe(**given))
    assert plan["metric"] == "entity_f1" and plan["pooling"] is None


@pytest.mark.once
def test_long_texts_unequal_classes_and_single_examples(tmp_path):
    rows = [f"{'word ' * (n % 7)}w{n}\tmany" for n in range(96)]
    rows += ["a b c\tfew", "a b d\tfew", "c\tfew", "x y\tone", "long " * 900 + "\tmany"]
    (tmp_path / "a.tsv").write_text("\n".join(rows) + "\n")
    options = {"columns": ["1", "2"], "tokenizer": "words"}
    given = LabelRecipe(
        task="classify", train=str(tmp_path / "a.tsv"), output="x", **options
    )
    plan, data = planned(given)
    assert plan["metric"] == "macro_f1" and plan["max_length"] <= 512
    [choice] = [each for each in plan.choices if each.option == "max_length"]
    assert "of the texts fit; the longest has 90" in choice.reason
    remarks = " ".join(data_remarks(data))
    assert "'one' has one example, in line 100" in remarks
    assert "The classes are unequal: 'many' has" in remarks


@pytest.mark.once
def test_an_unknown_label_of_the_validation_data_is_named(folder, tmp_path):
    (tmp_path / "valid.tsv").write_text("text\tlabel\na film\tnew\n")
    given = recipe(folder, tmp_path, valid=str(tmp_path / "valid.tsv"))
    with pytest.raises(ValueError, match="'new' in line 2 of .*valid.tsv"):
        read_data(given)


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "sort"}, "`task` must be 'classify' or 'tag'"),
        ({"epochs": 0}, "`epochs` must be an int of at least 1"),
        ({"valid": 1.5}, "`valid` must be .* received `valid=1.5`"),
        ({"valid": 0.5, "test": 0.6}, "must leave at least a tenth"),
        ({"task": "tag", "multi_label": True}, "`multi_label` must not be given"),
        ({"task": "tag", "pooling": "max"}, "Give `task='classify'` for whole texts"),
        ({"metric": "entity_f1"}, "`metric` must be 'accuracy', 'macro_f1' or"),
        ({"start_from": "x", "num_layers": 2}, "`num_layers` must not be given"),
        (
            {"multi_label": True, "class_weight": "balanced"},
            "`class_weight` must be 'n",
        ),
        ({"learning_rate": "fast"}, "`learning_rate` must be a number"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LabelRecipe(**{"task": "classify", "train": "a.tsv", "output": "x"} | options)


@pytest.mark.slow
@pytest.mark.once
def test_other_options_and_data_are_not_resumed(run, folder, tmp_path):
    output, _ = run
    options = {"epochs": 8, "test": 0.2, "export": False}
    with pytest.raises(ValueError, match="`seed` must be that of the run to resume"):
        train_labels(recipe(folder, output, **options, seed=2))
    with pytest.raises(ValueError, match="`epochs` must be at least 8"):
        train_labels(recipe(folder, output, **{**options, "epochs": 3}))
    file = tmp_path / "films.tsv"
    file.write_bytes((folder / "films.tsv").read_bytes())
    given = {**options, "epochs": 1, "train": str(file)}
    train_labels(recipe(folder, tmp_path / "run", **given))
    file.write_text(file.read_text() + "more\tgood\n")
    with pytest.raises(ValueError, match="films.tsv, whose content has changed"):
        train_labels(recipe(folder, tmp_path / "run", **{**given, "epochs": 2}))
    with pytest.raises(FileNotFoundError, match="`train` must be a file that exists"):
        train_labels(recipe(folder, tmp_path / "new", train="none.tsv"))


@pytest.mark.once
def test_scores_of_words_that_the_model_does_not_see(folder, tmp_path):
    from keras_transformer import TokenClassifier

    data = read_data(recipe(folder, tmp_path, task="tag")).valid
    tokenizer = CharacterTokenizer.train(lines=["abcdefghijklmnopqrstuvwxyz"])
    encoder = TextEncoder(
        num_layers=1,
        hidden_dim=8,
        intermediate_dim=8,
        num_heads=2,
        tokenizer=tokenizer,
        max_length=7,
    )
    model = TokenClassifier(encoder, data.tag_names)
    with pytest.warns(UserWarning, match="sentences have more than 7 tokens"):
        scores = scores_of(model, data)
    words = sum(map(len, data.words))
    assert scores.examples == f"{words} words"
    assert np.sum(scores.confusion) == words
    assert 0 <= scores.values["entity_f1"] <= 1


def invoke(*arguments, pipe=None):
    arguments = [str(part) for part in arguments]
    result = CliRunner().invoke(make_app(arguments), arguments, input=pipe)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.slow
def test_the_commands(run, folder, tmp_path):
    output, (model, _) = run
    texts = ["a dull plot", "", "a great film"]
    labels = [each.label for each in model.classify(texts)]
    lines = invoke("predict", output, pipe="\n".join(texts) + "\n").stdout.split("\n")
    assert [line.partition("\t")[0] for line in lines[:-1]] == labels
    invoke(
        *("predict", output, folder / "films.tsv", tmp_path / "found.jsonl"),
        *("--columns", "text"),
    )
    found = json_lines(tmp_path / "found.jsonl")
    assert len(found) == 80 and {*found[0]["probabilities"]} == {"good", "bad"}
    picture = tmp_path / "confusion.png"
    printed = invoke(
        *("evaluate", output, output / "data/test.jsonl"),
        *("--confusion-matrix", picture),
    ).stdout
    assert "accuracy " in printed and "1 bad" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
    (tmp_path / "texts.txt").write_text("\n".join(["a fine cast", "a weak plot"]))
    vectors = tmp_path / "vectors.npy"
    invoke("embed", output, tmp_path / "texts.txt", vectors, "--normalize")
    expected = model.encoder.embed(["a fine cast", "a weak plot"], normalize=True)
    np.testing.assert_allclose(np.load(vectors), expected, atol=1e-6)
    nearest = invoke(
        "embed", output, tmp_path / "texts.txt", "--nearest", "a weak plot"
    ).stdout.splitlines()
    assert nearest[0].split("  ") == [" 1.0000", "a weak plot"]
    assert invoke("embed", output, tmp_path / "texts.txt").exit_code == 2
    assert invoke("predict", output, folder / "films.tsv", "x.gz").exit_code == 2
    with pytest.raises(ValueError, match="`num_beams` must not be given for a class"):
        invoke("evaluate", output, folder / "films.tsv", "--num-beams", 2)
    with pytest.raises(ValueError, match="`threshold` must be given for a model with"):
        invoke("predict", output, "--threshold", 0.9, pipe="a film\n")
    shown = invoke("inspect", output).stdout
    for part in ("complete", "accuracy", "TextClassifier", "predict", "bad, good"):
        assert part in shown
    with pytest.raises(ValueError, match="is a TextClassifier. Use the command pred"):
        invoke("translate", output, tmp_path / "texts.txt")


@pytest.mark.slow
@pytest.mark.once
def test_the_command_that_trains_a_tagger(folder, tmp_path):
    output = tmp_path / "tags"
    result = invoke(
        *("train", "--task", "tag", "--train", folder / "names.conll"),
        *("--output", output, "--valid", "20%", "--epochs", 1, "--hidden-dim", 16),
        *("--num-heads", 2, "--verbose", 2),
    )
    assert "--metric entity_f1" in result.stdout
    assert f"use         keras-transformer predict {output}" in result.stdout
    options = pathlib.Path(output, "options.toml")
    assert "valid = 0.2" in options.read_text()
    repeated = invoke("train", "--config", options)  # its task is that of the file
    assert "is complete" in repeated.stdout
    found = invoke("predict", output / "saved_model", pipe="anna likes rome\n").stdout
    assert [line.split("\t")[0] for line in found.split("\n")[:3]] == [
        *("anna", "likes", "rome"),
    ]
    exported = invoke("export", output, tmp_path / "onnx", "--format", "onnx")
    assert exported.exit_code == 0 and (tmp_path / "onnx/model.onnx").is_file()
    assert "ONNX encoder" in invoke("inspect", tmp_path / "onnx").stdout
    assert invoke("export", output, tmp_path / "x", "--format", "ctranslate2").exit_code
    texts = tmp_path / "texts.txt"
    texts.write_text("anna likes rome\n")
    with pytest.raises(ValueError, match="generates text; it is a classifier or an en"):
        invoke("translate", output / "saved_model", texts)
