"""A server of exported models: SavedModels and models for CTranslate2.

It speaks the REST API of TensorFlow Serving, OpenAI's API of completions and the API of
LibreTranslate, and serves a page to try the models. The modules, in the order in which
they process a request:

- `connections`: HTTP connections and their limits
- `protection`: refuses requests without the key and of other sites
- `application`: the paths; `openapi` describes them
- `tensorflow_serving`, `completions`, `libretranslate`: the endpoints of the APIs, with
  what they share in `endpoints`, `requests` and `rest`
- `served_model`: the versions of a model; `sentences` splits long texts
- `batching`: batches of texts
- `loaded_model`, `saved_model`, `saved_model_encoder`: a version in memory

`server_options` has the options, `versions` finds the folders of versions, `server`
starts and stops the server, and `on_ray` runs it on several machines. The extra `serve`
installs the requirements.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from keras_transformer_runtime.packages import require_extra

if TYPE_CHECKING:
    from keras_transformer_runtime.serving.server import serve
    from keras_transformer_runtime.serving.server_options import (
        ModelOptions,
        ServerOptions,
        make_server_options,
        read_server_options,
    )

_MODULES = {
    "ModelOptions": "server_options",
    "ServerOptions": "server_options",
    "make_server_options": "server_options",
    "read_server_options": "server_options",
    "serve": "server",
}

__all__ = [
    "ModelOptions",
    "ServerOptions",
    "make_server_options",
    "read_server_options",
    "serve",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_extra("serve", "The server")
    module = import_module(f"keras_transformer_runtime.serving.{_MODULES[name]}")
    value: object = getattr(module, name)
    return value
