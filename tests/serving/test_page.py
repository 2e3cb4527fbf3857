"""The page of the server: its file, and its behaviour in a browser."""

import asyncio
import contextlib
import re
import shutil
import threading
from types import SimpleNamespace

import pytest
import uvicorn

from keras_transformer_runtime.serving.application import PAGE, Application
from keras_transformer_runtime.serving.batching import Batcher
from keras_transformer_runtime.serving.rest import Signature, TensorSpec
from keras_transformer_runtime.serving.served_model import ModelVersion, ServedModel
from keras_transformer_runtime.serving.server_options import ModelOptions, ServerOptions

pytestmark = [pytest.mark.slow, pytest.mark.once]

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
STRING = TensorSpec("string", 1)
NBEST = {"text": STRING, "prefix": STRING, "seed": TensorSpec("int32", 1)}
SIGNATURES = {
    "serving_default": Signature({"text": STRING}, {}),
    "nbest": Signature(NBEST, {}),
    "attention_scores": Signature({"text": STRING}, {}),
}
NUM_LAYERS, NUM_HEADS = 2, 3
TEXT = "one two three four five six"  # 7 tokens with the end token
PATIENCE_SECONDS = 10
NO_SHADE = "rgba(0, 0, 0, 0)"
# Colours of the text and the left border of elements.
COLOURS = """() => Object.fromEntries(["body", "#loading", "#error"].map(selector => {
    const {color, borderLeftColor} = getComputedStyle(document.querySelector(selector));
    return [selector, {color, borderLeftColor}];
}))"""
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
# Texts whose contrast is less than that of WCAG 2, level AA.
FAINT_TEXTS = """() => {
    const parse = color => color.match(/[\\d.]+/g).map(Number);
    const light = color => {
        const [r, g, b] = parse(color).map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = element => {
        const color = getComputedStyle(element).backgroundColor;
        return parse(color)[3] === 0 ? behind(element.parentElement) : color;
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
        const [text, element] = [walker.currentNode, walker.currentNode.parentElement];
        const isShown = element.checkVisibility() && text.data.trim();
        if (!isShown || element.closest("script, option, :disabled")) continue;
        const lights = [getComputedStyle(element).color, behind(element)].map(light);
        const contrast = (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05);
        if (contrast < 4.5) found.push(text.data);
    }
    return found;
}"""


class UpperCase:
    """A model that changes words to upper case, with fixed attention.

    In head h of layer l, token t attends to token t + 3 l + h, modulo their number.

    Attributes:
        asked: the requests, in order.
        waits: event that texts with "wait" wait for.
    """

    def __init__(self):
        self.asked = []
        self.waits = threading.Event()

    async def compute(self, signature, requests):
        return [await self.answer(signature, **inputs) for inputs in requests]

    async def answer(
        self, signature, text, prefix=None, seed=None, state=None, constraints=None
    ):
        (text,) = text
        self.asked.append((signature, text))
        if "wait" in text:
            await asyncio.to_thread(self.waits.wait, PATIENCE_SECONDS)
        if "refuse" in text or ("long" in text and signature != "serving_default"):
            return "`text` must have at most <b>9</b> tokens"
        if "limit" in text:
            name = "max_length" if "prompt" in text else "max_source_length"
            return f"`text` must have at most {name}=1024 tokens"
        if signature == "continue":
            return self.piece(text, *state)
        best = "" if "nothing" in text else text.upper()
        if signature == "constrained":
            return {"text": [[f"{best} {constraints[0]}"]], "score": [[-2.0]]}
        if signature == "nbest":
            return {"text": [[best, text.title()]], "score": [[-0.5, -1.25]]}
        outputs = {"text": [best], "score": [-0.5]}
        if signature == "attention_scores":
            outputs |= self.attention(text, best)
        if "another" in text:
            outputs["text"] = ["ANOTHER ONE"]
        return outputs

    def piece(self, prompt, state):
        """Continues a prompt with `" <b>one</b> <b>two</b> <b>three</b>"`."""
        count = len(state) + 1
        if count == 2 and "breaks" in prompt:
            return "`text` must be another one"
        words = [" <b>one</b>", " <b>two</b>", " <b>three</b>"][:count]
        return {
            "text": ["".join(words)],
            "state": ["x" * count],
            "length": [count],
            "done": [int(count == 3)],
        }

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
            "source_tokens": [sources],
            "tokens": [targets],
            "attention_scores": [scores],
        }


def one_hot_rows(shift, targets, sources):
    places = range(len(sources))
    looked_at = [(t + shift) % len(sources) for t in range(len(targets))]
    return [[float(s == chosen) for s in places] for chosen in looked_at]


def available(name, folder, model, signatures, **options):
    replicas = SimpleNamespace(signatures=signatures, metadata={})
    batcher = Batcher(model.compute, slots=5, max_batch_size=1, max_waiting=7)
    served = ServedModel(name, ModelOptions(folder=folder, **options), cluster=None)
    served.versions[3] = ModelVersion(3)
    served.versions[3].set_loaded(replicas, batcher)
    return served


@contextlib.contextmanager
def serving(models, **options):
    """Serves models over HTTP, and yields the address."""
    application = Application(models, ServerOptions.model_construct(**options))
    config = uvicorn.Config(application.asgi, port=0, log_level="warning", ws="none")
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="module")
def model():
    return UpperCase()


@pytest.fixture(scope="module")
def models(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    plain = {"serving_default": SIGNATURES["serving_default"]}
    path = folder / "terms.tsv"
    path.write_text("two\tdeux\nseven\tsept\n")
    terms = {**SIGNATURES, "constrained": Signature({}, {})}
    return {
        "upper": available("upper", folder, model, SIGNATURES),
        "plain": available("plain", folder, model, plain),
        "split": available("split", folder, model, SIGNATURES, split_sentences="en"),
        "terms": available("terms", folder, model, terms, dictionary=path),
        "writer": available("writer", folder, model, {"continue": Signature({}, {})}),
    }


@pytest.fixture(scope="module")
def address(models):
    with serving(models) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, address):
    """Opens the page. It must send no request elsewhere and have no error."""
    pages, complaints = [], []

    def complain(message):
        # The page itself shows responses with a status of at least 400.
        is_answer = message.text.startswith("Failed to load resource")
        if message.type == "error" and not is_answer:
            complaints.append(message.text)

    def open_page(fragment="", **settings):
        context = browser.new_context(**settings)
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        page = context.new_page()
        page.on("console", complain)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: pages.append(request.url))
        page.goto(address + fragment)
        page.wait_for_selector("#send:enabled")
        return page

    yield open_page
    for context in browser.contexts:
        context.close()
    assert complaints == []
    assert [url for url in pages if not url.startswith((address, "data:"))] == []


@pytest.fixture
def page(open_page):
    return open_page()


def generate(page, text=TEXT, wait_for="#attention:visible"):
    page.fill("#text", text)
    page.press("#text", "Enter")
    page.wait_for_selector(wait_for)


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


def alarm(page):
    """Returns the colour of errors."""
    return page.evaluate("""() => {
        const probe = document.body.appendChild(document.createElement("i"));
        probe.style.color = "var(--alarm)";
        const {color} = getComputedStyle(probe);
        probe.remove();
        return color;
    }""")


# The file.


def test_page_has_no_external_resources():
    text = PAGE.read_text("utf-8")
    linked = re.findall(r"""\b(?:src|href|action)\s*=\s*["']?([^"'\s>]+)""", text)
    assert linked and all(
        link.startswith(("data:", "/v1", "/ready", "/metrics")) for link in linked
    )
    assert not re.search(r"\burl\(|@import|\bimport\b|EventSource|WebSocket", text)
    addresses = re.findall(r"https?://[^\s\"'`]+", text)
    assert set(addresses) <= {"http://www.w3.org/2000/svg"}  # a namespace, not fetched


def test_page_has_no_markup_from_data_and_no_inline_handlers():
    text = PAGE.read_text("utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text
    )
    assert not re.search(r"<[^>]+\son\w+\s*=", text)
    assert not re.search(r"\beval\(|new Function", text)


# A text and its outputs.


def test_shows_the_best_output_and_all_with_scores(page, model):
    model.asked.clear()
    generate(page)
    assert page.inner_text("#best") == TEXT.upper()
    assert page.inner_text("#score") == "score −0.500"
    assert re.fullmatch(r"Response time: \d+\.\d\d\xa0s", page.inner_text("#time"))
    listed = page.locator("#nbest li > *").all_inner_texts()
    assert listed == [TEXT.upper(), "−0.500", TEXT.title(), "−1.250"]
    assert sorted(model.asked) == [("attention_scores", TEXT), ("nbest", TEXT)]


def test_button_and_new_lines(page, model):
    model.asked.clear()
    page.fill("#text", "one")
    page.press("#text", "Shift+Enter")
    page.type("#text", "two")
    assert model.asked == []
    page.click("#send")
    page.wait_for_selector("#attention:visible")
    assert page.inner_text("#best") == "ONE\nTWO"


def test_a_model_that_has_one_signature(page):
    page.select_option("#model", "plain")
    generate(page, "one two", wait_for="#copy:visible")
    assert page.inner_text("#best") == "ONE TWO"
    assert page.is_hidden("#others") and page.is_hidden("#attention")


def test_another_model_generates_again(page):
    generate(page)
    page.select_option("#model", "plain")
    page.wait_for_selector("#attention", state="hidden")
    page.wait_for_selector("#copy:visible")
    assert page.inner_text("#best") == TEXT.upper()
    assert page.is_hidden("#others")


def test_an_empty_text_sends_no_request(page, model):
    generate(page)
    model.asked.clear()
    page.fill("#text", " \n ")
    page.press("#text", "Enter")
    page.wait_for_selector("#attention", state="hidden")
    assert page.inner_text("#best") == "" and page.is_hidden("#others")
    assert model.asked == []


def test_an_empty_output(page):
    generate(page, "nothing", wait_for="#copy:visible")
    assert page.inner_text("#best") == "The output is an empty text."


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
    page.select_option("#model", "plain")
    generate(page, text, wait_for="#copy:visible")
    fragment = page.evaluate("location.hash")
    other = open_page(fragment)
    other.wait_for_selector("#copy:visible")
    assert other.input_value("#text") == text
    assert other.input_value("#model") == "plain"
    assert other.inner_text("#best") == text.upper()


def test_copies(open_page):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    generate(page)
    page.click("#copy")
    page.wait_for_selector("#copy:text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == TEXT.upper()
    page.click("#link")
    page.wait_for_selector("#link:text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()") == page.url


def test_the_command_line_has_the_same_request(page):
    generate(page, "it's", wait_for="#copy:visible")
    command = page.text_content("#curl")
    assert "/v1/models/upper:predict -d '" in command
    assert '"signature_name":"nbest","inputs":{"text":["it\'\\\'\'s"]' in command


# Errors and waiting.


def test_a_refusal_is_shown_as_text(page):
    generate(page)
    generate(page, "refuse this", wait_for="#error:visible")
    refusal = "Error: `text` must have at most <b>9</b> tokens"
    assert page.inner_text("#error") == refusal
    assert page.inner_text("#best") == "" and page.is_hidden("#attention")
    generate(page)
    assert page.is_hidden("#error")


def test_a_text_that_the_search_refuses_may_be_split(page):
    page.select_option("#model", "split")
    generate(page, "A long text. And more.")
    assert page.inner_text("#best") == "A LONG TEXT. AND MORE."
    assert page.is_hidden("#others")
    assert "at most <b>9</b> tokens" in page.inner_text("#note")
    assert page.is_hidden("#words") and page.is_hidden("#matrix")
    command = page.text_content("#curl")
    assert "models/split:predict" in command and "nbest" not in command
    generate(page)  # one sentence
    assert page.is_visible("#others")


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
    command = page.text_content("#curl")
    assert "models/terms:predict" in command and "signature_name" not in command
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    generate(page, "no term")
    assert page.inner_text("#best") == "NO TERM"
    assert "outputs without the dictionary" in page.inner_text("#others-title")
    page.select_option("#model", "upper")
    page.wait_for_selector("#terms", state="hidden")


def test_an_unreachable_server(page):
    page.route("**/*:predict", lambda route: route.abort())
    generate(page, wait_for="#error:visible")
    assert "The server does not respond" in page.inner_text("#error")
    assert page.get_attribute("#result", "aria-busy") == "false"


def test_a_model_that_is_ready_later(open_page, models, model, tmp_path):
    late = available("late", tmp_path, model, SIGNATURES)
    version = late.versions.pop(3)
    models["late"] = late
    try:
        page = open_page("#model=late&text=one")
        assert "loading the model “late”" in page.inner_text("#loading")
        assert page.is_hidden("#error")
        late.versions[3] = version
        page.wait_for_selector("#attention:visible")
        assert page.inner_text("#best") == "ONE"
        assert page.is_hidden("#loading")
    finally:
        del models["late"]


def test_an_unknown_model_in_a_link(open_page):
    page = open_page("#model=other&text=one")
    assert "Model “other” does not exist" in page.inner_text("#error")
    assert page.input_value("#text") == "one"


@pytest.fixture
def loading(model, tmp_path):
    """A model whose version is loading."""
    served = available("upper", tmp_path, model, SIGNATURES)
    served.versions[3].state = "LOADING"
    return served


@pytest.fixture
def waiting_page(browser, loading):
    """A page with a stopped clock, before a model is ready."""
    with serving({"upper": loading}) as address:
        page = browser.new_page()
        page.clock.install()
        page.goto(address)
        page.wait_for_selector("#loading:visible")
        yield page
        page.close()


def test_waits_for_a_model(waiting_page, loading):
    page = waiting_page
    assert "loading the model “upper”" in page.inner_text("#loading")
    assert page.is_hidden("#error") and page.is_disabled("#send")
    loading.versions[3].state = "AVAILABLE"
    page.clock.run_for(2000)
    page.wait_for_selector("#send:enabled")
    assert page.is_hidden("#loading") and page.is_hidden("#error")


def test_loading_is_no_alarm(waiting_page):
    colours = waiting_page.evaluate(COLOURS)
    assert alarm(waiting_page) not in colours["#loading"].values()
    assert colours["#loading"]["color"] == colours["body"]["color"]
    assert set(colours["#error"].values()) >= {alarm(waiting_page)}
    assert waiting_page.get_attribute("#loading", "role") == "status"
    assert waiting_page.get_attribute("#error", "role") == "alert"


def test_a_model_that_cannot_be_loaded(waiting_page, loading):
    page = waiting_page
    loading.versions[3].state, loading.versions[3].error = "END", "it is damaged"
    page.clock.run_for(2000)
    page.wait_for_selector("#error:visible")
    failure = "Error: Model “upper” cannot be loaded: it is damaged"
    assert page.inner_text("#error") == failure
    assert page.is_hidden("#loading")
    loading.versions[3].state, loading.versions[3].error = "AVAILABLE", ""
    page.clock.run_for(2000)
    page.wait_for_selector("#send:enabled")
    assert page.is_hidden("#error")


def test_a_server_without_models(browser):
    with serving({}) as address:
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("#loading:visible")
        assert page.inner_text("#loading").startswith("The server has no model yet")
        page.close()


def test_a_newer_text_replaces_a_waiting_one(page, model):
    model.waits.clear()
    page.fill("#text", "wait for it")
    with page.expect_event("requestfailed") as failed:
        page.press("#text", "Enter")
        page.wait_for_selector("#result[aria-busy=true]")
        assert page.inner_text("#time") == "Generating …"
        generate(page, "new")
    assert "ABORTED" in failed.value.failure
    model.waits.set()
    generate(page, "newer")
    assert page.inner_text("#best") == "NEWER"


# The length of a text.


def test_a_counter_shows_the_length_and_the_limit(page):
    assert page.inner_text("#count") == "0 / 5,000 characters"
    page.type("#text", "one")
    assert page.inner_text("#count") == "3 / 5,000 characters"
    page.fill("#text", "x" * 4998 + "😀é")  # the emoji has two units of UTF-16
    assert page.inner_text("#count") == "5,000 / 5,000 characters"
    assert page.is_hidden("#too-long") and page.is_enabled("#send")


def test_a_text_that_is_too_long_is_explained(page, model):
    generate(page)
    model.asked.clear()
    page.fill("#text", "x" * 5001)
    explanation = page.inner_text("#too-long")
    assert "5,001 characters" in explanation and "at most 5,000" in explanation
    assert "Shorten the text" in explanation
    assert page.get_attribute("#text", "aria-invalid") == "true"
    assert "too-long" in page.get_attribute("#text", "aria-describedby").split()
    assert page.is_disabled("#send")
    page.press("#text", "Enter")
    page.wait_for_selector("#others", state="hidden")
    assert page.inner_text("#best") == "" and model.asked == []
    page.fill("#text", "x" * 5000)
    assert page.is_hidden("#too-long") and page.is_enabled("#send")
    assert page.get_attribute("#text", "aria-invalid") == "false"


def test_the_limit_is_that_of_the_server(browser, models):
    with serving(models, max_characters=7) as address:
        page = browser.new_page()
        page.goto(address + "#text=eight+ch")
        page.wait_for_selector("#too-long:visible")
        assert page.inner_text("#count") == "8 / 7 characters"
        assert page.inner_text("#best") == ""
        page.close()


@pytest.mark.parametrize(("text", "size"), [("the limit 😀", 11), ("prompt limit", 12)])
def test_a_text_with_too_many_tokens_is_explained(text, size, page):
    generate(page, text, wait_for="#error:visible")
    error = page.inner_text("#error")
    assert error.startswith(f"Error: The text has {size} characters, but the model ")
    assert "at most 1,024 tokens" in error and "Shorten the text" in error


# Words of the page.


def test_words_suit_any_model(page, model):
    assert page.inner_text("#send") == "Generate"
    assert not re.search("translat", page.inner_text("body"), re.IGNORECASE)
    assert page.is_hidden("#meaning")
    generate(page)
    assert not re.search("translat", page.inner_text("body"), re.IGNORECASE)


def test_the_meaning_of_a_score(page):
    generate(page)
    meaning = page.inner_text("#meaning")
    assert "log-probability of the output, divided by the length penalty" in meaning
    assert "sum" not in meaning
    page.select_option("#model", "split")
    page.wait_for_selector("#meaning:text('the sum of their scores')")
    page.fill("#text", "")
    page.press("#text", "Enter")
    page.wait_for_selector("#meaning", state="hidden")


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


@pytest.mark.parametrize("width", [360, 1100])
def test_nothing_moves_under_the_pointer(open_page, width):
    page = open_page(viewport={"width": width, "height": 2000})
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
@pytest.mark.parametrize(
    "text", [TEXT, LONG, "a b", "字 字"], ids=["words", "long", "letters", "no letters"]
)
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


def test_attention_of_long_texts_is_not_requested(page, model):
    model.asked.clear()
    generate(page, "word " * 81)
    assert page.inner_text("#note").endswith("texts of at most 400 characters.")
    assert [signature for signature, _ in model.asked] == ["nbest"]


def plain(text):
    """Removes the marks that isolate words of other directions."""
    return text.replace("\u2068", "").replace("\u2069", "")


# Small screens and dark mode.


@pytest.mark.parametrize(
    "text",
    [TEXT, "w" * 97, "one " * 67, "字" * 67],
    ids=["short", "one word", "long", "no spaces"],
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
    assert sum(pixel(page, 0, 6)) < sum(cell)


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


def test_a_language_model_continues_a_prompt(page):
    page.select_option("#model", "writer")
    page.fill("#text", "It is <i>")
    page.press("#text", "Enter")
    page.wait_for_selector("#copying:visible")
    written = "It is <i> <b>one</b> <b>two</b> <b>three</b>"
    assert page.inner_text("#best") == written
    assert page.is_hidden("#attention") and page.is_hidden("#meaning")
    command = page.text_content("#curl")
    assert command.startswith("curl --no-buffer ")
    assert """:stream -d '{"prompt":"It is <i>","seed":0}'""" in command


def test_an_empty_prompt_is_continued(page):
    page.select_option("#model", "writer")
    page.click("#send")
    page.wait_for_selector("#copying:visible")
    assert page.inner_text("#best").strip() == "<b>one</b> <b>two</b> <b>three</b>"


def test_a_text_that_breaks_off_is_kept(page):
    page.select_option("#model", "writer")
    page.fill("#text", "It breaks")
    page.press("#text", "Enter")
    page.wait_for_selector("#error:visible")
    assert "must be another one" in page.inner_text("#error")
    assert page.inner_text("#best") == "It breaks <b>one</b>"
    assert page.get_attribute("#result", "aria-busy") == "false"
