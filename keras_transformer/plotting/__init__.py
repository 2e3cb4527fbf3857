"""Figures of attention, positions, learning rate schedules and search trees.

Every function takes arrays and returns a `matplotlib.figure.Figure` that is not
registered with pyplot. A notebook displays it, `figure.savefig("attention.png")`
writes it to a file, and it need not be closed.
"""

from keras_transformer.plotting.attention import (
    plot_attention,
    plot_attention_heads,
    plot_token_attention,
)
from keras_transformer.plotting.attention_pattern import plot_attention_pattern
from keras_transformer.plotting.positional_encoding import (
    plot_positional_encoding,
    plot_positional_encoding_waves,
)
from keras_transformer.plotting.schedule import plot_schedule
from keras_transformer.plotting.search_tree import plot_search_tree

__all__ = [
    "plot_attention",
    "plot_attention_heads",
    "plot_attention_pattern",
    "plot_positional_encoding",
    "plot_positional_encoding_waves",
    "plot_schedule",
    "plot_search_tree",
    "plot_token_attention",
]
