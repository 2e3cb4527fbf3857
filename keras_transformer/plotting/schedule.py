"""Plots of learning rate schedules."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import ArrayLike

from keras_transformer.plotting.drawing import (
    NotebookFigure,
    checked_array,
    score_color,
    styled,
)


@styled()
def plot_schedule(
    learning_rates: ArrayLike, steps: Sequence[int] | None = None
) -> Figure:
    """Plots a learning rate over the training steps and labels its peak.

    Args:
        learning_rates: array of shape `(num_steps,)`, any float type.
        steps: list of `num_steps` int. Default: 1 to `num_steps`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if the rates are not finite, or `steps` has another length.

    Example:

    >>> from keras_transformer import plotting
    >>> figure = plotting.plot_schedule([1e-4, 2e-4, 1.4e-4], steps=[100, 200, 300])
    >>> figure.axes[0].get_xlabel()
    'training step'

    References:
        - Vaswani et al., 2017, equation 3.
    """
    rates = checked_array("learning_rates", learning_rates, {"num_steps": None})
    if steps is None:
        steps = range(1, len(rates) + 1)
    positions = checked_array("steps", steps, {"num_steps": len(rates)})
    figure = NotebookFigure(figsize=(7.5, 4))
    axes = figure.add_subplot()
    axes.plot(positions, rates, color=score_color(0.5))
    peak = rates.argmax()
    axes.plot(positions[peak], rates[peak], "o", color=score_color(0.8))
    is_early = peak < len(rates) / 2
    axes.annotate(
        f"{rates[peak]:.2e} at step {positions[peak]:,.0f}",
        (positions[peak], rates[peak]),
        xytext=(8 if is_early else -8, 4),
        textcoords="offset points",
        horizontalalignment="left" if is_early else "right",
    )
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axes.set_ylim(0, 1.1 * rates[peak] or 1)
    axes.set(
        xlabel="training step", ylabel="learning rate", title="Learning rate schedule"
    )
    return figure
