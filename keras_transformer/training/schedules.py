"""Learning rate schedules with warm-up, a decay and cool-down."""

import abc
import math
from typing import Literal, TypeAlias, get_args

import keras
from keras import ops

from keras_transformer.types import Config, Tensor
from keras_transformer_runtime.arguments import (
    check_ints,
    check_numbers,
    check_one_of,
)

Decay: TypeAlias = Literal["cosine", "linear", "constant"]


class _WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule, abc.ABC):
    """Linear warm-up to a peak, then the decay of a subclass, then a cool-down."""

    def __init__(
        self,
        peak_learning_rate: float,
        warmup_steps: int,
        gradient_accumulation_steps: int,
        total_steps: int | None,
        cooldown_steps: int,
    ) -> None:
        check_numbers(above=0, peak_learning_rate=peak_learning_rate)
        check_ints(
            1,
            warmup_steps=warmup_steps,
            gradient_accumulation_steps=gradient_accumulation_steps,
        )
        check_ints(1, optional=True, total_steps=total_steps)
        check_ints(0, cooldown_steps=cooldown_steps)
        if cooldown_steps > (total_steps or 0):
            raise ValueError(
                "`cooldown_steps` must be at most `total_steps`, which it requires; "
                f"received `cooldown_steps={cooldown_steps!r}`, "
                f"`total_steps={total_steps!r}`."
            )
        self.peak_learning_rate = float(peak_learning_rate)
        self.warmup_steps = int(warmup_steps)
        self.gradient_accumulation_steps = int(gradient_accumulation_steps)
        self.total_steps = None if total_steps is None else int(total_steps)
        self.cooldown_steps = int(cooldown_steps)

    @abc.abstractmethod
    def _decay(self, update: Tensor, progress: Tensor) -> Tensor:
        """Returns the factor of the peak, which is at least 1 during the warm-up.

        `progress` is `update / warmup_steps`.
        """

    def __call__(self, step: Tensor) -> Tensor:
        previous_updates = ops.floor_divide(step, self.gradient_accumulation_steps)
        # The largest integer + 1 would overflow, so the cast comes first.
        update = ops.cast(previous_updates, "float32") + 1.0
        progress = update / self.warmup_steps
        decay = self._decay(update, progress)
        rate = self.peak_learning_rate * ops.minimum(progress, decay)
        if not (self.cooldown_steps and self.total_steps):
            return rate
        lowest = 1.0 / (self.cooldown_steps + 1)
        factor = (self.total_steps + 1.0 - update) * lowest
        return rate * ops.clip(factor, lowest, 1.0)

    def get_config(self) -> Config:
        return {
            "peak_learning_rate": self.peak_learning_rate,
            "warmup_steps": self.warmup_steps,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "total_steps": self.total_steps,
            "cooldown_steps": self.cooldown_steps,
        }


@keras.saving.register_keras_serializable("keras_transformer")
class WarmupInverseSquareRoot(_WarmupSchedule):
    """Linear warm-up to a peak, then decay with the inverse square root of the step.

    For update number `n = 1, 2, …` the learning rate is

        peak_learning_rate * min(n / warmup_steps, sqrt(warmup_steps / n))

    The rate of the first update is `peak_learning_rate / warmup_steps`.
    `from_hidden_dim` computes the peak of the paper.

    With `total_steps` and `cooldown_steps`, the rate decreases linearly in the last
    updates: it is multiplied by
    `min(1, (total_steps + 1 - n) / (cooldown_steps + 1))`. The factor at `total_steps`
    also applies to later updates. A longer run can resume from the update where the
    cool-down began.

    With gradient accumulation, Keras passes the number of batches to a schedule, not
    the number of updates. Set `gradient_accumulation_steps` to the value of the
    optimizer, so that the warm-up is counted in updates.

    Args:
        peak_learning_rate: float > 0, the highest rate, at update `warmup_steps`.
        warmup_steps: int >= 1, number of updates; 1 = no warm-up.
        gradient_accumulation_steps: int >= 1, batches per update, the argument of the
            optimizer of the same name. Default: 1.
        total_steps: int >= 1, number of updates of the run. Required for
            `cooldown_steps` only.
        cooldown_steps: int from 0 to `total_steps`, number of updates; 0 = no
            cool-down.

    Call arguments:
        step: int tensor of any shape, number of batches before the update, as passed by
            an optimizer.

    Returns:
        float32 tensor of the shape of `step`.

    Raises:
        ValueError: if an argument is out of its range.

    Example:

    ```python
    import keras
    from keras_transformer.training import WarmupInverseSquareRoot

    schedule = WarmupInverseSquareRoot(peak_learning_rate=2e-3, warmup_steps=1000)
    optimizer = keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9)
    ```

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 5.3,
          equation 3
        - [Zhai et al., 2022](https://arxiv.org/abs/2106.04560), section 3.5
          (cool-down)
    """

    def __init__(
        self,
        peak_learning_rate: float,
        warmup_steps: int = 4000,
        gradient_accumulation_steps: int = 1,
        total_steps: int | None = None,
        cooldown_steps: int = 0,
    ) -> None:
        super().__init__(
            peak_learning_rate,
            warmup_steps,
            gradient_accumulation_steps,
            total_steps,
            cooldown_steps,
        )

    @classmethod
    def from_hidden_dim(
        cls,
        hidden_dim: int,
        warmup_steps: int = 4000,
        scale: float = 1.0,
        gradient_accumulation_steps: int = 1,
        total_steps: int | None = None,
        cooldown_steps: int = 0,
    ) -> "WarmupInverseSquareRoot":
        """Creates the schedule of the paper, whose peak depends on `hidden_dim`.

        Args:
            hidden_dim: int >= 1, d_model in the paper.
            warmup_steps: int >= 1, number of updates.
            scale: float > 0, factor of the learning rate; 1 = equation 3.
            gradient_accumulation_steps: int >= 1, batches per update.
            total_steps: int >= 1, number of updates of the run.
            cooldown_steps: int from 0 to `total_steps`, number of updates.

        Returns:
            A `WarmupInverseSquareRoot` with a peak of
            `scale / sqrt(hidden_dim * warmup_steps)`.

        Raises:
            ValueError: if an argument is out of its range.

        Example:

        ```python
        from keras_transformer.training import WarmupInverseSquareRoot

        schedule = WarmupInverseSquareRoot.from_hidden_dim(512, warmup_steps=4000)
        print(f"peak: {float(schedule(3999)):.1e}")  # peak: 7.0e-04
        ```

        References:
            - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 5.3,
              equation 3
        """
        check_ints(1, hidden_dim=hidden_dim, warmup_steps=warmup_steps)
        check_numbers(above=0, scale=scale)
        peak_learning_rate = scale / math.sqrt(hidden_dim * warmup_steps)
        return cls(
            peak_learning_rate,
            warmup_steps,
            gradient_accumulation_steps,
            total_steps,
            cooldown_steps,
        )

    def _decay(self, update: Tensor, progress: Tensor) -> Tensor:
        return ops.rsqrt(progress)


@keras.saving.register_keras_serializable("keras_transformer")
class WarmupDecay(_WarmupSchedule):
    """Linear warm-up to a peak, then a decay by a cosine, a linear one, or none.

    For update number `n = 1, 2, …` the learning rate is

        peak_learning_rate * min(n / warmup_steps, decay)

    With `d = (n - warmup_steps) / (total_steps + 1 - warmup_steps)`, which is 0 during
    the warm-up, the factor `decay` is `(1 + cos(pi * d)) / 2` for `"cosine"`, `1 - d`
    for `"linear"`, and 1 for `"constant"`. So the rate of the last update is still
    above 0. The factor at `total_steps` also applies to later updates.

    A cool-down at the end of a constant rate is that of `WarmupInverseSquareRoot`. The
    other decays reach 0 by themselves. Differs from `keras.optimizers.schedules.
    CosineDecay`, whose first update has the rate 0, and which counts batches, not
    updates, with gradient accumulation.

    Args:
        peak_learning_rate: float > 0, the highest rate, at update `warmup_steps`.
        warmup_steps: int >= 1, number of updates; 1 = no warm-up.
        decay: `"cosine"`, `"linear"` or `"constant"`.
        gradient_accumulation_steps: int >= 1, batches per update, the argument of the
            optimizer of the same name. Default: 1.
        total_steps: int >= 1, number of updates of the run. Only `"constant"` without a
            cool-down does not require it.
        cooldown_steps: int from 0 to `total_steps`, number of updates; 0 = no
            cool-down. Must be 0 unless `decay` is `"constant"`.

    Call arguments:
        step: int tensor of any shape, number of batches before the update, as passed by
            an optimizer.

    Returns:
        float32 tensor of the shape of `step`.

    Raises:
        ValueError: if an argument is out of its range, or if `cooldown_steps` is given
            for a decay to 0.

    Example:

    ```python
    import keras
    from keras_transformer.training import WarmupDecay

    schedule = WarmupDecay(1e-3, warmup_steps=500, decay="cosine", total_steps=10_000)
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.1, global_clipnorm=1.0)
    ```

    References:
        - [Loshchilov and Hutter, 2017](https://arxiv.org/abs/1608.03983), equation 5
          (cosine)
        - [Zhai et al., 2022](https://arxiv.org/abs/2106.04560), section 3.5
          (cool-down)
    """

    def __init__(
        self,
        peak_learning_rate: float,
        warmup_steps: int = 1,
        decay: Decay = "cosine",
        gradient_accumulation_steps: int = 1,
        total_steps: int | None = None,
        cooldown_steps: int = 0,
    ) -> None:
        check_one_of(get_args(Decay), decay=decay)
        super().__init__(
            peak_learning_rate,
            warmup_steps,
            gradient_accumulation_steps,
            total_steps,
            cooldown_steps,
        )
        if decay != "constant" and (total_steps is None or cooldown_steps):
            raise ValueError(
                f"`decay={decay!r}` must have `total_steps`, where the rate reaches 0, "
                f"and no cool-down; received `total_steps={total_steps!r}`, "
                f"`cooldown_steps={cooldown_steps!r}`."
            )
        self.decay = decay

    def _decay(self, update: Tensor, progress: Tensor) -> Tensor:
        if self.decay == "constant" or self.total_steps is None:
            return ops.ones_like(progress)
        steps = max(self.total_steps + 1 - self.warmup_steps, 1)
        last = max(self.total_steps - self.warmup_steps, 0) / steps
        done = ops.clip((update - self.warmup_steps) / steps, 0.0, last)
        return (
            1.0 - done
            if self.decay == "linear"
            else (1.0 + ops.cos(math.pi * done)) / 2
        )

    def get_config(self) -> Config:
        return {**super().get_config(), "decay": self.decay}
