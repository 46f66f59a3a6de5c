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
from mm_runner.loops import EpochBasedTrainLoop, IterBasedTrainLoop
from mm_runner.optim import named_wrappers
from mm_runner.registry import HOOKS, LOOPS

from ._trial import (
    TRAINING_ONLY,
    EndOfTrialError,
    check_trains,
    copied_config,
    train_with,
    trial_directory,
)

if TYPE_CHECKING:
    from pathlib import Path

    from mm_runner.run_view import RunView

__all__ = [
    "LearningRateReport",
    "RatePoint",
    "config_of_trial",
    "find_learning_rate",
    "smoothed_losses",
    "steepest_rate",
]

# Of the best loss: "How Do You Find A Good Learning Rate" (S. Gugger, 2018,
# https://sgugger.github.io/how-do-you-find-a-good-learning-rate.html).
_DIVERGED = 4.0
_LEAST_STEPS = 10
# Weight of the past in a smoothed loss.
_MEMORY = 0.9
_OUR_LOOPS = (None, EpochBasedTrainLoop, IterBasedTrainLoop)
_LEFT_OUT = (*TRAINING_ONLY, "auto_scale_lr", "param_scheduler", "resume")


class RatePoint(NamedTuple):
    """A step: the learning rate that it took, its loss, and the loss smoothed over steps."""

    lr: float
    loss: float
    smoothed: float


class LearningRateReport(NamedTuple):
    """Result of :func:`find_learning_rate`.

    ``suggestion`` is ``None`` if the loss falls nowhere. ``diverged``: the test ended because
    the loss grew. ``notes`` are sentences for the user.
    """

    suggestion: float | None
    points: tuple[RatePoint, ...]
    diverged: bool
    notes: tuple[str, ...]


def find_learning_rate(
    cfg: Mapping[str, Any], *, min_lr: float = 1e-7, max_lr: float = 10.0, steps: int = 100
) -> LearningRateReport:
    """Train with a learning rate that grows exponentially, and suggest one.

    The range test of Smith (Cyclical Learning Rates for Training Neural Networks, 2015,
    https://arxiv.org/abs/1506.01186). Suggested is the rate of steepest descent: where the line
    fitted to the losses of some steps, over the logarithm of the rate, falls most steeply, before
    the smoothed loss is at its best. The test ends when the smoothed loss is four times its best.

    Schedules, checkpoints, validation, ``auto_scale_lr`` and the hooks of mm-runner are left out.
    The user's own hooks run along, and clean up, but get no ``after_train`` and ``after_run``.
    The model begins as configured, ``load_from`` included. With several processes, all of which
    must call this, a loss is their mean.

    Args:
        cfg: A full configuration, as for ``Runner.from_cfg``. It is copied, with what is in it.
        min_lr: Of the first step.
        max_lr: Of the last step.
        steps: Of the optimizer, at most.

    Returns:
        The rates are those of ``optim_wrapper.optimizer.lr``; parameter groups, and several
        optimizers, keep the ratios that they have to it (to that of the first one).

    Raises:
        ConfigError: If the configuration or an argument does not fit.

    Example:
        >>> find_learning_rate(cfg).suggestion  # doctest: +SKIP
        0.012
    """
    if not 0 < min_lr < max_lr < math.inf:
        raise ConfigError(
            f"find-lr: rates from {min_lr:g} to {max_lr:g} were asked for; 0 < min_lr < max_lr "
            "is needed."
        )
    if steps < _LEAST_STEPS:
        raise ConfigError(
            f"find-lr: steps={steps} was given; {_LEAST_STEPS} are needed at least to see a slope."
        )
    check_trains(cfg, "find-lr")
    with trial_directory(cfg, "find-lr") as (directory, _):
        test = _RangeTest(min_lr, max_lr, steps)
        train_with(config_of_trial(cfg, directory, "find-lr"), test)
    if not test.has_ended:
        test.notes.append(
            f"The training ended with step {len(test.found)}: a hook or a loop of your own "
            "stopped it."
        )
    scale = cfg.get("auto_scale_lr") or {}
    if scale.get("enable"):
        test.notes.append(
            "auto_scale_lr was off: the rate is for the batch of this run, and not for one of "
            f"base_batch_size={scale.get('base_batch_size')}."
        )
    rates, losses = [rate for rate, _ in test.found], [loss for _, loss in test.found]
    points = tuple(map(RatePoint, rates, losses, smoothed_losses(losses)))
    suggestion = steepest_rate(rates, losses)
    return LearningRateReport(suggestion, points, test.diverged, tuple(test.notes))


def config_of_trial(
    cfg: Mapping[str, Any], directory: Path, what: str, *, keep: tuple[type[Hook], ...] = ()
) -> dict[str, Any]:
    """Return a copy of ``cfg`` for an endless run that only trains, and writes to ``directory``.

    The hooks of mm-runner, which save, log, stop or average, are left out but for those of the
    classes in ``keep``.
    """
    copied = copied_config(cfg, what, _LEFT_OUT)
    hooks = {
        name: hook
        for name, hook in (copied.get("default_hooks") or {}).items()
        if _runs_along(hook, keep)
    }
    train_cfg = copied["train_cfg"]
    kind = train_cfg.get("type") if isinstance(train_cfg, Mapping) else object
    if (LOOPS.get(kind) if isinstance(kind, str) else kind) in _OUR_LOOPS:
        train_cfg = {"by_epoch": False, "max_iters": 2**31}
    return {
        **copied,
        "custom_hooks": [one for one in copied.get("custom_hooks") or () if _runs_along(one, keep)],
        "default_hooks": {**hooks, **dict.fromkeys(("checkpoint", "logger", "param_scheduler"))},
        "train_cfg": train_cfg,
        "work_dir": str(directory / "work"),  # a cache of compiled code lies beside it
    }


def _runs_along(hook: Any, keep: tuple[type[Hook], ...]) -> bool:
    kind = hook.get("type") if isinstance(hook, Mapping) else type(hook)
    if isinstance(kind, str):
        kind = HOOKS.get(kind)
    if kind is None:  # changes a default hook
        return False
    return kind in keep or not kind.__module__.startswith("mm_runner.")


def smoothed_losses(losses: Sequence[float]) -> list[float]:
    """Return exponential moving averages of ``losses``, corrected for where they begin.

    Example:
        >>> smoothed_losses([2.0])
        [2.0]
    """
    smoothed, average = [], 0.0
    for number, loss in enumerate(losses, 1):
        average = _MEMORY * average + (1 - _MEMORY) * loss
        smoothed.append(average / (1 - _MEMORY**number))
    return smoothed


def steepest_rate(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Return the rate where the loss falls most steeply over the logarithm of the rate.

    The slope at a step is that of the line fitted by least squares to the losses of a twentieth of
    all steps, two at least, on either side. Steps up to the best smoothed loss count.

    Args:
        rates: Growing exponentially.
        losses: Of the steps with these rates.

    Returns:
        ``None`` if the loss falls nowhere.
    """
    reach = max(2, round(0.05 * len(losses)))
    smoothed = smoothed_losses(losses)
    end = min(len(losses) - reach, smoothed.index(min(smoothed)) + 1) if losses else 0
    offsets = range(-reach, reach + 1)
    # Up to a factor that all have in common.
    slopes = {
        index: math.fsum(k * losses[index + k] for k in offsets) for index in range(reach, end)
    }
    steepest = min(slopes, key=lambda index: slopes[index], default=None)
    return None if steepest is None or slopes[steepest] >= 0 else rates[steepest]


class _RangeTest(Hook):
    """Sets the rates before each step of the optimizer, and records the losses."""

    priority = "LOWEST"

    def __init__(self, min_lr: float, max_lr: float, steps: int) -> None:
        self._min_lr, self._growth, self._steps = min_lr, max_lr / min_lr, steps
        self._shares: list[tuple[dict[str, Any], float]] = []
        self._window = 1
        self._sum = 0.0
        self.found: list[tuple[float, float]] = []
        self.diverged = self.has_ended = False
        self.notes: list[str] = []

    @override
    def before_train(self, runner: RunView) -> None:
        wrappers = list(named_wrappers(runner.optim_wrapper).values())
        self._window = max(getattr(one, "accumulative_counts", 1) for one in wrappers)
        # A loop of the user's own has its own length.
        self._steps = min(self._steps, runner.max_iters // self._window)
        if self._steps < _LEAST_STEPS:
            raise ConfigError(
                f"train_cfg: the training has {self._steps} steps; find-lr needs {_LEAST_STEPS}."
            )
        groups = [group for one in wrappers for group in one.optimizer.param_groups]
        rates = [float(group["lr"]) for group in groups]
        base = float(wrappers[0].optimizer.defaults.get("lr") or max(rates))
        if base <= 0:
            raise ConfigError(
                f"optim_wrapper.optimizer.lr: {base:g} was given; find-lr needs a positive rate, "
                "to which parameter groups have their ratios."
            )
        self._shares = [(group, rate / base) for group, rate in zip(groups, rates, strict=True)]
        ratios = sorted({round(share, 6) for _, share in self._shares})
        if ratios != [1.0]:
            text = ", ".join(f"{ratio:g}" for ratio in ratios)
            self.notes.append(f"Parameter groups kept their ratios to the rate: {text}.")

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        rate = self._rate()
        for group, share in self._shares:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * share)
            else:
                group["lr"] = rate * share

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self._sum += _loss_of(outputs)
        if (runner.iter + 1) % self._window:
            return
        losses = mm_dist.all_gather_object(self._sum / self._window)
        loss, self._sum = sum(losses) / len(losses), 0.0
        if not math.isfinite(loss):
            self.diverged = self.has_ended = True
            raise EndOfTrialError
        self.found.append((self._rate(), loss))
        smoothed = smoothed_losses([loss for _, loss in self.found])
        best = min(smoothed)
        self.diverged = smoothed[-1] > best + (_DIVERGED - 1) * abs(best)
        self.has_ended = self.diverged or len(self.found) >= self._steps
        if self.has_ended:
            raise EndOfTrialError

    def _rate(self) -> float:
        part: float = self._growth ** (len(self.found) / (self._steps - 1))
        return self._min_lr * part


def _loss_of(outputs: Any) -> float:
    values = outputs if isinstance(outputs, Mapping) else {}
    names = ["loss"] if "loss" in values else [name for name in values if "loss" in name]
    if not names:
        raise ConfigError(
            f"find-lr: train_step() returned {', '.join(map(repr, values)) or 'no dict'}; the loss "
            "is needed: return dict(loss=...)."
        )
    return sum(float(torch.as_tensor(values[name]).float().mean()) for name in names)
