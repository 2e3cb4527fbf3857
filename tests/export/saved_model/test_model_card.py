import keras
import pytest
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer import CausalLM, Ensemble, Seq2Seq
from keras_transformer.export.saved_model.model_card import (
    NOT_PROVIDED,
    describe_model,
    describe_signatures,
    package_versions,
    write_card,
)
from keras_transformer.text import CharacterTokenizer

pytestmark = pytest.mark.once("torch")

LETTERS = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdefg"])
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 2}


def sections(folder):
    title, *parts = (folder / "README.md").read_text("utf-8").split("\n## ")
    return title, {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


def test_a_card_has_the_facts_of_the_library_and_of_the_author(tmp_path):
    card = {
        "training_data": "Multi30k, 29,000 pairs.",
        "figures": {"BLEU": 40.5, "chrF": "62 | cased"},
        "carbon footprint": "Negligible.",
    }
    tables = {"Model": {"parameters": "1,234"}, "Created with": {"keras": "3.15"}}
    write_card(tmp_path, "en-de", "```python\nserve()\n```", tables, card)
    title, found = sections(tmp_path)
    assert title.startswith("# en-de\n\n```python\nserve()")
    names = ["Model", "Created with", "Intended use", "Training data"]
    names += ["Evaluation data", "Figures", "Limitations", "Licence"]
    assert list(found) == [*names, "Carbon footprint"]
    assert found["Training data"].strip() == card["training_data"]
    assert found["Licence"].strip() == NOT_PROVIDED
    assert "| BLEU | 40.5 |\n| chrF | 62 \\| cased |" in found["Figures"]
    assert "| --- | --- |\n| parameters | 1,234 |" in found["Model"]


@pytest.mark.parametrize("count", [1, 2])
def test_models_are_described(count):
    models = [Seq2Seq(**SIZES, source_tokenizer=LETTERS) for _ in range(count)]
    model = models[0] if count == 1 else Ensemble(models)
    facts = describe_model(model)
    assert facts["class"] == type(model).__name__ and facts["hidden_dim"] == 6
    assert facts["parameters"] == f"{model.count_params():,}"
    assert facts["source vocabulary"] == "11, CharacterTokenizer"
    assert facts.get("models", 1) == count


def test_a_language_model_has_one_vocabulary():
    facts = describe_model(CausalLM(**SIZES, tokenizer=LETTERS, max_length=13))
    assert facts["vocabulary"] == "11, CharacterTokenizer"
    assert facts["max_length"] == 13
    assert not any("source" in name or "target" in name for name in facts)


def test_a_source_of_arrays_has_a_shape():
    layer = keras.Sequential([keras.Input((None, 6)), keras.layers.Dense(6)])
    model = Seq2Seq(**SIZES, source_embedding=layer, target_tokenizer=LETTERS)
    facts = describe_model(model)
    assert facts["source"] == "float32 (·, 6)"
    assert "source vocabulary" not in facts and "max_source_length" not in facts


def test_signatures_are_described(tmp_path):
    saved_model = saved_model_pb2.SavedModel(meta_graphs=[{}])
    signature = saved_model.meta_graphs[0].signature_def["serve"]
    text = signature.inputs["text"]
    text.dtype, text.tensor_shape.dim.add().size = 7, -1
    score = signature.outputs["score"]
    score.dtype, score.tensor_shape.dim.add().size = 1, 3
    (tmp_path / "saved_model.pb").write_bytes(saved_model.SerializeToString())
    expected = {"serve": "text string(·,) → score float32(3,)"}
    assert describe_signatures(tmp_path) == expected
    (tmp_path / "saved_model.pb").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="must be a SavedModel; it is damaged"):
        describe_signatures(tmp_path)
    with pytest.raises(OSError):
        describe_signatures(tmp_path / "missing")


def test_versions_of_packages():
    names = ["date", "keras_transformer", "keras", "tensorflow"]
    assert list(package_versions()) == names
