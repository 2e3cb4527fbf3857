"""Small models for the engine CTranslate2, and a browser for the page."""

import shutil

import numpy as np
import pytest
from ctranslate2_designs import causal_model_of, model_of
from served_pages import PATIENCE_SECONDS

from keras_transformer import BeamSearch, GreedySearch

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def find_ends(model, bias):
    """Lets the outputs of a model end often, and have no other special tokens."""
    values = np.zeros(model.logits_bias.shape, "float32")
    values[:3], values[3] = -100, bias
    model.logits_bias.assign(values)
    return model


@pytest.fixture(scope="session")
def translator():
    design = {"normalize_first": True, "tie_embeddings": "none"}
    model = model_of(seed=5, max_source_length=37, max_target_length=17, **design)
    return find_ends(model, 2)


@pytest.fixture(scope="session")
def translator_folder(translator, tmp_path_factory):
    """The translator for CTranslate2, with three beams and no length penalty."""
    folder = tmp_path_factory.mktemp("translator") / "1"
    checks = {"check_texts": ["abc", "deadbeef"]}
    translator.export(folder, BeamSearch(3, 0.0), format="ctranslate2", **checks)
    return folder


@pytest.fixture(scope="session")
def language_model():
    return find_ends(causal_model_of(seed=21, max_length=23, tie_embeddings=False), 1)


@pytest.fixture(scope="session")
def language_model_folder(language_model, tmp_path_factory):
    """The language model for CTranslate2, with greedy search."""
    folder = tmp_path_factory.mktemp("language_model") / "1"
    checks = {"check_texts": ["abc", ""]}
    language_model.export(folder, GreedySearch(), format="ctranslate2", **checks)
    return folder


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
    pages, complaints, addresses = [], [], []

    def complain(message):
        # The page itself shows responses with a status of at least 400.
        is_answer = message.text.startswith("Failed to load resource")
        if message.type == "error" and not is_answer:
            complaints.append(message.text)

    def open_page(fragment="", server=address, wait_for="#send:enabled", **settings):
        context = browser.new_context(**settings)
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        page = context.new_page()
        page.on("console", complain)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: pages.append(request.url))
        addresses.append(server)
        page.goto(server + fragment)
        page.wait_for_selector(wait_for)
        return page

    yield open_page
    for context in browser.contexts:
        context.close()
    assert complaints == []
    own = (*addresses, "data:")
    assert [url for url in pages if not url.startswith(own)] == []


@pytest.fixture
def page(open_page):
    return open_page()
