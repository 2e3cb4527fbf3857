"""Figures of attention, positions, schedules, search trees and confusion matrices.

Every function takes arrays and returns a `matplotlib.figure.Figure` that is not
registered with pyplot. A notebook displays it, `figure.savefig("attention.png")`
writes it to a file, and it need not be closed. The extra `plots` installs what they
require. Each function is imported at its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from keras_transformer_runtime.packages import require_extra

if TYPE_CHECKING:
    from keras_transformer.plotting.attention import (
        plot_attention,
        plot_attention_heads,
        plot_attention_pattern,
        plot_token_attention,
    )
    from keras_transformer.plotting.confusion_matrix import plot_confusion_matrix
    from keras_transformer.plotting.positional_encoding import (
        plot_positional_encoding,
        plot_positional_encoding_waves,
    )
    from keras_transformer.plotting.schedule import plot_schedule
    from keras_transformer.plotting.search_tree import plot_search_tree

_MODULES = {
    "plot_attention": "attention",
    "plot_attention_heads": "attention",
    "plot_attention_pattern": "attention",
    "plot_confusion_matrix": "confusion_matrix",
    "plot_positional_encoding": "positional_encoding",
    "plot_positional_encoding_waves": "positional_encoding",
    "plot_schedule": "schedule",
    "plot_search_tree": "search_tree",
    "plot_token_attention": "attention",
}

__all__ = [
    "plot_attention",
    "plot_attention_heads",
    "plot_attention_pattern",
    "plot_confusion_matrix",
    "plot_positional_encoding",
    "plot_positional_encoding_waves",
    "plot_schedule",
    "plot_search_tree",
    "plot_token_attention",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_extra("plots", "`keras_transformer.plotting`")
    module = import_module(f"keras_transformer.plotting.{_MODULES[name]}")
    return getattr(module, name)
