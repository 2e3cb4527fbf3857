"""The signature `constrained` of a SavedModel, and a search with groups of beams."""

import numpy as np
import pytest
import tensorflow as tf
from bigrams import Bigrams

from keras_transformer import BeamSearch, GreedySearch
from keras_transformer.export import export_saved_model
from keras_transformer.text import CharacterTokenizer
from keras_transformer_runtime.engines.saved_model_engine import SavedModelEngine
from keras_transformer_runtime.engines.warmup_requests import warmup_requests

pytestmark = [pytest.mark.once, pytest.mark.slow]

LETTERS = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdef"])
SEARCH = BeamSearch(3, num_hypotheses=2)
GROUPS = BeamSearch(4, num_hypotheses=2, num_beam_groups=2, diversity_penalty=0.8)
TEXTS = ["abc", "", "d", "f", "bee", "\u00a0\u200b"]
PREFIXES = ["", "", "a", "", "fd", ""]
CONSTRAINTS = [["fe"], ["d"], ["abc", "ca"], [], ["dd"], []]


@pytest.fixture(scope="module")
def model():
    table = np.random.default_rng(5).normal(size=(10, 10)).astype("float32")
    return Bigrams(table, LETTERS)


def served_texts(outputs):
    return [[text.decode() for text in row] for row in outputs["text"]]


def test_the_signature_equals_generate(model, tmp_path):
    model.export(tmp_path / "1", SEARCH, constraints=True, warmup=[(1, 16)])
    engine = SavedModelEngine.load(tmp_path / "1")
    _, (signature, warm), _ = warmup_requests(tmp_path / "1")
    assert signature == "constrained"
    assert {name: len(rows) for name, rows in warm.items()} == dict.fromkeys(
        ("text", "prefix", "constraints"), 1
    )
    inputs = {
        "text": TEXTS,
        "prefix": PREFIXES,
        "constraints": ["\t".join(entry) for entry in CONSTRAINTS],
    }
    outputs = engine.call("constrained", **inputs)
    expected, scores = model.generate(
        TEXTS, SEARCH, prefix=PREFIXES, constraints=CONSTRAINTS, return_scores=True
    )
    assert served_texts(outputs) == expected
    np.testing.assert_allclose(outputs["score"], scores, atol=1e-4)
    assert expected[5] == ["", ""]
    assert "fe" in expected[0][0] and "abc" in expected[2][0]
    for phrase, message in {
        "abcabca": "`constraints` must be shorter than the maximum output length",
        "az": "`constraints` must have phrases with only characters and words",
    }.items():
        wrong = {"text": ["a"], "prefix": [""], "constraints": [phrase]}
        with pytest.raises(ValueError, match=f"^{message}"):
            engine.call("constrained", **wrong)
    checked = engine.call("check_constraints", constraints=["abc", "az", "", "f"])
    assert checked["spelled"].tolist() == [True, False, False, True]


def test_groups_of_beams(model, tmp_path):
    folder = tmp_path / "1"
    model.export(folder, GROUPS, warmup=())
    function = tf.saved_model.load(str(folder)).signatures["nbest"]
    seed = tf.zeros([6], tf.int32)
    outputs = function(text=tf.constant(TEXTS), prefix=tf.constant(PREFIXES), seed=seed)
    expected, scores = model.generate(
        TEXTS, GROUPS, prefix=PREFIXES, return_scores=True
    )
    assert served_texts({"text": outputs["text"].numpy()}) == expected
    np.testing.assert_allclose(outputs["score"], scores, atol=1e-4)


@pytest.mark.parametrize("search", [GreedySearch(), GROUPS])
def test_other_searches(model, search, tmp_path):
    with pytest.raises(ValueError, match="a `BeamSearch` with one group of beams"):
        export_saved_model(model, tmp_path / "1", search, constraints=True)
