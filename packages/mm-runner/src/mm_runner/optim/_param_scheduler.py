"""torch's learning-rate schedulers within MMEngine's windows of epochs or iterations."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from torch.optim import Optimizer

from mm_amp import OptimWrapperDict
from mm_runner.errors import CheckpointError, ConfigError, did_you_mean
from mm_runner.registry import PARAM_SCHEDULERS, build_from_cfg, check_cfg

__all__ = ["ParamScheduler", "build_param_schedulers", "named_schedulers"]


class ParamScheduler:
    """A torch scheduler that acts in the window ``begin <= count < end`` only.

    Torch's schedulers are chainable: each multiplies the current learning rate, so several may act
    at once, one per iteration and another per epoch.

    Args:
        optimizer: Whose learning rates are scheduled.
        cfg: ``dict(type=..., by_epoch=True, begin=0, end=..., **arguments of torch's class)``.
            ``T_max`` of the cosine and ``total_iters`` of linear and constant schedules default to
            the length of the window.
        num_epochs: Epochs of the run, the default ``end`` of a schedule by epoch.
        num_iters: Iterations of the run, the default ``end`` of a schedule by iteration.
        where: Path of ``cfg`` in the configuration, for messages.

    Raises:
        ConfigError: If the window is empty or an argument does not fit.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        cfg: Mapping[str, Any],
        *,
        num_epochs: int,
        num_iters: int,
        where: str = "param_scheduler",
    ) -> None:
        arguments = dict(cfg)
        self.by_epoch = bool(arguments.pop("by_epoch", True))
        self.begin = arguments.pop("begin", 0)
        end = arguments.pop("end", None)
        self.end = end if end is not None else num_epochs if self.by_epoch else num_iters
        if not all(isinstance(edge, int) for edge in (self.begin, self.end)):
            raise ConfigError(
                f"{where}: begin={self.begin!r} and end={self.end!r} were given; integers are "
                "needed, epochs or iterations."
            )
        if not 0 <= self.begin < self.end:
            raise ConfigError(
                f"{where}: begin={self.begin} and end={self.end} were given; "
                "0 <= begin < end is needed."
            )
        self.optimizer = optimizer
        self._arguments = _with_window_defaults(arguments, self.end - self.begin, end is not None)
        self._where = where
        self._count = 0
        self._scheduler: Any = None
        if self.begin == 0:
            self._start()
        else:  # a slip must not wait for its window to be found
            check_cfg(self._arguments, PARAM_SCHEDULERS, {"optimizer": optimizer}, where=where)

    def step(self) -> None:
        """Count one epoch or iteration, and change the learning rate if inside the window."""
        self._count += 1
        if self._scheduler is None:
            if self._count == self.begin:
                self._start()
        elif self._count == self.begin + 1:
            with warnings.catch_warnings():
                # The optimizer has not stepped yet while it accumulates, or after an overflow.
                warnings.filterwarnings(
                    "ignore", r"Detected call of `lr_scheduler\.step\(\)` before"
                )
                self._scheduler.step()
        elif self._count < self.end:
            self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the position, in primitives; what the config says is not repeated."""
        state = None
        if self._scheduler is not None:
            state = {k: v for k, v in self._scheduler.state_dict().items() if _is_plain(v)}
        return {"count": self._count, "scheduler": state}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Return to a position. The learning rates themselves are the optimizer's state."""
        if not {"count", "scheduler"} <= state_dict.keys():
            raise CheckpointError(
                f"{self._where}: the checkpoint's state of this schedule has the keys "
                f"{', '.join(map(str, state_dict)) or 'none'}; one that mm-runner wrote is needed. "
                "Take the weights alone by load_from without resume."
            )
        self._count = state_dict["count"]
        state = state_dict["scheduler"]
        if state is None:
            self._scheduler = None
            return
        if self._scheduler is None:
            # Starting a torch scheduler sets its first learning rate, which is long past.
            # Copied: a learning rate that is a tensor is changed in place.
            rates = [deepcopy(group["lr"]) for group in self.optimizer.param_groups]
            self._start()
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        self._scheduler.load_state_dict(dict(state))

    def _start(self) -> None:
        self._scheduler = build_from_cfg(
            self._arguments, PARAM_SCHEDULERS, {"optimizer": self.optimizer}, where=self._where
        )


def build_param_schedulers(
    optim_wrapper: Any, cfg: Any, *, num_epochs: int, num_iters: int
) -> list[ParamScheduler] | dict[str, list[ParamScheduler]]:
    """Build every scheduler of ``cfg``.

    Args:
        optim_wrapper: An optimizer wrapper, or an ``OptimWrapperDict``.
        cfg: ``None``, one config, or a list of configs. For an ``OptimWrapperDict`` that is for
            each of its wrappers; or a dict of these by name, where others have no schedule.
        num_epochs: Epochs of the run.
        num_iters: Iterations of the run.

    Returns:
        The schedulers; for an ``OptimWrapperDict``, by the name of the wrapper.

    Raises:
        ConfigError: If ``cfg`` is something else or does not fit.
    """
    if not isinstance(optim_wrapper, OptimWrapperDict):
        return _build_list(optim_wrapper.optimizer, cfg, "param_scheduler", num_epochs, num_iters)
    return {
        name: _build_list(
            optim_wrapper[name].optimizer, own, f"param_scheduler.{name}", num_epochs, num_iters
        )
        for name, own in _by_name(optim_wrapper, cfg).items()
    }


def named_schedulers(
    schedulers: list[ParamScheduler] | dict[str, list[ParamScheduler]],
) -> dict[str, list[ParamScheduler]]:
    """Return schedulers by the name of their wrapper; those of the only one under ``""``."""
    return schedulers if isinstance(schedulers, dict) else {"": schedulers}


def _by_name(optim_wrapper: OptimWrapperDict, cfg: Any) -> dict[str, Any]:
    if not isinstance(cfg, Mapping) or "type" in cfg:
        return dict.fromkeys(optim_wrapper, cfg)
    for name in cfg:
        if name not in optim_wrapper:
            raise ConfigError(
                f"param_scheduler.{name}: there is no optim wrapper of this name; there is "
                f"{', '.join(optim_wrapper)}.{did_you_mean(str(name), optim_wrapper)}"
            )
    return {name: cfg.get(name) for name in optim_wrapper}


def _build_list(
    optimizer: Optimizer, cfg: Any, where: str, num_epochs: int, num_iters: int
) -> list[ParamScheduler]:
    if cfg is None:
        return []
    listed = list(cfg) if isinstance(cfg, Sequence) and not isinstance(cfg, str) else [cfg]
    schedulers = []
    for index, one in enumerate(listed):
        place = f"{where}[{index}]" if len(listed) > 1 else where
        if not isinstance(one, Mapping):
            raise ConfigError(f"{place}: a dict with the key 'type' is needed, got {one!r}.")
        if "ReduceLROnPlateau" in str(one.get("type")):
            raise ConfigError(
                f"{place}: {one['type']!r} follows a metric, which this version cannot do; use a "
                "schedule by epoch or iteration."
            )
        schedulers.append(
            ParamScheduler(optimizer, one, num_epochs=num_epochs, num_iters=num_iters, where=place)
        )
    return schedulers


def _with_window_defaults(
    arguments: dict[str, Any],
    length: int,
    window_given: bool,  # noqa: FBT001
) -> dict[str, Any]:
    kind = arguments.get("type")
    if kind == "CosineAnnealingLR":
        arguments.setdefault("T_max", length)
    if kind in {"LinearLR", "ConstantLR"} and window_given:
        # The last step of the window, number length - 1, is the one that arrives.
        arguments.setdefault("total_iters", max(length - 1, 1))
    return arguments


def _is_plain(value: Any) -> bool:
    """Tell what torch's safe loader reads in every version; a Counter holds config anyway."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return not isinstance(value, Counter) and all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (bool, int, float, str))
