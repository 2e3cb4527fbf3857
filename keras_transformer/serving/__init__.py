"""A server of SavedModels on Ray Serve with the REST API of TensorFlow Serving.

It also serves a page to try the models. The modules, in the order in which they
process a request:

- `connections`: HTTP connections and their limits
- `protection`: refuses requests of other sites
- `application`: the paths
- `rest`: the bodies of requests and responses
- `sentences`: splits long texts into sentences
- `terminology`: the terms of a dictionary
- `served_model`: the versions of a model
- `batching`: batches of requests
- `cluster`: Ray, which runs the replicas
- `warm_up`: compiles the SavedModel for the shapes of batches
- `replica`: the SavedModel in memory

`server_options` has the options, `versions` finds the folders of versions, and `server`
starts and stops the server. The extra `serve` installs the requirements.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from keras_transformer_runtime.packages import require_extra

if TYPE_CHECKING:
    from keras_transformer.serving.server import serve
    from keras_transformer.serving.server_options import (
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
    require_extra("serve", "`keras_transformer.serving`")
    module = import_module(f"keras_transformer.serving.{_MODULES[name]}")
    value: object = getattr(module, name)
    return value
