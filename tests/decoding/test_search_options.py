"""Errors for options of a search that a function receives by mistake."""

import inspect
import re

import pytest

from keras_transformer import Seq2Seq, TranslationQuality, translate_file
from keras_transformer.decoding.search_options import refuse_search_options
from keras_transformer.export import export_model

pytestmark = pytest.mark.once("torch")


def decode(inputs, search=None, max_length=None, **options):
    refuse_search_options(decode, options)
    return inputs, search, max_length


def test_other_calls_are_unchanged():
    assert decode("a", "b", max_length=3) == ("a", "b", 3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_lenght'"):
        decode("a", max_lenght=3)


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({"num_beams": 3}, "decode(inputs, BeamSearch(num_beams=3))"),
        ({"beam_size": 3}, "decode(inputs, BeamSearch(num_beams=3))"),
        ({"top_k": 5, "num_samples": 2}, "decode(inputs, Sampling(top_k=5, num_samp"),
        ({"do_sample": True}, "decode(inputs, Sampling())"),
        ({"do_sample": False, "num_beams": 3}, "decode(inputs, BeamSearch(num_beams=3"),
        ({"max_new_tokens": 9}, "decode(inputs, max_length=9)"),
        (
            {"num_beams": 3, "max_new_tokens": 9},
            "decode(inputs, BeamSearch(num_beams=3), max_length=9)",
        ),
        (
            {"repetition_penalty": 1.2},
            "decode(inputs, BeamSearch(logits_processors=[RepetitionPenalty(1.2)]))",
        ),
    ],
)
def test_the_error_names_the_call(options, call):
    names = ", ".join(f"`{name}`" for name in options)
    message = f"{names} must not be an argument of `decode`; received "
    with pytest.raises(TypeError, match=re.escape(f"Call `{call}")) as raised:
        decode(["a"], **options)
    assert str(raised.value).startswith(message)
    for name, value in options.items():
        assert f"`{name}={value!r}`" in str(raised.value)


@pytest.mark.parametrize(
    ("function", "option", "call"),
    [
        (Seq2Seq.generate, "num_beams", "`generate(inputs, BeamSearch(num_beams=3))`"),
        (Seq2Seq.stream, "beam_size", "`stream(inputs, BeamSearch(num_beams=3))`"),
        (Seq2Seq.search_tree, "num_beams", "`search_tree(inputs, BeamSearch(num_beams"),
        (Seq2Seq.score, "max_length", "`generate(inputs, max_length=3)`"),
        (Seq2Seq.align, "top_k", "`generate(inputs, Sampling(top_k=3))`"),
        (Seq2Seq.generate, "force_words_ids", "`generate(inputs, constraints=3)`"),
        (Seq2Seq.stream, "constraints", "Call `generate(inputs, constraints=3)`"),
        (translate_file, "top_k", "`translate_file(model, source, target, Sampling("),
        (export_model, "num_beams", "`export(filepath, BeamSearch(num_beams=3))`"),
        (
            TranslationQuality,
            "num_beams",
            "`TranslationQuality(sources, references, BeamSearch(num_beams=3))`",
        ),
    ],
)
def test_functions_that_decode_or_score(function, option, call):
    parameters = inspect.signature(function).parameters.values()
    is_required = [
        p.default is p.empty and p.kind < p.VAR_POSITIONAL for p in parameters
    ]
    required = sum(is_required)
    with pytest.raises(TypeError, match=f"`{option}=3`") as raised:
        function(*["given"] * required, **{option: 3})
    assert call in str(raised.value)
    decodes_nothing = "which decodes nothing" in str(raised.value)
    assert decodes_nothing == (function in (Seq2Seq.score, Seq2Seq.align))
