"""Serves models for a browser, and checks the contrast of their page."""

import contextlib
import threading

import uvicorn

from keras_transformer_runtime.serving.application import Application
from keras_transformer_runtime.serving.server_options import make_server_options

PATIENCE_SECONDS = 10
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


@contextlib.contextmanager
def serving(models, **options):
    """Serves models over HTTP, and yields the address."""
    of_models = {name: model.options for name, model in models.items()}
    application = Application(models, make_server_options(models=of_models, **options))
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
