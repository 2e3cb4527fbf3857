"""The engine of SavedModels gives the texts of `generate`."""

import subprocess
import sys

import numpy as np
import pytest
from ctranslate2_designs import causal_model_of, model_of

from keras_transformer import BeamSearch, GreedySearch, Sampling
from keras_transformer_runtime.engines.generation_options import GenerationOptions
from keras_transformer_runtime.engines.model_description import FILE
from keras_transformer_runtime.engines.saved_model_engine import SavedModelEngine

pytestmark = [pytest.mark.once("tensorflow"), pytest.mark.slow]

TEXTS = ["abc", "", "deadbeef", " \t", "f"]
SEARCH = BeamSearch(3, 0.7, num_hypotheses=2)
PROMPTS = ["abc", "", "f"]


@pytest.fixture(scope="module")
def model():
    return model_of(seed=5, max_target_length=7)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("letters") / "1"
    model.export(folder, SEARCH, min_length=2, check_texts=TEXTS)
    return folder


@pytest.fixture(scope="module")
def engine(folder):
    return SavedModelEngine.load(folder)


@pytest.fixture(scope="module")
def language_model():
    return causal_model_of(seed=3, max_length=19)


@pytest.fixture(scope="module")
def sampler(language_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("language_model") / "1"
    language_model.export(folder, Sampling(temperature=0.5), check_texts=PROMPTS)
    return SavedModelEngine.load(folder)


def texts_of(found):
    return [[hypothesis.text for hypothesis in row] for row in found]


def test_the_texts_of_generate(model, engine):
    expected = GenerationOptions(
        num_beams=3, length_penalty=0.7, num_hypotheses=2, min_length=2
    )
    assert engine.options == expected
    assert not engine.is_language_model
    assert (engine.max_source_length, engine.max_target_length) == (11, 7)
    found = engine.generate(TEXTS, engine.options, batch_size=2)
    expected, scores = model.generate(TEXTS, SEARCH, min_length=2, return_scores=True)
    assert texts_of(found) == expected
    given = [[each.score for each in row] for row in found]
    np.testing.assert_allclose(given, scores, atol=1e-4)
    place = max(range(len(TEXTS)), key=lambda i: len(found[i][0].text))
    whole = found[place][0].text
    options = engine.options.with_given(stop=(whole[1:],))
    cut = engine.generate(TEXTS, options)[place][0].text
    assert cut == whole[:1] and len(whole) > 1
    options = options.with_given(num_hypotheses=2)
    assert "".join(engine.stream(TEXTS[place], options)) == cut
    prefixes = ["U", "", "VW", "", ""]
    found = engine.generate(TEXTS, engine.options, prefixes=prefixes)
    assert texts_of(found) == model.generate(
        TEXTS, SEARCH, min_length=2, prefix=prefixes
    )


def test_lengths_and_scores(model, engine):
    assert engine.measure(TEXTS, "source") == [4, 1, 9, 1, 2]
    assert engine.measure(["UVW", ""], "target") == [4, 1]
    sources, targets = ["abc", "f", "cafe"], ["UVW", "", "ZZÄZ"]
    expected = model.score(sources, targets)
    found = engine.score(sources, targets, batch_size=2)
    np.testing.assert_allclose(
        [each.log_probability for each in found], expected.scores, atol=1e-4
    )
    assert [each.tokens for each in found] == expected.lengths.tolist()
    with pytest.raises(ValueError, match="`text` must have at most"):
        engine.generate(["abcdefabcdef"], engine.options)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"num_beams": 4}, "`num_beams` must be 3, with which .* `--num-beams 4`"),
        ({"temperature": 0.5}, "`num_beams` must be 3"),
        ({"max_length": 5}, "`max_length` must be None.* `--max-length 5`"),
        ({"min_length": 0}, "`min_length` must be 2"),
    ],
)
def test_options_of_the_export(engine, given, words):
    with pytest.raises(ValueError, match=words):
        engine.generate(TEXTS, engine.options.with_given(**given))


def test_samples_do_not_depend_on_the_batch(language_model, sampler):
    assert sampler.is_language_model and sampler.options.samples
    options = sampler.options.with_given(seed=7)
    found = texts_of(sampler.generate(PROMPTS, options))
    alone = [texts_of(sampler.generate([prompt], options))[0] for prompt in PROMPTS]
    assert found == alone
    search = Sampling(temperature=0.5)
    assert found == [
        [text] for text in language_model.generate(PROMPTS, search, seed=7)
    ]
    streamed = "".join(sampler.stream("abc", options))
    assert streamed == found[0][0]
    [[whole]] = sampler.generate(["abc"], options, include_prompt=True)
    assert whole.text == "abc" + streamed
    with pytest.raises(ValueError, match="`samples` must be True"):
        sampler.check(sampler.options.with_given(num_beams=2))


def test_a_search_without_options_has_no_description(model, tmp_path):
    search = BeamSearch(2, patience=2.0)
    model.export(tmp_path / "1", search, check_texts=["abc"])
    with pytest.raises(ValueError, match=f"must contain {FILE}"):
        SavedModelEngine.load(tmp_path / "1")


def test_this_library_is_not_imported(folder):
    code = f"""
import sys
from keras_transformer_runtime.engines.saved_model_engine import SavedModelEngine
engine = SavedModelEngine.load({str(folder)!r})
assert engine.generate(["abc"], engine.options)
print(sorted({{"keras_transformer", "jax", "torch"}} & sys.modules.keys()))
"""
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_greedy_search_is_recorded(model, tmp_path):
    model.export(tmp_path / "1", GreedySearch(), max_length=5, check_texts=["abc"])
    options = SavedModelEngine.load(tmp_path / "1").options
    assert options == GenerationOptions(num_beams=1, length_penalty=0, max_length=5)
