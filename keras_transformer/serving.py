"""The server of exported models, `keras_transformer_runtime.serving`.

The command `keras-transformer serve` does not import Keras, and neither does a program
that imports these names from `keras_transformer_runtime.serving`.
"""

from keras_transformer_runtime.serving import (
    ModelOptions,
    ServerOptions,
    make_server_options,
    read_server_options,
    serve,
)

__all__ = [
    "ModelOptions",
    "ServerOptions",
    "make_server_options",
    "read_server_options",
    "serve",
]
