"""The engine CTranslate2 gives the texts of `generate`."""

import json
import subprocess
import sys

import numpy as np
import pytest
from aligned_words import aligned_words
from ctranslate2_designs import LETTERS, causal_model_of, model_of

from keras_transformer import BeamSearch, GreedySearch
from keras_transformer_runtime.engines import model_description
from keras_transformer_runtime.engines.ctranslate2_engine import CTranslate2Engine
from keras_transformer_runtime.engines.generation_options import GenerationOptions
from keras_transformer_runtime.engines.model_description import (
    FILE,
    LengthLimits,
    ModelDescription,
)
from keras_transformer_runtime.runs.recipe import Recipe

pytestmark = pytest.mark.once("torch")

TEXTS = ["abc", "", "deadbeef", " \t", "f", "cafe", "feed", "abcdefabcd", "e"]
GREEDY = GenerationOptions(num_beams=1, length_penalty=0)
BEAMS = GenerationOptions(num_beams=3, length_penalty=0, num_hypotheses=2)
PROMPTS = ["abc", "", "f", "deadbee", "ca", "fe"]


@pytest.fixture(scope="module")
def model():
    """A model some of whose outputs end before the limit."""
    design = {"normalize_first": True, "tie_embeddings": "none"}
    model = model_of(seed=5, max_target_length=17, **design)
    bias = np.zeros(11, "float32")
    bias[0], bias[3] = -100, 2  # no pad token, and an early end token
    model.logits_bias.assign(bias)
    return model


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("letters") / "1"
    options = {
        "check_texts": TEXTS,
        "scores": {"bleu": 31.5},
        "languages": ["en", "de"],
    }
    search = BeamSearch(3, 0.7)
    model.export(folder, search, format="ctranslate2", stop=(".",), **options)
    return folder


@pytest.fixture(scope="module")
def engine(folder):
    return CTranslate2Engine.load(folder, threads=1)


@pytest.fixture(scope="module")
def language_model():
    model = causal_model_of(seed=3, max_length=19, tie_embeddings=False)
    bias = np.zeros(10, "float32")
    bias[0], bias[3] = -100, 1  # no pad token
    model.logits_bias.assign(bias)
    return model


@pytest.fixture(scope="module")
def generator(language_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("language_model") / "1"
    options = {"check_texts": PROMPTS, "search": GreedySearch()}
    language_model.export(folder, format="ctranslate2", **options)
    return CTranslate2Engine.load(folder, threads=1)


def texts_of(found):
    return [[hypothesis.text for hypothesis in row] for row in found]


def test_the_folder_records_the_options(engine):
    expected = GenerationOptions(num_beams=3, length_penalty=0.7, stop=(".",))
    assert engine.options == expected
    assert not engine.is_language_model
    assert (engine.max_source_length, engine.max_target_length) == (11, 17)
    assert ModelDescription.read(engine.path).scores == {"bleu": 31.5}
    assert engine.languages == ("en", "de")


@pytest.mark.parametrize("languages", ["en", ["en"], ["en", "de", "fr"], ["en", "d"]])
def test_languages_are_two_codes(model, tmp_path, languages):
    for format in ("ctranslate2", "saved_model"):
        with pytest.raises(ValueError, match="`languages` must be the codes of the"):
            model.export(tmp_path / "1", format=format, languages=languages)
    with pytest.raises(ValueError, match="`languages` must be"):
        Recipe(train=["a", "b"], output="run", languages=languages)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_greedy_search_gives_the_texts_of_generate(model, engine, batch_size):
    found = engine.generate(TEXTS, GREEDY, batch_size=batch_size)
    expected, scores, truncated = model.generate(
        TEXTS, GreedySearch(), return_scores=True, return_truncated=True
    )
    assert texts_of(found) == [[text] for text in expected]
    assert [row[0].truncated for row in found] == truncated.tolist()
    ended = ~truncated  # The score of the model has the end token of the others too.
    np.testing.assert_allclose(
        np.array([row[0].score for row in found])[ended], scores[ended], atol=1e-4
    )
    assert 0 < sum(truncated) < 7


def test_beam_search_gives_the_texts_of_generate(model, engine):
    found = engine.generate(TEXTS, BEAMS)
    search = BeamSearch(3, 0.0, num_hypotheses=2)
    expected, scores = model.generate(TEXTS, search, return_scores=True)
    short = [all(not each.truncated for each in row) for row in found]
    assert sum(short) > 4
    for row, texts, score, is_short in zip(found, expected, scores, short, strict=True):
        if is_short:
            assert [each.text for each in row] == texts
            np.testing.assert_allclose([each.score for each in row], score, atol=1e-4)


def test_a_text_has_its_own_limit(model, engine):
    description = ModelDescription.read(engine.path)
    assert [description.max_length(n, None) for n in (1, 7)] == [17, 17]
    assert description.max_length(7, 9) == 9
    long = model_of(max_target_length=None)
    long.output_length_ratio = 1.68  # 75 times it is 126 in float32, less in float64
    limits = LengthLimits(None, None, long.output_length_ratio)
    description = ModelDescription(False, GREEDY, limits)
    for length in range(1, 97):
        assert description.max_length(length, None) == long.max_output_lengths(length)


def test_a_text_does_not_depend_on_the_limits_of_its_batch(engine, monkeypatch):
    monkeypatch.setattr(model_description, "MORE_TOKENS", 0)
    options = GenerationOptions(num_beams=3, length_penalty=0)
    found = engine.generate(TEXTS, options)
    alone = [engine.generate([text], options)[0] for text in TEXTS]
    assert texts_of(found) == texts_of(alone)
    lengths = [len(text) + 1 for text in TEXTS]
    limits = [engine._description.max_length(length, None) for length in lengths]
    assert limits == lengths
    assert sum(row[0].truncated for row in found) > 3


def test_the_pad_token_is_never_chosen(tmp_path):
    model = model_of(seed=5, tie_embeddings="none")
    bias = np.zeros(11, "float32")
    bias[0] = 50
    model.logits_bias.assign(bias)
    model.export(tmp_path / "1", GreedySearch(), format="ctranslate2")
    found = CTranslate2Engine.load(tmp_path / "1").generate(TEXTS, GREEDY)
    expected = model.generate(TEXTS, GreedySearch())
    assert texts_of(found) == [[text] for text in expected] and any(expected)


def test_options_of_the_search(model, engine):
    options = GREEDY.with_given(max_length=4)
    expected = model.generate(TEXTS, GreedySearch(), 4)
    found = engine.generate(TEXTS, options)
    assert texts_of(found) == [[text] for text in expected]
    assert all(row[0].truncated for row in found if len(row[0].text) == 3)
    options = GREEDY.with_given(min_length=6)
    expected = model.generate(TEXTS, GreedySearch(), min_length=6)
    assert texts_of(engine.generate(TEXTS, options)) == [[text] for text in expected]
    assert expected != model.generate(TEXTS, GreedySearch())
    repeated = [row[0].text for row in engine.generate(TEXTS, GREEDY)]
    options = GREEDY.with_given(no_repeat_ngram_size=1)
    found = [row[0].text for row in engine.generate(TEXTS, options)]
    assert max(len(text) - len(set(text)) for text in repeated) > 0
    assert max(len(text) - len(set(text)) for text in found) == 0
    strong = GREEDY.with_given(repetition_penalty=9.0)
    assert [row[0].text for row in engine.generate(TEXTS, strong)] != repeated


def test_an_output_ends_in_front_of_a_stop_text(engine):
    whole = engine.generate(["f"], GREEDY)[0][0]
    stop = (whole.text[7:12], "never")
    [[cut]] = engine.generate(["f"], GREEDY.with_given(stop=stop))
    assert cut.text == whole.text[: whole.text.index(stop[0])] and not cut.truncated
    streamed = engine.stream("f", GREEDY.with_given(stop=stop))
    assert "".join(streamed) == cut.text and whole.truncated


def test_prefixes(model, engine):
    prefixes = ["UV", "", "Ä"]
    texts = ["abc", "f", "feed"]
    expected = model.generate(texts, GreedySearch(), prefix=prefixes)
    found = engine.generate(texts, GREEDY, prefixes=prefixes)
    assert texts_of(found) == [[text] for text in expected]
    pieces = [*engine.stream("abc", GREEDY, prefix="UV")]
    assert "UV" + "".join(pieces) == expected[0]
    # The prefix is a part of the output.
    for stop in ("V", expected[0][1:3], expected[0][2:4]):
        options = GREEDY.with_given(stop=(stop,))
        whole = engine.generate(["abc"], options, prefixes=["UV"])[0][0].text
        streamed = "".join(engine.stream("abc", options, prefix="UV"))
        assert streamed == whole[2:] and stop not in whole
    batches = engine.generate_batches([texts, [], texts[:1]], GREEDY, "UV")
    expected = model.generate(texts, GreedySearch(), prefix=["UV"] * 3)
    found = [texts_of(batch) for batch in batches]
    assert found == [[[text] for text in expected], [], [[expected[0]]]]


@pytest.mark.parametrize("parallel, count", [(False, 1), (True, 3)])
def test_batches_are_read_ahead_only_in_parallel(folder, parallel, count):
    """A pipe gets the translation of a line before it has the next one."""
    engine, read = CTranslate2Engine.load(folder, threads=1, parallel=parallel), []

    def batches():
        for text in ["abc", "f", "cafe", "feed"]:
            read.append(text)
            yield [text]

    found = engine.generate_batches(batches(), GREEDY)
    first = next(found)
    assert len(read) == count
    expected = engine.generate(["abc", "f", "cafe", "feed"], GREEDY)
    assert texts_of([first[0], *(row for [row] in found)]) == texts_of(expected)


def test_pieces_of_a_stream(model, engine):
    for text in TEXTS:
        pieces = [*engine.stream(text, GREEDY)]
        assert "".join(pieces) == model.generate(text, GreedySearch())
        assert all(len(piece) == 1 or piece == "<unk>" for piece in pieces)
    assert (
        "".join(engine.stream("cafe", BEAMS))
        == engine.generate(["cafe"], BEAMS)[0][0].text
    )


@pytest.mark.parametrize("stop", [(), ("B",)])
def test_beginnings_while_a_batch_is_generated(engine, stop):
    options = GREEDY.with_given(stop=stop)
    whole = engine.generate(TEXTS, options)
    seen = [[] for _ in TEXTS]

    def on_text(place, text):
        seen[place].append(text)
        return False

    found = engine.generate(TEXTS, options, batch_size=4, on_text=on_text)
    for [ours], [expected] in zip(found, whole, strict=True):
        assert ours._replace(score=0) == expected._replace(score=0)
    for texts, [output] in zip(seen, whole, strict=True):
        assert texts == sorted({*texts}, key=len)  # each is longer
        assert all(output.text.startswith(text) for text in texts)
    assert any(len(texts) > 2 for texts in seen)


def test_a_text_ends_where_its_receiver_ends_it(engine):
    place = max(
        range(len(TEXTS)), key=lambda i: len(engine.generate(TEXTS, GREEDY)[i][0].text)
    )
    whole = engine.generate(TEXTS, GREEDY)
    found = engine.generate(
        TEXTS, GREEDY, on_text=lambda i, text: i == place and len(text) >= 2
    )
    assert len(found[place][0].text) < len(whole[place][0].text)
    others = [i for i in range(len(TEXTS)) if i != place]
    assert [found[i][0].text for i in others] == [whole[i][0].text for i in others]


def test_scores_of_targets(model, engine):
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


def test_sampling(engine):
    options = GREEDY.with_given(top_k=1)
    greedy = engine.generate(TEXTS, GREEDY)
    assert texts_of(engine.generate(TEXTS, options)) == texts_of(greedy)
    options = GREEDY.with_given(temperature=3.0, top_p=1.0, num_hypotheses=7)
    [samples] = engine.generate(["abc"], options)
    assert len(samples) == 7 and len({each.text for each in samples}) > 1


@pytest.mark.parametrize(
    "given, words",
    [
        ({"temperature": 0.5, "seed": 1}, "`seed` must not be given with CTranslate2"),
        ({"num_beams": 4, "num_beam_groups": 2}, "`num_beam_groups` must be 1"),
    ],
)
def test_refused_options(engine, given, words):
    options = GREEDY.with_given(**given)
    with pytest.raises(ValueError, match=words):
        engine.generate(TEXTS, options)
    with pytest.raises(ValueError, match=words):
        next(engine.stream("abc", options))


def test_texts_that_are_too_long(engine):
    assert engine.measure(TEXTS, "source") == [4, 0, 9, 0, 2, 5, 5, 11, 2]
    with pytest.raises(ValueError, match="`texts` must have at most .*11` tokens each"):
        engine.generate(["abc", "abcdefabcde"], GREEDY)
    with pytest.raises(ValueError, match="`prefix` must be shorter"):
        engine.generate(["abc"], GREEDY.with_given(max_length=2), prefixes=["UV"])


# Language models.


@pytest.mark.parametrize("batch_size", [1, 64])
@pytest.mark.parametrize("options", [GREEDY, BEAMS])
def test_prompts_are_continued_as_by_generate(
    language_model, generator, options, batch_size
):
    search = GreedySearch() if options is GREEDY else BeamSearch(3, 0, num_hypotheses=2)
    expected = language_model.generate(PROMPTS, search)
    found = generator.generate(PROMPTS, options, batch_size=batch_size)
    expected = [[texts] if options is GREEDY else texts for texts in expected]
    assert texts_of(found) == expected
    found = generator.generate(PROMPTS, options, include_prompt=True)
    expected = language_model.generate(PROMPTS, search, include_prompt=True)
    expected = [[texts] if options is GREEDY else texts for texts in expected]
    assert texts_of(found) == expected


def test_a_language_model_streams_and_scores(language_model, generator):
    assert generator.is_language_model and generator.max_source_length == 19
    assert generator.measure(PROMPTS, "source") == [3, 1, 1, 7, 2, 2]
    for prompt in PROMPTS:
        pieces = generator.stream(prompt, GREEDY)
        expected = language_model.generate(prompt, GreedySearch(), include_prompt=False)
        assert "".join(pieces) == expected
    answers = ["ab", "f", "cafe", "d", "", "bad"]
    expected = language_model.score(PROMPTS, answers)
    found = generator.score(PROMPTS, answers)
    np.testing.assert_allclose(
        [each.log_probability for each in found], expected.scores, atol=1e-4
    )
    assert [len(each.tokens) for each in found] == expected.lengths.tolist()
    assert found[0].tokens == ["a", "b", "</s>"]
    with pytest.raises(ValueError, match="`prefix` is for models that translate"):
        generator.generate(["a"], GREEDY, prefixes=["b"])
    assert LETTERS.get_vocabulary() == [*generator.target_tokenizer.tokens]


# The folder.


@pytest.mark.parametrize(
    "content, words",
    [
        (None, "must contain keras_transformer.json"),
        ("{}", "must have the version 1; received version None"),
        ('{"format_version": 9}', "received version 9"),
        ('{"format_version": 1}', "is damaged"),
        ("[", "keras_transformer.json"),
    ],
)
def test_a_damaged_folder(folder, tmp_path, content, words):
    (tmp_path / "model.bin").write_bytes((folder / "model.bin").read_bytes())
    if content is not None:
        (tmp_path / FILE).write_text(content)
    with pytest.raises(ValueError, match=words):
        CTranslate2Engine.load(tmp_path)


def test_values_of_a_damaged_folder(folder, tmp_path):
    content = json.loads((folder / FILE).read_text())
    content["options"]["num_beams"] = "many"
    (tmp_path / FILE).write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is damaged .*num_beams"):
        CTranslate2Engine.load(tmp_path)


def test_the_cores_of_a_system_without_affinity(folder, monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    engine = CTranslate2Engine.load(folder)
    assert engine._settings == {"inter_threads": 1, "intra_threads": 3}
    assert engine.generate(["abc"], GREEDY)[0][0].text


@pytest.mark.slow
def test_neither_tensorflow_nor_keras_is_imported(folder):
    code = f"""
import sys
from keras_transformer_runtime.engines import model_description
from keras_transformer_runtime.engines.ctranslate2_engine import CTranslate2Engine
engine = CTranslate2Engine.load({str(folder)!r})
assert engine.generate(["abc"], engine.options)
assert "".join(engine.stream("abc", engine.options))
heavy = {{"keras", "keras_transformer", "tensorflow", "torch", "jax"}}
print(sorted(heavy & sys.modules.keys()))
"""
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_words_are_aligned_as_by_the_model(tmp_path, generator):
    model = model_of(seed=5, num_layers=3, spread=1.0, max_target_length=9)
    model.export(tmp_path / "1", format="ctranslate2", check_texts=["abc"])
    sources = ["ab cd fade", "", "b", "c a f bed"]
    targets = ["UV ZÄ U", "V", " ", "Ä Z VV"]
    expected = [aligned_words(model, sources[i], targets[i]) for i in (0, 3)]
    assert len({word for word, _ in expected[0]}) > 1
    engine = CTranslate2Engine.load(tmp_path / "1", threads=1)
    found = engine.align(sources, targets, batch_size=1)
    assert found == [expected[0], [], [], expected[1]]
    assert engine.align(["a"], ["U" * 9]) == [[]]
    with pytest.raises(ValueError, match="`align` is for models that translate; rec"):
        generator.align(["a"], ["a"])
