"""The page of the server: its file, and its behaviour in a browser."""

import json
import math
import re
import shlex
import subprocess
import sys
import threading
import time
import urllib.request
from types import SimpleNamespace

import pytest
from ctranslate2_designs import causal_model_of, model_of
from served_pages import FAINT_TEXTS, PATIENCE_SECONDS, serving

from keras_transformer import BeamSearch, GreedySearch
from keras_transformer_runtime.engines.engine import Hypothesis
from keras_transformer_runtime.engines.generation_options import GenerationOptions
from keras_transformer_runtime.serving.application import PAGE
from keras_transformer_runtime.serving.batching import Batcher
from keras_transformer_runtime.serving.loaded_model import (
    GENERATING,
    GeneratingModel,
    Progress,
)
from keras_transformer_runtime.serving.requests import RequestError
from keras_transformer_runtime.serving.rest import Signature, TensorSpec
from keras_transformer_runtime.serving.served_model import (
    LoadedVersion,
    ModelVersion,
    ServedModel,
)
from keras_transformer_runtime.serving.server_options import make_server_options

pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]

STRING = TensorSpec("string")
# A SavedModel requires all inputs of a signature.
OF_SAVED_MODEL = {
    "serving_default": GENERATING["serving_default"],
    "nbest": Signature(
        {"text": STRING, "prefix": STRING, "seed": TensorSpec("int32")}, {}
    ),
    "attention_scores": Signature({"text": STRING}, {}),
}
CONSTRAINED = {name: STRING for name in ("text", "prefix", "constraints")}
NUM_LAYERS, NUM_HEADS = 2, 3
TEXT = "one two three four five six"  # 7 tokens with the end token
PIECES = (" <b>one</b>", " <b>two</b>", " <b>three</b>")
NO_SHADE = "rgba(0, 0, 0, 0)"
# Boxes of the visible texts of the labels on one side of the heat map.
LABELS = """side => [...document.getElementById(side).children].map(label => {
    const range = document.createRange();
    range.selectNodeContents(label);
    const [text, clip] = [range, label].map(found => found.getBoundingClientRect());
    const [left, top] = ["left", "top"].map(edge => Math.max(text[edge], clip[edge]));
    const right = Math.min(text.right, clip.right);
    const bottom = Math.min(text.bottom, clip.bottom);
    return {x: left, y: top, width: right - left, height: bottom - top};
})"""


class UpperCase(GeneratingModel):
    """A model that changes words to upper case, with fixed attention.

    In head h of layer l, token t attends to token t + 3 l + h, modulo their number.

    Attributes:
        asked: the names of the signatures that were called, in order.
        waits: event that texts with "wait" wait for.
        remaining: number of shapes that are not compiled.
    """

    max_texts = 1
    languages = None
    max_source_length = 97

    def __init__(self, name="ctranslate2", num_beams=4, signatures=GENERATING):
        self.engine = self
        self.name = name
        self.options = GenerationOptions(num_beams=num_beams)
        self.is_language_model = False
        self.signatures = signatures
        self.has_own_nbest = name == "saved_model"
        self.asked = []
        self.waits = threading.Event()
        self.remaining = 0

    @property
    def progress(self):
        return Progress(self.remaining)

    def metadata(self):
        return {}

    def close(self):
        pass

    def measure(self, texts, side=None):
        counts = [len(text.split()) + 1 for text in texts]
        return counts if side else super().measure(texts)

    def refusal(self, options, prefix):
        return None

    def generate(self, texts, options, **_):
        self.asked.append("generate")
        (text,) = texts
        outputs = self.outputs(text)[: options.num_hypotheses]
        return [
            [
                Hypothesis(each, -0.5 - i, "cut" in text)
                for i, each in enumerate(outputs)
            ]
        ]

    def outputs(self, text):
        if "wait" in text:
            self.waits.wait(PATIENCE_SECONDS)
        if "refuse" in text:
            raise ValueError("`text` must have at most <b>9</b> tokens")
        best = "" if "nothing" in text else text.upper()
        return [best, text.title(), text.lower(), text.swapcase(), "too many"]

    def call(self, name, rows):
        self.asked.append(name)
        (row,) = rows
        best, second, *_ = self.outputs(row["text"])
        if name == "nbest":
            missing = {"text": "", "score": None, "truncated": False}
            outputs = {"text": [best, second], "score": [-0.5, -1.5]}
            outputs["truncated"] = ["cut" in row["text"]] * 2
            return [{key: [*outputs[key], missing[key]] for key in missing}]
        if name == "constrained":
            text = f"{best} {row['constraints']}"
            return [{"text": [text], "score": [-2.0], "truncated": [False]}]
        if self.remaining:
            raise RequestError(503, "the function is still being compiled")
        found = self.attention(row["text"], best)
        return [found | {"text": "ANOTHER ONE" if "another" in row["text"] else best}]

    def attention(self, text, best):
        sources, targets = (
            [*(f"▁{word}" for word in words.split()), "</s>"] for words in (text, best)
        )
        scores = [
            [
                one_hot_rows(3 * layer + head, targets, sources)
                for head in range(NUM_HEADS)
            ]
            for layer in range(NUM_LAYERS)
        ]
        return {
            "source_tokens": sources,
            "tokens": targets,
            "attention_scores": scores,
        }


class Writer(UpperCase):
    """A language model that continues a prompt with `PIECES`."""

    def __init__(self):
        super().__init__()
        self.is_language_model = True

    def generate(self, texts, options, on_text=None, **_):
        (text,) = texts
        if on_text:
            on_text(0, PIECES[0])
        if "wait" in text:
            self.waits.wait(PATIENCE_SECONDS)
        if "breaks" in text:
            raise ValueError("`text` must be another one")
        return [[Hypothesis("".join(PIECES), math.nan, "cut" in text)]]


def one_hot_rows(shift, targets, sources):
    places = range(len(sources))
    looked_at = [(t + shift) % len(sources) for t in range(len(targets))]
    return [[float(s == chosen) for s in places] for chosen in looked_at]


def available(name, folder, model, **options):
    served = ServedModel(name, make_model_options(folder, **options), threads=1)
    batcher = Batcher(model.compute, model, max_tokens=8192, max_waiting=7)
    served.versions[3] = ModelVersion(3)
    served.versions[3].set_loaded(LoadedVersion(model, batcher))
    return served


def make_model_options(folder, **options):
    models = {"x": {"folder": folder, **options}}
    return make_server_options(models=models).models["x"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def models(folder):
    """The models by name: the first one is a SavedModel."""
    path = folder / "terms.tsv"
    path.write_text("two\tdeux\nseven\tsept\n")
    terms = {**OF_SAVED_MODEL, "constrained": Signature(CONSTRAINED, {})}
    found = {
        "saved": UpperCase("saved_model", signatures=OF_SAVED_MODEL),
        "fast": UpperCase(),
        "greedy": UpperCase(num_beams=1),
        "split": UpperCase(),
        "terms": UpperCase("saved_model", signatures=terms),
        "writer": Writer(),
    }
    options = {
        "fast": {"languages": ("en", "de")},
        "split": {"split_sentences": "en"},
        "terms": {"dictionary": path},
    }
    return {
        name: available(name, folder, model, **options.get(name, {}))
        for name, model in found.items()
    }


def computing(models, name):
    """Returns the `UpperCase` of a served model."""
    return models[name].available().loaded.model


@pytest.fixture(scope="module")
def address(models):
    with serving(models) as address:
        yield address


def generate(page, text=TEXT, wait_for="#attention:visible", model=None):
    if model:
        page.select_option("#model", model)
    page.fill("#text", text)
    page.press("#text", "Enter")
    page.wait_for_selector(wait_for)


def send_command(page, key=""):
    """Sends the request of the command that the page shows, and returns the body."""
    command, *words = shlex.split(page.text_content("#curl").replace("$KEY", key))
    assert command == "curl"
    words = [word for word in words if word != "--no-buffer"]
    url, headers = words[0], {}
    if words[1] == "-H":
        name, _, value = words[2].partition(": ")
        headers = {name: value}
    assert words[-2] == "-d"
    request = urllib.request.Request(url, words[-1].encode(), headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
        return response.read().decode()


def token(page, side, index):
    return page.locator(f"#{side} button").nth(index)


def shades(page, side="source"):
    script = "buttons => buttons.map(b => getComputedStyle(b).backgroundColor)"
    return page.eval_on_selector_all(f"#{side} button", script)


def figures(page, side="source"):
    return page.locator(f"#{side} small").all_inner_texts()


def pixel(page, target, source):
    """Returns the colour in the middle of a cell of the heat map."""
    script = """(canvas, [t, s, rows, columns]) => [...canvas.getContext("2d")
        .getImageData((s + 0.5) * canvas.width / columns,
                      (t + 0.5) * canvas.height / rows, 1, 1).data]"""
    sizes = [page.locator(f"#{side} button").count() for side in ("target", "source")]
    return page.eval_on_selector("#canvas", script, [target, source, *sizes])


def box(found):
    """Returns the edges of a box of `bounding_box`."""
    return SimpleNamespace(
        left=found["x"],
        right=found["x"] + found["width"],
        top=found["y"],
        bottom=found["y"] + found["height"],
    )


def test_the_file_has_no_external_resources_and_no_markup_from_data():
    text = PAGE.read_text("utf-8")
    linked = re.findall(r"""\b(?:src|href|action)\s*=\s*["']?([^"'\s>]+)""", text)
    assert linked and all(
        link.startswith(("data:", "/openapi.json", "/ready")) for link in linked
    )
    assert not re.search(r"\burl\(|@import|\bimport\b|EventSource|WebSocket", text)
    addresses = re.findall(r"https?://[^\s\"'`]+", text)
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}  # a namespace, not fetched
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text
    )
    assert not re.search(r"<[^>]+\son\w+\s*=|\beval\(|new Function", text)


# A text and its outputs.


@pytest.mark.parametrize(
    ("model", "asked", "listed"),
    [
        ("saved", ["attention_scores", "nbest"], [TEXT.upper(), TEXT.title()]),
        (
            "fast",
            ["generate"],
            [TEXT.upper(), TEXT.title(), TEXT.lower(), TEXT.swapcase()],
        ),
        ("greedy", ["generate"], []),
    ],
)
def test_the_outputs_and_their_scores(page, models, model, asked, listed):
    computing(models, model).asked.clear()
    end = "#attention:visible" if model == "saved" else "#copy:visible"
    generate(page, model=model, wait_for=end)
    assert page.inner_text("#best") == TEXT.upper()
    assert page.inner_text("#score") == "score −0.500"
    assert re.fullmatch(r"Response time: \d+\.\d\d\xa0s\.", page.inner_text("#time"))
    rows = page.locator("#nbest li > *").all_text_contents()
    assert page.is_visible("#others") == bool(listed)
    if listed:
        assert rows[::2] == listed
        assert rows[1::2] == [f"−{0.5 + i:.3f}" for i in range(len(listed))]
    assert sorted(computing(models, model).asked) == asked
    (sent,) = json.loads(send_command(page))["outputs"]["text"]
    assert sent == TEXT.upper() or sent[: len(listed)] == listed


def test_a_server_may_limit_the_beams(open_page, folder):
    model = UpperCase()
    with serving({"x": available("x", folder, model)}, max_beams=2) as address:
        page = open_page("#text=one+two", server=address)
        page.wait_for_selector("#others:visible")
        assert page.locator("#nbest li").count() == 2


def test_languages_are_beside_the_name(page):
    labels = page.locator("#model option").all_text_contents()
    assert labels[:2] == ["saved, version 3", "fast (en → de), version 3"]


def test_button_and_new_lines(page):
    page.fill("#text", "cut")
    page.press("#text", "Shift+Enter")
    page.type("#text", "two")
    assert page.get_attribute("#result", "aria-busy") == "false"
    page.click("#send")
    page.wait_for_selector("#attention:visible")
    assert page.inner_text("#best") == "CUT\nTWO"
    assert page.inner_text("#time").endswith("its end may be missing.")


def test_another_model_generates_again(page):
    generate(page)
    page.select_option("#model", "greedy")
    page.wait_for_selector("#attention", state="hidden")
    page.wait_for_selector("#copy:visible")
    assert page.inner_text("#best") == TEXT.upper()
    assert page.is_hidden("#others")


def test_an_empty_text_and_an_empty_output(page, models):
    generate(page, "nothing", wait_for="#copy:visible")
    assert page.inner_text("#best") == "The output is an empty text."
    model = computing(models, "saved")
    model.asked.clear()
    page.fill("#text", " \n ")
    page.press("#text", "Enter")
    page.wait_for_selector("#copy", state="hidden")
    assert page.inner_text("#best") == "" and page.is_hidden("#others")
    assert model.asked == []


def test_markup_is_text(page):
    text = "<img src=x onerror=alert(1)> <script>alert(2)</script> </textarea><b>x"
    generate(page, text)
    assert page.inner_text("#best") == text.upper()
    assert page.locator("#nbest li > :first-child").first.inner_text() == text.upper()
    token(page, "target", 0).hover()
    assert "<IMG" in page.inner_text("#description")
    assert page.locator("img, main b, main script").count() == 0


def test_directions_of_the_text(page):
    generate(page, "אחת שתיים שלוש")
    for selector in ("#text", "#best", "#source", "#target"):
        script = "found => getComputedStyle(found).direction"
        assert page.eval_on_selector(selector, script) == "rtl", selector
    first, second = (token(page, "source", i).bounding_box()["x"] for i in (0, 1))
    assert first > second


def test_a_link_shows_what_was_shared(page, open_page):
    text = "50 % & more #1 + 你好"
    generate(page, text, wait_for="#copy:visible", model="greedy")
    other = open_page(page.evaluate("location.hash"))
    other.wait_for_selector("#copy:visible")
    assert other.input_value("#text") == text
    assert other.input_value("#model") == "greedy"
    assert other.inner_text("#best") == text.upper()


@pytest.mark.parametrize("is_secure", [True, False])
def test_copies(open_page, is_secure):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    generate(page)
    clipboard = page.evaluate_handle("navigator.clipboard")
    if not is_secure:
        page.evaluate(
            "Object.defineProperty(navigator, 'clipboard', {value: undefined})"
        )
    page.click("#copy")
    page.wait_for_selector("#copy:text('Copied')")
    assert clipboard.evaluate("found => found.readText()") == TEXT.upper()


def test_the_command_line_quotes_the_text(page):
    generate(page, "it's $HOME \\", wait_for="#copy:visible")
    assert json.loads(send_command(page))["outputs"]["text"][0][0] == "IT'S $HOME \\"


# Sentences and terms.


def test_sentences_are_generated_separately(page):
    generate(page, "One thing. Another.", wait_for="#copy:visible", model="split")
    assert page.inner_text("#best") == "ONE THING. ANOTHER."
    assert page.inner_text("#score") == "score −1.000"  # the sum
    assert "is the sum of their scores" in page.inner_text("#meaning")
    assert page.is_hidden("#others")
    assert "nbest" not in page.text_content("#curl")
    generate(page, "One thing.", wait_for="#others:visible")


def test_a_dictionary_applies_to_the_outputs(open_page):
    page = open_page(
        f"#model=terms&text={TEXT}", viewport={"width": 360, "height": 800}
    )
    page.wait_for_selector("#attention:visible")
    assert "a dictionary of 2 terms for this model" in page.inner_text("#terms")
    assert page.inner_text("#best") == f"{TEXT.upper()} deux"
    assert page.is_hidden("#others")
    assert page.inner_text("#note") == (
        f"Attention weights of another output: {TEXT.upper()}"
    )
    assert "deux" in send_command(page)
    generate(page, "no term")
    assert page.inner_text("#best") == "NO TERM"
    assert "outputs without the dictionary" in page.inner_text("#others-title")
    page.select_option("#model", "saved")
    page.wait_for_selector("#terms", state="hidden")


# Errors and waiting.


def test_a_refusal_is_shown_as_text(page):
    generate(page)
    generate(page, "refuse this", wait_for="#error:visible")
    refusal = "Error: `text` must have at most <b>9</b> tokens"
    assert page.inner_text("#error") == refusal
    assert page.inner_text("#best") == "" and page.is_hidden("#attention")
    generate(page)
    assert page.is_hidden("#error")


def test_a_text_with_too_many_tokens_is_explained(page):
    generate(page, "a " * 96 + "😀", wait_for="#error:visible", model="fast")
    error = page.inner_text("#error")
    assert error.startswith("Error: The text has 193 characters, but the model ")
    assert "at most 97 tokens" in error and "Shorten the text" in error


def test_an_unreachable_server(page):
    page.route("**/*:predict", lambda route: route.abort())
    generate(page, wait_for="#error:visible")
    assert "The server does not respond" in page.inner_text("#error")
    assert page.get_attribute("#result", "aria-busy") == "false"


def test_a_model_that_is_loading_and_one_that_fails(open_page, folder):
    late, bad = (available(name, folder, UpperCase()) for name in ("late", "bad"))
    late.versions[3].state = "LOADING"
    bad.versions[3].state, bad.versions[3].error = "END", "it is damaged"
    with serving({"late": late, "bad": bad}) as address:
        page = open_page("#model=late&text=one", address, "#state:visible")
        assert "loading the model “late”" in page.inner_text("#state")
        assert page.is_hidden("#error") and page.is_disabled("#send")
        assert page.get_attribute("#state", "class") == "card"
        late.versions[3].state = "AVAILABLE"
        page.wait_for_selector("#copy:visible")
        assert page.inner_text("#best") == "ONE"
        assert page.is_hidden("#state")
        page.select_option("#model", "bad")
        assert page.inner_text("#state").endswith("load the model “bad”: it is damaged")
        assert page.get_attribute("#state", "class") == "card alarm"
        page.wait_for_selector("#best:empty")


def test_an_unknown_model_in_a_link(open_page):
    page = open_page("#model=other&text=one")
    assert "model “other” does not exist" in page.inner_text("#error")
    assert page.input_value("#text") == "one"
    assert page.inner_text("#best") == ""


def test_a_newer_text_replaces_a_waiting_one(page, models):
    model = computing(models, "fast")
    model.waits.clear()
    page.select_option("#model", "fast")
    page.fill("#text", "wait for it")
    with page.expect_event("requestfailed") as failed:
        page.press("#text", "Enter")
        page.wait_for_selector("#result[aria-busy=true]")
        assert page.inner_text("#time") == "Generating …"
        page.fill("#text", "new")
        page.press("#text", "Enter")
    assert "ABORTED" in failed.value.failure
    model.waits.set()
    page.wait_for_selector("#copy:visible")
    assert page.inner_text("#best") == "NEW"


def test_the_text_does_not_wait_for_the_compilation_of_the_attention(open_page, folder):
    model = UpperCase("saved_model", signatures=OF_SAVED_MODEL)
    model.remaining = 5
    with serving({"x": available("x", folder, model)}) as address:
        page = open_page("#text=one+two", server=address)
        page.wait_for_selector("#note:visible")
        assert page.inner_text("#note") == "The attention map is being compiled."
        page.wait_for_selector("#copy:visible")
        assert page.inner_text("#best") == "ONE TWO"
        assert "still compiling the model “x” (5 shapes" in page.inner_text("#state")
        model.remaining = 0
        page.wait_for_selector("#matrix:visible")
        page.wait_for_selector("#state", state="hidden")
        assert page.is_hidden("#note")


def test_a_key(open_page, folder):
    model = UpperCase()
    served = {"x": available("x", folder, model)}
    with serving(served, api_key="open-sesame") as address:
        page = open_page("#text=one", address, "#key-form:visible")
        assert page.is_hidden("#error")
        page.fill("#key", "open")
        page.press("#key", "Enter")
        page.wait_for_selector("#error:visible")
        assert page.inner_text("#error") == "Error: The server refuses the key."
        page.fill("#key", "open-sesame")
        page.press("#key", "Enter")
        page.wait_for_selector("#copy:visible")
        assert page.inner_text("#best") == "ONE"
        assert page.is_hidden("#error") and page.is_hidden("#key-form")
        assert "sesame" not in page.text_content("#curl")
        assert "ONE" in send_command(page, key="open-sesame")
        page.reload()
        page.wait_for_selector("#copy:visible")


# The length of a text.


def test_a_counter_shows_the_length_and_the_limit(page):
    assert page.inner_text("#count") == "0 / 5,000 characters"
    page.fill("#text", "x" * 4998 + "😀é")  # the emoji has two units of UTF-16
    assert page.inner_text("#count") == "5,000 / 5,000 characters"
    assert page.is_hidden("#too-long") and page.is_enabled("#send")


def test_a_text_that_is_too_long_is_explained(page, models):
    generate(page)
    model = computing(models, "saved")
    model.asked.clear()
    page.fill("#text", "x" * 5001)
    explanation = page.inner_text("#too-long")
    assert "5,001 characters" in explanation and "at most 5,000" in explanation
    assert page.get_attribute("#text", "aria-invalid") == "true"
    assert page.is_disabled("#send")
    page.press("#text", "Enter")
    page.wait_for_selector("#others", state="hidden")
    assert page.inner_text("#best") == "" and model.asked == []
    page.fill("#text", "x" * 5000)
    assert page.is_hidden("#too-long") and page.is_enabled("#send")
    assert page.get_attribute("#text", "aria-invalid") == "false"


# Attention.


def test_tokens_are_shown_with_marks_for_spaces(page):
    generate(page)
    words = page.locator("#source bdi").all_inner_texts()
    assert words == [*TEXT.split(), "</s>"]
    assert page.locator("#source .space").count() == 6
    assert page.locator("#target bdi").all_inner_texts()[1] == "TWO"


def test_pointing_at_an_output_word_shades_the_text(page):
    generate(page)
    assert shades(page) == [NO_SHADE] * 7
    page.select_option("#layer", "1")
    page.select_option("#head", "2")
    token(page, "target", 2).hover()
    found = shades(page)
    assert len(set(found)) == 2 and found.count(found[3]) == 1
    assert figures(page) == ["", "", "", "1.00", "", "", ""]
    assert plain(page.inner_text("#description")) == "“THREE” attends to “four” 1.00"
    token(page, "target", 5).hover()
    assert figures(page)[6] == "1.00"
    page.hover("h1")
    assert shades(page) == [NO_SHADE] * 7
    assert page.inner_text("#description").startswith("Point to a token")


def test_nothing_moves_under_the_pointer(open_page):
    page = open_page(viewport={"width": 360, "height": 2000})
    generate(page, "a b c d e f g h i j k one two three four five six")
    script = """found => found.map(e => {
        const box = e.getBoundingClientRect();
        return [box.x, box.y, box.width, box.height];
    })"""
    boxes = [page.eval_on_selector_all("#words button, #canvas", script)]
    for side, index in (("target", 2), ("target", 16), ("source", 12)):
        token(page, side, index).hover()
        assert page.inner_text("#description").count("0.17") == 6
        boxes.append(page.eval_on_selector_all("#words button, #canvas", script))
    assert boxes == [boxes[0]] * 4


def test_pointing_at_a_word_of_the_text_shades_the_output(page):
    generate(page)
    page.select_option("#layer", "2")
    page.select_option("#head", "1")
    token(page, "source", 4).hover()
    assert figures(page, "target") == ["", "1.00", "", "", "", "", ""]
    assert figures(page) == [""] * 7
    assert (
        plain(page.inner_text("#description")) == "“five” is attended to by “TWO” 1.00"
    )


def test_layers_and_heads(page):
    generate(page)
    for name, count in (("layer", NUM_LAYERS), ("head", NUM_HEADS)):
        options = page.locator(f"#{name} option").all_inner_texts()
        assert options == ["mean of all", *map(str, range(1, count + 1))]
    token(page, "target", 0).click()
    assert figures(page) == ["0.17"] * 6 + [""]
    page.select_option("#layer", "1")
    assert figures(page) == ["0.33"] * 3 + [""] * 4
    page.select_option("#head", "3")
    assert figures(page) == ["", "", "1.00", "", "", "", ""]
    page.select_option("#layer", "")
    assert figures(page) == ["", "", "0.50", "", "", "0.50", ""]
    generate(page, "one two three")
    assert page.input_value("#head") == "3"


def test_a_click_pins_a_word_and_escape_releases_it(page):
    generate(page)
    token(page, "target", 1).click()
    page.hover("h1")
    assert token(page, "target", 1).get_attribute("aria-pressed") == "true"
    assert figures(page)[1] == "0.17"
    page.press("body", "Escape")
    assert figures(page) == [""] * 7
    assert page.locator("[aria-pressed=true]").count() == 0


def test_words_can_be_reached_by_keyboard(page):
    generate(page)
    page.select_option("#layer", "1")
    page.select_option("#head", "1")
    page.focus("#target button")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert figures(page).index("1.00") == 2
    page.keyboard.press("End")
    assert figures(page).index("1.00") == 6
    page.keyboard.press("ArrowRight")
    assert figures(page).index("1.00") == 6
    assert page.locator("#target [tabindex='0']").count() == 1
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.parentElement.id") == "source"


def test_heat_map(page):
    generate(page)
    page.select_option("#layer", "1")
    page.select_option("#head", "2")
    high, low = pixel(page, 2, 3), pixel(page, 2, 2)
    assert high[3] == low[3] == 255
    assert sum(high) < sum(low)
    for t in range(7):
        assert [pixel(page, t, s) == high for s in range(7)].index(True) == (t + 1) % 7
    assert page.inner_text("#highest") == "1.00"
    page.select_option("#layer", "")
    assert page.inner_text("#highest") == "0.50"


def test_pointing_at_the_heat_map(page):
    generate(page)
    page.select_option("#layer", "1")
    box = page.locator("#canvas").bounding_box()
    cell = box["width"] / 7
    page.hover("#canvas", position={"x": 3.5 * cell, "y": 1.5 * cell})
    assert plain(page.inner_text("#description")) == "“TWO” attends to “four” 0.33"
    assert figures(page)[1:4] == ["0.33"] * 3
    row, column = (page.locator(f"#{b}-band").bounding_box() for b in ("row", "column"))
    assert row["y"] == pytest.approx(box["y"] + cell, abs=1)
    assert column["x"] == pytest.approx(box["x"] + 3 * cell, abs=1)
    chosen = page.locator("#map .chosen").all_inner_texts()
    assert chosen == ["four", "TWO"]


LONG = "a incomprehensibilities bb Donaudampfschifffahrtsgesellschaft ccc"


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("text", [LONG, "字 字"], ids=["long", "letters"])
def test_labels_of_the_heat_map_are_beside_the_cells(open_page, width, text):
    page = open_page(viewport={"width": width, "height": 844})
    generate(page, text)
    count = len(text.split()) + 1
    cells = box(page.locator("#canvas").bounding_box())
    rows, columns = (page.evaluate(LABELS, side) for side in ("rows", "columns"))
    assert len(rows) == len(columns) == count
    size = (cells.right - cells.left) / count
    for i, row in enumerate(map(box, rows)):
        assert cells.left - row.right >= 3
        assert row.top >= cells.top + i * size - 1
        assert row.bottom <= cells.top + (i + 1) * size + 1
    for i, column in enumerate(map(box, columns)):
        assert 3 <= cells.top - column.bottom < 12
        assert column.left >= cells.left + i * size - 1
        assert column.right <= cells.left + (i + 1) * size + 1
    assert max(row["width"] for row in rows) <= 0.25 * width
    assert max(column["height"] for column in columns) <= 112


@pytest.mark.parametrize(
    ("text", "is_upright"), [("a b 字", True), ("a bb", False), (TEXT, False)]
)
def test_short_labels_of_columns_are_upright(page, text, is_upright):
    generate(page, text)
    script = "found => found.map(label => getComputedStyle(label).writingMode)"
    *words, end = page.eval_on_selector_all("#columns span", script)
    mode = "horizontal-tb" if is_upright else "vertical-rl"
    assert words == [mode] * len(text.split())
    assert end == "vertical-rl"


def test_attention_of_another_output_has_a_note(page):
    generate(page, "another sample")
    assert page.inner_text("#note").endswith("of another output: ANOTHER ONE")
    generate(page, "one")
    assert page.is_hidden("#note")


def test_attention_of_long_texts_is_not_requested(page, models):
    model = computing(models, "saved")
    model.asked.clear()
    generate(page, "word " * 81)
    assert page.inner_text("#note").endswith("texts of at most 400 characters.")
    assert model.asked == ["nbest"]


def plain(text):
    """Removes the marks that isolate words of other directions."""
    return text.replace("\u2068", "").replace("\u2069", "")


# Small screens and dark mode.


@pytest.mark.parametrize(
    "text",
    ["w" * 97, "one " * 67, "字" * 67],
    ids=["one word", "long", "no spaces"],
)
def test_a_phone_needs_no_horizontal_scrolling(open_page, text):
    size = {"width": 360, "height": 640}
    page = open_page(viewport=size, has_touch=True, is_mobile=True)
    generate(page, text)
    token(page, "target", 0).tap()
    assert figures(page)[0] in ("0.17", "0.50", "0.33")
    widths = "[document.documentElement.scrollWidth, innerWidth]"
    assert page.evaluate(widths) == [360, 360]


def test_colours_follow_the_system(page):
    background = "getComputedStyle(document.body).backgroundColor"
    generate(page)
    light, cell = page.evaluate(background), pixel(page, 0, 6)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(background) != light
    end = time.monotonic() + 60
    while sum(pixel(page, 0, 6)) >= sum(cell):  # until the map is drawn again
        assert time.monotonic() < end
        page.wait_for_timeout(50)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(open_page, scheme):
    page = open_page(color_scheme=scheme)
    generate(page)
    token(page, "target", 2).click()
    assert page.evaluate(FAINT_TEXTS) == []
    page.fill("#text", "x" * 5001)
    page.wait_for_selector("#too-long:visible")
    assert page.evaluate(FAINT_TEXTS) == []
    generate(page, "refuse", wait_for="#error:visible")
    assert page.evaluate(FAINT_TEXTS) == []
    page.evaluate("document.body.style.color = '#777'")
    assert page.evaluate(FAINT_TEXTS) != []


# Language models.


def test_a_language_model_continues_a_prompt(page, models):
    model = computing(models, "writer")
    model.waits.clear()
    generate(page, "wait <i>", "#best :text('<b>one</b>')", model="writer")
    assert page.inner_text("#best") == "wait <i> <b>one</b>"
    assert page.get_attribute("#result", "aria-busy") == "true"
    model.waits.set()
    page.wait_for_selector("#copy:visible")
    assert page.inner_text("#best") == "wait <i>" + "".join(PIECES)
    assert page.is_hidden("#attention") and page.is_hidden("#meaning")
    events = send_command(page).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    texts = [json.loads(event[6:])["choices"][0]["text"] for event in events[:-2]]
    assert "".join(texts) == "".join(PIECES)


def test_an_empty_prompt_is_continued_up_to_the_maximum_length(page):
    page.select_option("#model", "writer")
    assert page.get_attribute("#result", "aria-busy") == "false"
    page.click("#send")
    page.wait_for_selector("#copy:visible")
    assert page.text_content("#best") == "".join(PIECES)
    assert "missing" not in page.inner_text("#time")
    generate(page, "cut", wait_for="#copy:visible")
    assert page.inner_text("#time").endswith("its end may be missing.")


def test_a_text_that_breaks_off_is_kept(page):
    generate(page, "It breaks", wait_for="#error:visible", model="writer")
    assert "must be another one" in page.inner_text("#error")
    assert page.inner_text("#best") == "It breaks <b>one</b>"
    assert page.get_attribute("#result", "aria-busy") == "false"
    generate(page, "a " * 97, wait_for="#error:text('at most 97 tokens')")
    assert page.inner_text("#best") == ""


# The command `serve` with CTranslate2.


def test_models_for_ctranslate2(open_page, tmp_path):
    translator = model_of(seed=5, tie_embeddings="none", max_target_length=17)
    translator.logits_bias.assign([-100, 0, 0, 2] + [0] * 7)  # ends early
    search = BeamSearch(3, 0.0)
    translator.export(tmp_path / "letters" / "1", search, format="ctranslate2")
    writer = causal_model_of(seed=3, max_length=19, tie_embeddings=False)
    writer.export(tmp_path / "writer" / "1", GreedySearch(), format="ctranslate2")
    folders = [str(tmp_path / name) for name in ("letters", "writer")]
    command = [sys.executable, "-m", "keras_transformer_runtime", "serve", *folders]
    with subprocess.Popen(
        [*command, "--port", "0"], stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            found = (re.search(r"http://\S+", line) for line in server.stderr)
            page = open_page(server=next(filter(None, found))[0] + "/")
            generate(page, "deadbeef", wait_for="#others:visible")
            (output,) = translator.generate(["deadbeef"], search)
            assert page.inner_text("#best") == output
            assert page.locator("#nbest li").count() == 3
            assert page.is_hidden("#attention")
            generate(page, "cafe", wait_for="#copy:visible", model="writer")
            (written,) = writer.generate(["cafe"], GreedySearch())
            assert page.text_content("#best") == f"cafe{written}"
        finally:
            server.terminate()
