import pytest

from keras_transformer import Ensemble, Seq2Seq
from keras_transformer.export.card import NOT_SAID, describe_model, made_by, write_card
from keras_transformer.text import CharacterTokenizer

LETTERS = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdefg"])
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 2}


def sections(folder):
    title, *parts = (folder / "README.md").read_text("utf-8").split("\n## ")
    return title, {part.partition("\n")[0]: part.partition("\n")[2] for part in parts}


def test_a_card_says_what_is_known_and_what_the_user_says(tmp_path):
    facts = {
        "training_data": "Multi30k, 29,000 pairs.",
        "figures": {"BLEU": 40.5, "chrF": "62 | cased"},
        "carbon footprint": "None to speak of.",
    }
    tables = {"Model": {"parameters": "1,234"}, "Made by": {"keras": "3.15"}}
    write_card(tmp_path, "en-de", "```python\nserve()\n```", tables, facts)
    title, found = sections(tmp_path)
    assert title.startswith("# en-de\n\n```python\nserve()")
    names = ["Model", "Made by", "Intended use", "Training data", "Evaluation data"]
    names += ["Figures", "Limitations", "Licence", "Carbon footprint"]
    assert list(found) == names
    assert found["Training data"].strip() == facts["training_data"]
    assert found["Licence"].strip() == NOT_SAID
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


def test_versions_are_told():
    assert list(made_by()) == ["date", "keras_transformer", "keras", "tensorflow"]
