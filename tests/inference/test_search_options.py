"""The options of `generate`, `stream` and `translate_file` by name, and `stop`."""

import io

import numpy as np
import pytest

from keras_transformer import (
    BeamSearch,
    CausalLM,
    GreedySearch,
    NoRepeatNGram,
    RepetitionPenalty,
    Sampling,
    Seq2Seq,
)
from keras_transformer.file_translation import translate_stream
from keras_transformer.text import CharacterTokenizer

TOKENIZER = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdé."])
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
TEXTS = ["abc", "", "d.a"]
once = pytest.mark.once("torch")


def with_weights(model, seed):
    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model


@pytest.fixture(scope="module")
def model():
    return with_weights(Seq2Seq(**SIZES, source_tokenizer=TOKENIZER), 5)


@pytest.fixture(scope="module")
def language_model():
    return with_weights(CausalLM(**SIZES, tokenizer=TOKENIZER, max_length=31), 7)


@pytest.mark.parametrize(
    ("options", "search"),
    [
        ({"num_beams": 3, "length_penalty": 0.2}, BeamSearch(3, 0.2)),
        ({"num_hypotheses": 2}, BeamSearch(num_hypotheses=2)),
        (
            {"num_beams": 1, "no_repeat_ngram_size": 2, "repetition_penalty": 1.5},
            GreedySearch([RepetitionPenalty(1.5), NoRepeatNGram(2)]),
        ),
        ({"temperature": 3.0, "top_k": 5, "top_p": None}, Sampling(1, 3.0, 5, 0.9)),
    ],
)
def test_options_equal_the_search_that_they_describe(model, options, search):
    rest = {"max_length": 9, "min_length": 3, "seed": 2, "prefix": ["a", "", ""]}
    found = model.generate(TEXTS, **options, **rest)
    assert found == model.generate(TEXTS, search, **rest)
    assert found != model.generate(TEXTS, BeamSearch(2, 5.0), **rest)


@once
def test_options_change_the_default_search(model, language_model):
    searched = language_model.generate("ab", num_hypotheses=3, max_length=7, seed=1)
    assert searched == language_model.generate(
        "ab", Sampling(3, top_p=0.9), max_length=7, seed=1
    )
    pieces = model.stream("abc", num_beams=1, max_length=9)
    assert "".join(pieces) == model.generate("abc", GreedySearch(), max_length=9)
    tree = model.search_tree("abc", num_beams=2, max_length=5)
    assert tree == model.search_tree("abc", BeamSearch(2), max_length=5)
    written = [io.BytesIO(), io.BytesIO()]
    for file, options in zip(
        written, ({"num_beams": 1}, {"search": GreedySearch()}), strict=True
    ):
        translate_stream(model, io.BytesIO(b"abc\nd\n"), file, max_length=9, **options)
    assert written[0].getvalue() == written[1].getvalue()


@once
def test_options_and_a_search_are_refused_together(model, language_model):
    for decode in (model.generate, model.stream, model.search_tree):
        with pytest.raises(ValueError, match="`num_beams` must not be given together"):
            decode("abc", BeamSearch(2), num_beams=3)
        with pytest.raises(TypeError, match=r"Pass `num_beams=3`\."):
            decode("abc", beam_size=3)
    with pytest.raises(ValueError, match="`top_k` is for sampling"):
        language_model.generate("abc", num_beams=3, top_k=2)


def test_outputs_end_in_front_of_a_text_of_stop(model):
    options = {"temperature": 9.0, "max_length": 13, "min_length": 13, "seed": 3}
    whole = model.generate(TEXTS[::2], **options)
    assert all(len(text) > 8 for text in whole)
    stop = [whole[0][5:8], whole[1][6:9]]
    places = [min(p for p in map(text.find, stop) if p >= 0) for text in whole]
    assert min(places) > 0
    expected = [text[:place] for text, place in zip(whole, places, strict=True)]
    found, truncated = model.generate(
        TEXTS[::2], stop=stop, return_truncated=True, **options
    )
    assert found == expected
    assert not truncated.any()
    for text, output in zip(TEXTS[::2], expected, strict=True):
        assert "".join(model.stream(text, stop=stop, **options)) == output


@once
def test_a_prompt_and_a_stop(language_model):
    options = {"max_length": 9, "min_length": 9, "num_beams": 2, "num_hypotheses": 2}
    whole = language_model.generate(["ab.", "c"], include_prompt=True, **options)
    stop = [whole[0][0][5], "ab."]
    found, scores, truncated = language_model.generate(
        ["ab.", "c"],
        include_prompt=True,
        stop=stop,
        return_scores=True,
        return_truncated=True,
        **options,
    )
    for prompt, outputs, cuts, are_truncated in zip(
        ["ab.", "c"], whole, found, truncated, strict=True
    ):
        for output, cut, is_truncated in zip(outputs, cuts, are_truncated, strict=True):
            places = [output.find(text, len(prompt)) for text in stop]
            ends = [place for place in places if place >= 0]
            assert cut == output[: min(ends, default=None)]
            assert is_truncated == (not ends)
    assert scores.shape == (2, 2)
    distinct = language_model.generate(
        "c", stop=[*"abcdé."], distinct_texts=True, **options
    )
    assert distinct == [""]


@once
def test_arguments_that_contradict_stop(model):
    with pytest.raises(ValueError, match="`stop` must be a list of texts"):
        model.generate("abc", stop=".")
    with pytest.raises(ValueError, match="received `stop=.*` and token ids"):
        model.generate([[4, 3]], stop=["."])
    with pytest.raises(ValueError, match="received `stop=.*` and token ids"):
        model.stream([4, 3], stop=["."])
    with pytest.raises(ValueError, match="and `return_alignments=True`"):
        model.generate("abc", stop=["."], return_alignments=True)
