"""Options of a search by name, and the search that they describe."""

import re

import pytest

from keras_transformer.decoding import (
    BeamSearch,
    GNMTLengthPenalty,
    GreedySearch,
    NoRepeatNGram,
    PowerLengthPenalty,
    RelativeLength,
    RepetitionPenalty,
    Sampling,
    SuppressTokens,
)
from keras_transformer.decoding.generation_options import (
    chosen_search,
    options_from_search,
    search_from_options,
)
from keras_transformer_runtime.engines.generation_options import (
    GenerationOptions,
    SearchOptions,
    cut_pieces,
    cut_text,
)

pytestmark = pytest.mark.once("torch")
RULES = (RepetitionPenalty(1.5), NoRepeatNGram(3))
SEARCHES = [
    (GreedySearch(), {"num_beams": 1}),
    (GreedySearch(RULES), {"num_beams": 1, "repetition_penalty": 1.5}),
    (BeamSearch(), {}),
    (
        BeamSearch(7, 0.2, 5, logits_processors=RULES[1:]),
        {"num_beams": 7, "length_penalty": 0.2, "num_hypotheses": 5},
    ),
    (
        BeamSearch(6, num_beam_groups=3, diversity_penalty=0.5),
        {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.5},
    ),
    (Sampling(), {"samples": True, "num_beams": 1, "top_p": 1.0}),
    (
        Sampling(3, 0.7, top_k=11, top_p=0.5, logits_processors=RULES[:1]),
        {"samples": True, "num_beams": 1, "num_hypotheses": 3, "temperature": 0.7},
    ),
]


@pytest.mark.parametrize(("search", "some"), SEARCHES)
def test_a_search_and_its_options(search, some):
    options = options_from_search(search, max_length=13, min_length=2)
    assert search_from_options(options) == search
    expected = {**some, "max_length": 13, "min_length": 2}
    assert {name: getattr(options, name) for name in expected} == expected
    assert options.no_repeat_ngram_size == 3 * (RULES[1] in search.logits_processors)
    is_penalized = RULES[0] in search.logits_processors
    assert options.repetition_penalty == (1.5 if is_penalized else 1.0)


def test_the_order_of_processors_and_the_form_of_a_penalty_have_no_effect():
    assert options_from_search(GreedySearch(RULES[::-1])) == options_from_search(
        GreedySearch(RULES)
    )
    same = BeamSearch(3, GNMTLengthPenalty(0.2)), BeamSearch(3, 0.2)
    assert options_from_search(same[0]) == options_from_search(same[1])


@pytest.mark.parametrize(
    ("search", "name"),
    [
        (BeamSearch(length_penalty=PowerLengthPenalty(1.0)), "length_penalty"),
        (BeamSearch(patience=2.0), "patience"),
        (BeamSearch(early_stopping=True), "early_stopping"),
        (BeamSearch(coverage_penalty=0.5), "coverage_penalty"),
        (Sampling(min_p=0.1), "min_p"),
        (GreedySearch([SuppressTokens([5])]), "SuppressTokens"),
        (GreedySearch([*RULES, *RULES]), "logits_processors"),
        (BeamSearch(1), "BeamSearch(num_beams=1"),
    ],
)
def test_a_search_with_a_part_that_has_no_option(search, name):
    with pytest.raises(ValueError, match=re.escape(name)):
        options_from_search(search)


def test_a_relative_length_has_no_option():
    with pytest.raises(ValueError, match="`max_length` must be an int"):
        options_from_search(GreedySearch(), RelativeLength(2.0))
    with pytest.raises(ValueError, match="`min_length` must be an int"):
        options_from_search(GreedySearch(), min_length=RelativeLength(2.0))


@pytest.mark.parametrize(
    ("default", "options", "expected"),
    [
        (BeamSearch(5, 0.2), {}, BeamSearch(5, 0.2)),
        (BeamSearch(5, 0.2), {"num_beams": None}, BeamSearch(5, 0.2)),
        (BeamSearch(5, 0.2), {"num_beams": 1}, GreedySearch()),
        (BeamSearch(5, 0.2), {"num_hypotheses": 7}, BeamSearch(7, 0.2, 7)),
        (
            BeamSearch(5, 0.2),
            {"no_repeat_ngram_size": 3, "repetition_penalty": 1.5},
            BeamSearch(5, 0.2, logits_processors=RULES),
        ),
        (
            BeamSearch(5, 0.2),
            {"temperature": 0.7},
            Sampling(temperature=0.7, top_p=0.9),
        ),
        (Sampling(top_p=0.5), {"num_hypotheses": 2}, Sampling(2, top_p=0.5)),
        (Sampling(top_p=0.5), {"length_penalty": 1.0}, BeamSearch(4, 1.0)),
        (GreedySearch(), {"num_hypotheses": 2}, BeamSearch(2, 0.0, num_hypotheses=2)),
    ],
)
def test_options_change_the_default(default, options, expected):
    assert chosen_search("decode", None, default, options) == expected


def test_a_search_that_is_given_takes_no_options():
    search = BeamSearch(2)
    assert chosen_search("decode", search, BeamSearch(), {"top_k": None}) is search
    message = "`top_k` must not be given together with `search`; received `top_k=3`"
    with pytest.raises(ValueError, match=message):
        chosen_search("decode", search, BeamSearch(), {"top_k": 3})


def test_a_default_without_options_is_named():
    assert chosen_search("decode", None, BeamSearch(patience=2.0), {}).patience == 2
    with pytest.raises(ValueError, match=r"`patience=2\.0` of a `BeamSearch`"):
        chosen_search("decode", None, BeamSearch(patience=2.0), {"num_beams": 3})


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("beam_size", "Pass `num_beams=3`."),
        ("max_new_tokens", "Pass `max_length=3`."),
        ("force_words_ids", "Pass `constraints=3`."),
        ("do_sample", "Pass `temperature` to sample, or `num_beams` to search."),
        ("patience", "Pass `search=BeamSearch(patience=3)`."),
        ("min_p", "Pass `search=Sampling(min_p=3)`."),
    ],
)
def test_names_of_other_libraries_and_parts_of_a_search(name, remedy):
    with pytest.raises(TypeError, match=f"`{name}` must not be .* `decode`") as raised:
        chosen_search("decode", None, BeamSearch(), {"num_beams": 2, name: 3})
    assert f"received `{name}=3`. {remedy}" in str(raised.value)


def test_an_unknown_name_is_the_error_of_python():
    message = r"decode\(\) got an unexpected keyword argument 'num_beens'"
    with pytest.raises(TypeError, match=message):
        chosen_search("decode", None, BeamSearch(), {"num_beens": 3})


def test_every_option_of_a_search_is_an_attribute_of_the_options():
    names = set(SearchOptions.__annotations__)
    others = {"max_length", "min_length", "samples", "seed", "stop"}
    assert names | others == set(GenerationOptions.__dataclass_fields__)


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("a b. c. d", (".",), "a b"),
        ("a b. c", ("c", "b."), "a "),
        ("xabcd", ("abcd", "bc"), "x"),  # A longer one that begins earlier.
        ("xabce", ("abcd", "bc"), "xa"),
        ("ababac", ("abac",), "ab"),
        ("a b", (".", "\n\n"), "a b"),
        ("a.", ("..",), "a."),
        (".", (".",), ""),
        ("", (".",), ""),
        ("a b", (), "a b"),
    ],
)
def test_an_output_ends_in_front_of_the_first_text_of_stop(text, stop, expected):
    assert cut_text(text, stop) == (expected, expected != text)
    for size in range(1, len(text) + 1):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        found = [*cut_pieces(pieces, stop)]
        assert "".join(found) == expected
        assert all(found)
    assert [*cut_pieces([*"ab"], ["c"])] == ["a", "b"]  # Nothing is held back.


def test_pieces_are_read_no_further_than_the_end():
    pieces = iter(["a", ". ", "b", "c"])
    assert [*cut_pieces(pieces, [". b"])] == ["a"]
    assert next(pieces) == "c"


@pytest.mark.parametrize("stop", [".", ("",), (1,)])
def test_stop_is_a_list_of_texts(stop):
    with pytest.raises(ValueError, match="`stop` must be"):
        GenerationOptions(stop=stop)


def test_sampling_has_no_beams():
    options = GenerationOptions().with_given(temperature=0.7)
    assert options.samples and options.num_beams == 1
    options = options.with_given(length_penalty=1.0)
    assert not options.samples and options.num_beams == 4
