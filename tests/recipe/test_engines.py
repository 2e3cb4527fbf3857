"""CTranslate2 in a run: the validation text, and the exported folder."""

import pathlib

import ctranslate2
import keras_nlp
import numpy as np
import pytest
from ctranslate2_designs import SOURCE, TARGET, model_of

from keras_transformer import BeamSearch, GreedySearch
from keras_transformer.layers import LocalWindow
from keras_transformer.recipe.engines import (
    ValidationEngine,
    can_export,
    choose_validation_engine,
    export_with_own_search,
)
from keras_transformer.recipe.held_out import ParallelText
from keras_transformer.recipe.plan import Plan
from keras_transformer.recipe.selection import Selection
from keras_transformer.recipe.translation import TranslationEvaluator
from keras_transformer.text import KerasHubTokenizer
from keras_transformer_runtime.engines.ctranslate2_engine import CTranslate2Engine
from keras_transformer_runtime.engines.model_description import ModelDescription
from keras_transformer_runtime.runs.recipe import PlannedRecipe, Recipe

pytestmark = pytest.mark.once("torch")

TEXTS = ["abc", "", "feed", "ace", "bad"]
FILES = {"train": ["a.tsv"], "valid": ["b.tsv"], "output": "run"}
PLANNED = {
    **{"dropout": 0.1, "epochs": 1, "tokens_per_batch": 8, "learning_rate": 0.1},
    **{"warmup_steps": 1, "cooldown": 0, "average": 1, "save_every": 1},
}


@pytest.fixture(scope="module")
def model():
    return model_of(seed=5, tie_embeddings="none")


def chosen(model, **options):
    plan = Plan(Recipe(**FILES, **options).values())
    choose_validation_engine(plan, model)
    return plan["valid_engine"], [choice.reason for choice in plan.choices]


def test_the_engine_of_the_validation_text(model, monkeypatch):
    assert chosen(model) == ("ctranslate2", ["faster on a CPU"])
    assert chosen(model, valid_engine="keras") == ("keras", [])
    unsupported = model_of(attention_options={"pattern": LocalWindow(1)})
    reason = "CTranslate2 does not support the model"
    assert chosen(unsupported) == ("keras", [reason])
    with pytest.raises(ValueError, match="`pattern` must be `None` for CTranslate2"):
        chosen(unsupported, valid_engine="ctranslate2")
    # Its tokens have no form in plain Python.
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]
    bert = KerasHubTokenizer(keras_nlp.tokenizers.BertTokenizer(words))
    unsupported = model_of(source_tokenizer=bert)
    assert chosen(unsupported) == ("keras", [reason])
    assert not can_export(unsupported) and can_export(model)
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 1)
    assert chosen(model) == ("keras", ["on a GPU"])


def test_both_engines_translate_with_the_current_weights(model):
    engines = [
        ValidationEngine(name, pathlib.Path("run")) for name in ("keras", "ctranslate2")
    ]
    search = GreedySearch()
    for scale in (1.0, -1.0):
        model.output_dense.kernel.assign(scale * model.output_dense.kernel)
        (one, cut), (other, also_cut) = (
            engine.translate(model, TEXTS, search) for engine in engines
        )
        assert one == other == model.generate(TEXTS, search)
        np.testing.assert_array_equal(cut, also_cut)
    assert any(one)


def test_the_penalty_of_the_folder_is_chosen_with_ctranslate2(model, tmp_path):
    recipe = PlannedRecipe.of({**FILES, **PLANNED, "metric": "chrf", "num_beams": 3})
    references = model.generate(TEXTS, BeamSearch(3, 0.0))
    text = ParallelText(TEXTS, references)
    evaluator = TranslationEvaluator(recipe, text, text)
    result = evaluator.result(model, Selection("epoch 1", {}))
    assert result.search == BeamSearch(3, 0.0)
    folder = tmp_path / "ctranslate2"
    (folder / "old").mkdir(parents=True)
    said = export_with_own_search(model, result.search, evaluator, folder)
    assert [path.name for path in tmp_path.iterdir()] == ["ctranslate2"]
    assert not (folder / "old").exists()
    description = ModelDescription.read(folder)
    penalty = description.options.length_penalty
    assert said == (
        f"length penalty {penalty:g}, chrf {description.scores['chrf']:.4g} "
        "(validation)"
    )
    engine = CTranslate2Engine.load(folder)
    scores = {}
    for each in (0.0, 0.6, 1.0, 1.4):
        options = engine.options.with_given(length_penalty=each)
        outputs = [row[0].text for row in engine.generate(TEXTS, options)]
        scores[each] = evaluator._scores(outputs, text)["chrf"].score
    assert scores[penalty] == max(scores.values()) == description.scores["chrf"]
    assert SOURCE.vocabulary_size == len(engine.source_tokenizer.tokens)
    assert TARGET.vocabulary_size == len(engine.target_tokenizer.tokens)
