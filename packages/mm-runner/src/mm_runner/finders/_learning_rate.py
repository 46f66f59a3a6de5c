"""The learning rate range test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.hooks._rank_means import mean_over_ranks
from mm_runner.loops import EpochBasedTrainLoop, IterBasedTrainLoop
from mm_runner.optim import named_wrappers
from mm_runner.registry import LOOPS

from ._steepest_descent import smoothed_losses, steepest_rate
from ._trial_run import EndOfTrialError, begin_trials, run_trial, trial_config, trial_directory

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["LearningRateReport", "RatePoint", "find_learning_rate"]

# Of the best loss: "How Do You Find A Good Learning Rate" (S. Gugger, 2018,
# https://sgugger.github.io/how-do-you-find-a-good-learning-rate.html).
_DIVERGED = 4.0
_LEAST_STEPS = 10
_OUR_LOOPS = (None, EpochBasedTrainLoop, IterBasedTrainLoop)


class RatePoint(NamedTuple):
    """A step: the learning rate that it took, its loss, and the loss smoothed over steps."""

    lr: float
    loss: float
    smoothed: float


class LearningRateReport(NamedTuple):
    """What the test found.

    ``suggestion`` is ``None`` if the loss falls nowhere. ``diverged`` tells whether the test ended
    because the loss grew. ``notes`` say what else is to be known.
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
    device = begin_trials(cfg, "find-lr")
    with trial_directory("find-lr", device) as directory:
        trial = trial_config(cfg, directory, "find-lr")
        test = _RangeTest(min_lr, max_lr, steps)
        run_trial({**trial, "train_cfg": _endless(trial["train_cfg"])}, test)
    if not test.has_ended:
        test.notes.append(
            f"The training ended with step {len(test.found)}: a hook or a loop of your own "
            "stopped it."
        )
    losses = [loss for _, loss in test.found]
    points = tuple(
        RatePoint(lr, loss, smoothed)
        for (lr, loss), smoothed in zip(test.found, smoothed_losses(losses), strict=True)
    )
    suggestion = steepest_rate([point.lr for point in points], losses)
    return LearningRateReport(suggestion, points, test.diverged, (*test.notes, *_notes(cfg)))


def _endless(train_cfg: Any) -> Any:
    """Return ``train_cfg`` so that the training does not end before the test."""
    if not isinstance(train_cfg, Mapping):
        return train_cfg  # no loop; the run says so
    kind = train_cfg.get("type")
    if (LOOPS.get(kind) if isinstance(kind, str) else kind) not in _OUR_LOOPS:
        return train_cfg  # a loop of the user's own
    return {"by_epoch": False, "max_iters": 2**31}


def _notes(cfg: Mapping[str, Any]) -> list[str]:
    scale = cfg.get("auto_scale_lr")
    if isinstance(scale, Mapping) and scale.get("enable"):
        return [
            (
                "auto_scale_lr was off: the rate is for the batch of this run, and not for one of "
                f"base_batch_size={scale.get('base_batch_size')}."
            )
        ]
    return []


class _RangeTest(Hook):
    """Sets the rates before each step of the optimizer, and notes the losses."""

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
            told = ", ".join(f"{ratio:g}" for ratio in ratios)
            self.notes.append(f"Parameter groups kept their ratios to the rate: {told}.")

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
        loss = mean_over_ranks({"loss": self._sum / self._window})["loss"]
        self._sum = 0.0
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
    named = {"loss": values["loss"]} if "loss" in values else values
    losses = [
        float(torch.as_tensor(value).float().mean())
        for name, value in named.items()
        if "loss" in name
    ]
    if not losses:
        raise ConfigError(
            f"find-lr: train_step() returned {', '.join(map(repr, values)) or 'no dict'}; the loss "
            "is needed: return dict(loss=...) of what is to be logged."
        )
    return sum(losses)
