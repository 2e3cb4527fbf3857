"""A server of SavedModels on Ray Serve, in TF Serving's REST API, with a page to try.

A request's way, and the modules in its order:

`application` (HTTP) → `rest` (what it asks for) → `sentences` (of long texts) →
`models` (which version answers) → `batching` (with whom) → `cluster` (the replicas,
Ray's) → `replica` (the SavedModel).

`options` says what may be configured, `versions` finds the folders, `server` runs it
all. It needs the extra `serve`.
"""

from importlib import import_module
from typing import Any

_LAZY = {
    "ModelOptions": "options",
    "ServerOptions": "options",
    "make_options": "options",
    "read_options": "options",
    "serve": "server",
}

__all__ = list(_LAZY)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"keras_transformer.serving.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
