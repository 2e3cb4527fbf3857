"""The engine of SavedModels gives the texts of `generate`."""

import subprocess
import sys

import marian_folders
import numpy as np
import pytest
import tensorflow as tf
from aligned_words import aligned_words
from ctranslate2_designs import causal_model_of, model_of

from keras_transformer import BeamSearch, GreedySearch, Sampling
from keras_transformer.keras_engine import KerasEngine
from keras_transformer.text import MarianTokenizer, SentencePieceTokenizer
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
    languages = ["en", "pt-BR"]
    model.export(folder, SEARCH, min_length=2, check_texts=TEXTS, languages=languages)
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
    assert engine.languages == ("en", "pt-BR")
    found = engine.generate(TEXTS, engine.options, batch_size=2)
    expected, scores = model.generate(TEXTS, SEARCH, min_length=2, return_scores=True)
    assert texts_of(found) == expected
    given = [[each.score for each in row] for row in found]
    np.testing.assert_allclose(given, scores, atol=1e-4)
    prefixes = ["U", "", "VW", "", ""]
    found = engine.generate(TEXTS, engine.options, prefixes=prefixes)
    assert texts_of(found) == model.generate(
        TEXTS, SEARCH, min_length=2, prefix=prefixes
    )
    options = engine.options.with_given(stop=["V"])
    [[cut, _]] = engine.generate(["abc"], options, prefixes=["UVW"])
    assert (cut.text, cut.truncated) == ("U", False)
    assert [*engine.stream("abc", options, "UVW")] == []
    [[whole, _]] = engine.generate(["abc"], engine.options, prefixes=["UVW"])
    assert "".join(engine.stream("abc", engine.options, "UVW")) == whole.text[3:]


def test_lengths_and_scores(model, engine):
    assert engine.measure(TEXTS, "source") == [4, 0, 9, 0, 2]
    assert engine.measure(["UVW", ""], "target") == [4, 0]
    sources, targets = ["abc", "f", "cafe"], ["UVW", "", "ZZÄZ"]
    expected = model.score(sources, targets)
    found = engine.score(sources, targets, batch_size=2)
    np.testing.assert_allclose(
        [each.log_probability for each in found], expected.scores, atol=1e-4
    )
    assert [len(each.tokens) for each in found] == expected.lengths.tolist()
    tokenizer = model.target_tokenizer
    rows = tokenizer.tokenize(targets, add_end=True).to_list()
    tokens = [[tokenizer.id_to_token(id) for id in row] for row in rows]
    assert [each.tokens for each in found] == tokens
    with pytest.raises(ValueError, match="received 13 tokens in row 1"):
        engine.generate(["a", "abcdefabcdef"], engine.options)
    with pytest.raises(ValueError, match="`prefix` must be shorter"):
        engine.generate(["a", "b"], engine.options, prefixes=["U", "UVWXYZU"])


@pytest.mark.parametrize(
    "given, words",
    [
        ({"num_beams": 4}, "`num_beams` must be 3, with which .* `--num-beams 4`"),
        (
            {"num_beams": 5, "max_length": 4},
            "`max_length` must be None.*Export it with `--max-length 4 --num-beams 5`",
        ),
        (
            {"temperature": 0.5},
            "must be beam search .*received sampling.* `--temperature 0.5`",
        ),
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
    message = "must be sampling, with which .* `--num-beams 2`"
    with pytest.raises(ValueError, match=message):
        sampler.check(sampler.options.with_given(num_beams=2))


def test_a_search_without_options_has_no_description(model, tmp_path):
    search = BeamSearch(2, patience=2.0)
    model.export(tmp_path / "1", search, check_texts=["abc"])
    with pytest.raises(ValueError, match=f"must contain {FILE}"):
        SavedModelEngine.load(tmp_path / "1")
    with pytest.raises(ValueError, match="received `patience=2.0`"):
        model.export(tmp_path / "2", search, stop=["V"])
    assert not (tmp_path / "2").exists()


def test_a_recorded_stop(tmp_path):
    model = model_of(seed=12, max_target_length=7)
    whole = model.generate("feed", num_beams=1)
    assert "UW" in whole
    model.export(tmp_path / "1", GreedySearch(), check_texts=["feed"], stop=["UW"])
    engine = SavedModelEngine.load(tmp_path / "1")
    [[cut]] = engine.generate(["feed"], engine.options)
    assert cut.text == whole.partition("UW")[0] and not cut.truncated
    [[found]] = engine.generate(["feed"], engine.options.with_given(stop=()))
    assert found.text == whole and found.truncated
    serve = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    assert serve(text=tf.constant(["feed"]))["text"][0] == whole.encode()
    card = (tmp_path / "1" / "README.md").read_text("utf-8")
    assert "| stop, in the commands | 'UW' |" in card


def test_this_library_is_not_imported(folder):
    code = f"""
import sys
import tensorflow  # imports Keras and JAX, where they are installed
from keras_transformer_runtime.engines.saved_model_engine import SavedModelEngine
engine = SavedModelEngine.load({str(folder)!r})
assert engine.generate(["abc"], engine.options)
print(sorted({{"keras_transformer", "torch"}} & sys.modules.keys()))
"""
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_greedy_search_is_recorded(model, tmp_path):
    model.export(tmp_path / "1", GreedySearch(), max_length=5, check_texts=["abc"])
    options = SavedModelEngine.load(tmp_path / "1").options
    assert options == GenerationOptions(num_beams=1, length_penalty=0, max_length=5)


def test_a_stream_ends_at_the_limits_of_the_export(language_model, tmp_path):
    options = {"num_beams": 1, "max_length": 11}
    language_model.export(tmp_path / "1", check_texts=PROMPTS, **options)
    engine = SavedModelEngine.load(tmp_path / "1")
    assert "continue" in engine.signatures
    expected = language_model.generate(PROMPTS, **options)
    pieces = [[*engine.stream(prompt, engine.options)] for prompt in PROMPTS]
    assert ["".join(row) for row in pieces] == expected
    assert max(map(len, expected)) > 8 and max(map(len, pieces)) == 2
    shortest = {**options, "min_length": 9}
    language_model.export(tmp_path / "2", check_texts=PROMPTS, **shortest)
    engine = SavedModelEngine.load(tmp_path / "2")
    expected = language_model.generate(PROMPTS, **shortest)
    assert ["".join(engine.stream(x, engine.options)) for x in PROMPTS] == expected


def test_prompts_of_subwords_keep_the_space_after_them(tmp_path):
    tokenizer = SentencePieceTokenizer.train(
        vocabulary_size=29, lines=["a man sees two dogs"] * 9
    )
    model = causal_model_of(tokenizer=tokenizer, max_length=19)
    prompts, options = ["a man", ""], {"num_beams": 2, "num_hypotheses": 2}
    model.export(tmp_path / "1", check_texts=prompts, max_length=7, **options)
    engine = SavedModelEngine.load(tmp_path / "1")
    expected = model.generate(prompts, max_length=7, include_prompt=True, **options)
    found = engine.generate(prompts, engine.options, include_prompt=True)
    assert texts_of(found) == expected
    stop = [expected[0][0][6:9]]
    found = engine.generate(
        prompts, engine.options.with_given(stop=stop), include_prompt=True
    )
    assert texts_of(found) == model.generate(
        prompts, max_length=7, include_prompt=True, stop=stop, **options
    )
    assert expected[0][0] != found[0][0].text


def test_texts_with_language_tokens(tmp_path):
    protos = [marian_folders.pieces(marian_folders.SOURCES, 31)] * 2
    ids = marian_folders.vocabulary(protos, (">>deu<<", ">>fra<<"))
    tokenizer = MarianTokenizer(protos[0], list(ids))
    sides = {"source_tokenizer": tokenizer, "target_tokenizer": tokenizer}
    model = model_of(**sides, max_source_length=30)
    texts = [">>fra<<", ">>deu<< ", "", ">>deu<< a cat", "a cat", "\u200b"]
    model.export(tmp_path / "1", GreedySearch(), check_texts=texts)
    engine = SavedModelEngine.load(tmp_path / "1")
    expected = KerasEngine(model, tmp_path / "1").measure(texts, "source")
    assert engine.measure(texts, "source") == expected
    assert expected[:3] == [0, 0, 0] and expected[3] > 2
    found = engine.generate(texts, engine.options)
    assert texts_of(found) == [[text] for text in model.generate(texts, num_beams=1)]
    with pytest.raises(ValueError, match="`source` must have a language .* in line 8"):
        engine.measure(["a", ">>spa<< a cat"], "source", first=7)


def test_words_are_aligned_as_by_the_model(tmp_path):
    model = model_of(seed=5, num_layers=2, spread=1.0, max_target_length=9)
    model.export(tmp_path / "1", GreedySearch(), check_texts=["abc"])
    sources = ["ab cd fade", "", "b", "c a f bed"]
    targets = ["UV ZÄ U", "V", " ", "Ä Z VV"]
    expected = [aligned_words(model, sources[i], targets[i]) for i in (0, 3)]
    assert len({word for word, _ in expected[0]}) > 1
    engine = SavedModelEngine.load(tmp_path / "1")
    found = engine.align(sources, targets, batch_size=3)
    assert found == [expected[0], [], [], expected[1]]
    assert engine.align(["a"], ["U" * 9]) == [[]]
    engine.signatures = {}
    with pytest.raises(ValueError, match="must have the signature align for `align`"):
        engine.check_aligns()
