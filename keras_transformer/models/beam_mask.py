"""Which entries of a cache are in the history of each beam.

The beams of a sentence are query positions of one attention. The keys and values of
their tokens share a cache, in which the tokens of a step follow each other. The cache
is never reordered: a boolean mask `(batch, num_beams, entries)` selects the history of
each beam, and a search reorders this mask.
"""

from keras import ops

from keras_transformer.backend.slice_update import slice_update
from keras_transformer.decoding import ModelState, StateAxes
from keras_transformer.layers.attention.key_values import KeyValues
from keras_transformer.types import Mask, Size


def add_newest(beam_mask: Mask, entry: Size) -> Mask:
    """Adds the newest token of each beam to its history; the first is at `entry`."""
    batch, num_beams, _ = ops.shape(beam_mask)
    identity = ops.eye(num_beams, dtype="bool")
    identity = ops.broadcast_to(identity, (batch, num_beams, num_beams))
    return slice_update(beam_mask, identity, entry, axis=2)


def axes_of_state(state: ModelState) -> dict[str, object]:
    """Returns the axes of a state with caches and the mask of their histories."""
    per_step = state["beam_mask"].shape[1]
    length_axes = (3, 2)  # of keys and values
    growing = KeyValues._make(
        StateAxes(steps_axis=axis, entries_per_step=per_step) for axis in length_axes
    )
    of_source = KeyValues._make(StateAxes() for _ in length_axes)
    axes: dict[str, object] = {name: StateAxes() for name in state}
    axes["caches"] = [(growing, *[of_source] * (len(c) - 1)) for c in state["caches"]]
    axes["beam_mask"] = StateAxes(
        has_beams=True, steps_axis=2, entries_per_step=per_step
    )
    if "output_kernel" in axes:
        axes["output_kernel"] = StateAxes(has_rows=False)
    return axes
