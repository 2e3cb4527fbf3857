"""The one place that keeps a compiler from computing a value anew for each use."""

from typing import Any

import keras


def materialized(x: Any) -> Any:
    """Returns `x`, computed once however many operations use it.

    XLA on a CPU fuses sums and products into every operation that uses them. A
    residual stream is a sum over all blocks so far, as its gradient is over all
    blocks that follow, so that the work would grow with the square of the depth:
    a quarter of the time of a training step with eight blocks. A division is too
    dear to be done twice, and this one, by a 1 that is hidden until the fusions
    are chosen, is dropped after them.

    Args:
        x: float tensor of any shape.

    Returns:
        `x`.

    Example:

    >>> materialized(np.array([0.1, -3.0], "float32")).tolist()
    [0.10000000149011612, -3.0]
    """
    if keras.backend.backend() != "jax":
        return x
    import jax

    if jax.default_backend() != "cpu":
        return x
    return x / jax.lax.optimization_barrier(jax.numpy.ones((), x.dtype))
