"""The page with classifiers, taggers and encoders, in a browser."""

import json
import re

import pytest
from fake_models import FakeEncoder, FakeModel, served
from served_pages import FAINT_TEXTS, serving

from keras_transformer_runtime.serving.server_options import make_server_options

pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]

SPANS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
MODELS = {
    "films": FakeEncoder("classify", ("bad", "good")),
    "topics": FakeEncoder("classify", ("art", "war", "sport"), multi_label=True),
    "many": FakeEncoder("classify", tuple(f"class {n}" for n in range(1, 21))),
    "names": FakeEncoder("tag", SPANS),
    "words": FakeEncoder("tag", ("DET", "NOUN", "VERB", "B-X")),
    "vectors": FakeEncoder("embed"),
    "upper": FakeModel(),
}
NAMES = "Anna/B-PER Smith/I-PER met Bob/B-PER in New/B-LOC York/I-LOC <b>"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    given = {name: {"folder": folder} for name in MODELS}
    options = make_server_options(models=given).models
    models = {name: served(name, options[name], MODELS[name]) for name in MODELS}
    with serving(models) as address:
        yield address


def show(page, model, text):
    page.select_option("#model", model)
    page.fill("#text", text)
    page.press("#text", "Enter")
    page.wait_for_selector("#copy:visible")


def bars(page):
    """Returns the rows of the classes, and the shares of the width that bars have."""
    rows = page.locator("#classes li").all_inner_texts()
    script = "found => found.map(bar => parseFloat(bar.style.width))"
    return [row.split("\n") for row in rows], page.eval_on_selector_all(
        "#classes i", script
    )


def parts(page, kind):
    """Returns the words and the tags of the parts of the text."""
    found = page.locator(f"#best .{kind}")
    return [
        (part.locator("bdi").inner_text(), part.locator("small").inner_text())
        for part in found.all()
    ]


def test_a_class_and_the_probabilities_of_all(page):
    show(page, "films", "a good film")
    assert page.inner_text("#best") == "good"
    assert bars(page) == ([["✓ good", "0.900"], ["bad", "0.100"]], [90, 10])
    chosen = page.locator("#classes [aria-current=true]").all_inner_texts()
    assert len(chosen) == 1 and chosen[0].startswith("✓ good")
    assert page.inner_text("#send") == "Classify"
    assert "Press Enter to classify, " in page.inner_text("#keys")
    assert "highest probability is the label" in page.inner_text("#meaning")
    options = page.locator("#model option").all_inner_texts()
    assert options[0] == "films (classifier), version 3"
    command = page.text_content("#curl")
    assert "/v1/models/films:predict" in command
    assert json.loads(re.search(r"-d '(.*)'", command)[1]) == {
        "inputs": {"text": ["a good film"]}
    }


def test_several_labels_or_none(page):
    show(page, "topics", "the art of war")
    assert page.inner_text("#best") == "art, war"
    rows, _ = bars(page)
    assert rows == [["✓ art", "0.900"], ["✓ war", "0.900"], ["sport", "0.100"]]
    show(page, "topics", "a film")
    assert page.inner_text("#best") == "The text has no label."
    assert page.locator("#classes [aria-current]").count() == 0
    assert "at least 0.5" in page.inner_text("#meaning")


def test_the_least_probable_of_many_classes_are_left_out(page):
    show(page, "many", "class 17")
    rows, _ = bars(page)
    assert [name for name, _ in rows[:3]] == ["✓ class 1", "class 17", "class 2"]
    assert len(rows) == 12
    assert "8 classes with lower probabilities are not" in page.inner_text("#meaning")


def test_spans_are_coloured_by_their_kind(page):
    show(page, "names", NAMES)
    assert parts(page, "span") == [
        ("Anna Smith", "PER 0.55"),
        ("Bob", "PER 0.80"),
        ("New York", "LOC 0.65"),
    ]
    assert page.locator("#best b").count() == 0
    assert page.inner_text("#best").endswith(" <b>")
    script = "found => found.map(span => getComputedStyle(span).backgroundColor)"
    first, second, third = page.eval_on_selector_all("#best .span", script)
    assert first == second != third
    assert "Behind each span is its kind" in page.inner_text("#meaning")
    show(page, "names", "no names")
    assert page.inner_text("#meaning") == "The text has no spans."
    assert page.inner_text("#best") == "no names"


def test_other_tags_are_below_the_words(page):
    show(page, "words", "the cat/NOUN sleeps/VERB")
    assert parts(page, "word") == [("the", "DET"), ("cat", "NOUN"), ("sleeps", "VERB")]
    word, tag = (
        page.locator(f"#best .word {name}").nth(1).bounding_box()
        for name in ("bdi", "small")
    )
    assert tag["y"] >= word["y"] + word["height"] - 1
    assert page.inner_text("#meaning").startswith("Each word has")


def test_lines_are_compared(page):
    show(page, "vectors", "a b\n\nab b\nccc")
    assert page.inner_text("#best") == "Lines 1 and 2 are the most similar."
    assert page.inner_text("#score") == "similarity 0.95"
    rows = page.locator("#table tr")
    cells = [row.locator("td").all_inner_texts() for row in rows.all()]
    expected = [["1.00", "0.95", "0.00"], ["0.95", "1.00", "0.00"]]
    assert cells == [[""], *expected, ["0.00", "0.00", "1.00"]]
    assert rows.nth(2).locator("th").inner_text() == "2 ab b"
    assert "vector of each line has 3 numbers" in page.inner_text("#meaning")
    assert page.inner_text("#send") == "Compare"
    show(page, "vectors", "a")
    assert page.is_hidden("#similarities")
    assert page.inner_text("#best") == "Enter two or more lines to compare them."
    show(page, "vectors", "\n".join("abc" * n for n in range(1, 19)))
    assert page.locator("#table tr").count() == 17
    assert "The first 16 of 18 lines" in page.inner_text("#meaning")
    assert len(MODELS["vectors"].calls[-1]) <= 16


def test_a_text_that_is_cut_has_a_note(page):
    show(page, "films", "a cut")
    assert page.inner_text("#time").endswith(
        "The model reads at most 12 tokens; the rest of the text is left out."
    )


def test_another_kind_of_model_removes_what_the_last_one_showed(page):
    show(page, "vectors", "a\nb")
    assert page.is_visible("#similarities") and page.is_hidden("#classes")
    page.select_option("#model", "films")
    page.wait_for_selector("#classes:visible")
    assert page.is_hidden("#similarities") and page.inner_text("#score") == ""
    page.select_option("#model", "upper")
    page.wait_for_selector("#best:text('A')")
    assert page.is_hidden("#classes") and page.inner_text("#send") == "Generate"
    page.select_option("#model", "films")
    page.wait_for_selector("#classes:visible")
    page.fill("#text", "refuse")
    page.press("#text", "Enter")
    page.wait_for_selector("#error:visible")
    assert page.inner_text("#error") == "Error: `text` must be nice"
    assert page.is_hidden("#classes") and page.inner_text("#best") == ""


def test_a_link_shows_what_was_shared(open_page):
    page = open_page("#model=names&text=Anna/B-PER")
    page.wait_for_selector("#best .span")
    assert parts(page, "span") == [("Anna", "PER 0.50")]


TEXTS = {
    "many": "class 17",
    "names": f"{NAMES} " * 4 + "x" * 80,
    "words": "the cat/NOUN sleeps/VERB " * 9,
    "vectors": "\n".join(f"{letters} {'long ' * 30}" for letters in ("ab", "c", "aac")),
}


@pytest.mark.parametrize("model", TEXTS)
def test_a_phone_needs_no_horizontal_scrolling(open_page, model):
    size = {"width": 360, "height": 640}
    page = open_page(viewport=size, has_touch=True, is_mobile=True)
    show(page, model, TEXTS[model])
    widths = "[document.documentElement.scrollWidth, innerWidth]"
    assert page.evaluate(widths) == [360, 360]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("model", TEXTS)
def test_contrast(open_page, model, scheme):
    page = open_page(color_scheme=scheme)
    show(page, model, TEXTS[model])
    assert page.evaluate(FAINT_TEXTS) == []
