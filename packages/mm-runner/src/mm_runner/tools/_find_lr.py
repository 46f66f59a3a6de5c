"""The learning rate range test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.optim import named_wrappers

from ._trial import EndOfTrialError, endless_config, train_with, trial_directory

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

# Of the best loss: "How Do You Find A Good Learning Rate" (S. Gugger, 2018,
# https://sgugger.github.io/how-do-you-find-a-good-learning-rate.html).
_DIVERGED = 4.0
_LEAST_STEPS = 10
# Weight of the past in a smoothed loss.
_MEMORY = 0.9


class RatePoint(NamedTuple):
    """Learning rate, loss and smoothed loss of one step."""

    lr: float
    loss: float
    smoothed: float


class LearningRateReport(NamedTuple):
    """Result of :func:`find_learning_rate`.

    ``suggestion`` is ``None`` if the loss falls nowhere. ``diverged``: the test ended because
    the loss grew.
    """

    suggestion: float | None
    points: tuple[RatePoint, ...]
    diverged: bool


def find_learning_rate(
    cfg: Mapping[str, Any], *, min_lr: float = 1e-7, max_lr: float = 10.0, steps: int = 100
) -> LearningRateReport:
    """Train with a learning rate that grows exponentially, and suggest one.

    The range test of Smith (Cyclical Learning Rates for Training Neural Networks, 2015,
    https://arxiv.org/abs/1506.01186). Suggested is the rate where the loss falls most steeply,
    before the smoothed loss is at its best. The test ends when that is four times its best.

    Schedules, checkpoints, validation, ``auto_scale_lr`` and the hooks of mm-runner are left out.
    Custom hooks run too, and clean up, but get no ``after_train`` and ``after_run``.
    The model begins as configured, ``load_from`` included. With several processes, all of which
    must call this, a loss is their mean.

    Args:
        cfg: A full configuration, as for ``Runner.from_cfg``. It is copied, with what is in it.
        min_lr: Learning rate of the first step.
        max_lr: Learning rate of the last step.
        steps: Largest number of optimizer steps; at least 10.

    Returns:
        The rates are those of ``optim_wrapper.optimizer.lr``; parameter groups, and several
        optimizers, keep the ratios that they have to it (to that of the first one).

    Raises:
        ConfigError: If the configuration or an argument does not fit.

    Example:
        >>> find_learning_rate(cfg).suggestion  # doctest: +SKIP
        0.012
    """
    if not 0 < min_lr < max_lr < math.inf or steps < _LEAST_STEPS:
        raise ConfigError(
            f"find-lr: 0 < min_lr < max_lr and at least {_LEAST_STEPS} steps are needed; got "
            f"min_lr={min_lr:g}, max_lr={max_lr:g}, steps={steps}."
        )
    test = _RangeTest(min_lr, max_lr, steps)
    with trial_directory(cfg, "find-lr") as (directory, _):
        train_with(endless_config(cfg, directory, "find-lr"), test)
    return LearningRateReport(_steepest_rate(test.points), tuple(test.points), test.diverged)


def _steepest_rate(points: Sequence[RatePoint]) -> float | None:
    """Return the rate where the loss falls most steeply, ``None`` if it falls nowhere.

    The slope at a step is that of the line fitted by least squares to the losses of a twentieth of
    all steps, two at least, on either side. Steps up to the best smoothed loss count.
    """
    reach = max(2, round(0.05 * len(points)))
    best = min(range(len(points)), key=lambda index: points[index].smoothed, default=0)
    steepest, suggestion = 0.0, None
    for index in range(reach, min(len(points) - reach, best + 1)):
        # Up to a factor that all have in common.
        slope = math.fsum(k * points[index + k].loss for k in range(-reach, reach + 1))
        if slope < steepest:
            steepest, suggestion = slope, points[index].lr
    return suggestion


class _RangeTest(Hook):
    """Sets the rates before each step of the optimizer, and records the losses."""

    priority = "LOWEST"

    def __init__(self, min_lr: float, max_lr: float, steps: int) -> None:
        self._min_lr, self._growth, self._steps = min_lr, max_lr / min_lr, steps
        self._ratios: list[tuple[dict[str, Any], float]] = []
        self._window = 1
        self._sum = self._average = 0.0
        self.points: list[RatePoint] = []
        self.diverged = False

    @override
    def before_train(self, runner: RunView) -> None:
        wrappers = list(named_wrappers(runner.optim_wrapper).values())
        self._window = max(getattr(one, "accumulative_counts", 1) for one in wrappers)
        groups = [group for one in wrappers for group in one.optimizer.param_groups]
        base = float(wrappers[0].optimizer.defaults.get("lr") or 0)
        if base <= 0:
            raise ConfigError(
                "find-lr: a positive optim_wrapper.optimizer.lr is needed, to which parameter "
                f"groups have their ratios; got {base:g}."
            )
        self._ratios = [(group, float(group["lr"]) / base) for group in groups]

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        for group, ratio in self._ratios:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(self._rate() * ratio)
            else:
                group["lr"] = self._rate() * ratio

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if not isinstance(outputs, Mapping) or "loss" not in outputs:
            raise ConfigError("find-lr: train_step() has to return dict(loss=...).")
        self._sum += float(torch.as_tensor(outputs["loss"]).float().mean())
        if (runner.iter + 1) % self._window:
            return
        losses = mm_dist.all_gather_object(self._sum / self._window)
        loss, self._sum = sum(losses) / len(losses), 0.0
        if not math.isfinite(loss):
            self.diverged = True
            raise EndOfTrialError
        # The exponential moving average, corrected for where it begins.
        self._average = _MEMORY * self._average + (1 - _MEMORY) * loss
        smoothed = self._average / (1 - _MEMORY ** (len(self.points) + 1))
        self.points.append(RatePoint(self._rate(), loss, smoothed))
        best = min(point.smoothed for point in self.points)
        self.diverged = smoothed > best + (_DIVERGED - 1) * abs(best)
        if self.diverged or len(self.points) >= self._steps:
            raise EndOfTrialError

    def _rate(self) -> float:
        part: float = self._growth ** (len(self.points) / (self._steps - 1))
        return self._min_lr * part
