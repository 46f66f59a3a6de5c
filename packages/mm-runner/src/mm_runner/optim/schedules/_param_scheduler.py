"""Schedule of one setting of an optimizer."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.optim import lr_scheduler

from mm_runner.errors import CheckpointError, ComponentNotFoundError, ConfigError
from mm_runner.registry import PARAM_SCHEDULERS, check_arguments

from . import _families
from ._drivers import ReduceOnPlateau, ShapeDriver, TorchDriver

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["ParamScheduler", "replay"]

_WINDOW = ("begin", "end", "by_epoch", "last_step", "convert_to_iter_based", "verbose")
# Endings of names, and their settings; the last takes param_name.
_SETTINGS = {"LR": "lr", "Momentum": "momentum", "ParamScheduler": None}
_SHAPES = [getattr(_families, name) for name in _families.__all__ if name != "Shape"]
_FAMILIES: dict[str, tuple[type[Any], str | None]] = {
    f"{family.__name__}{ending}": (family, setting)
    for family in (*_SHAPES, ReduceOnPlateau)
    for ending, setting in _SETTINGS.items()
    if (family, ending) != (_families.OneCycle, "Momentum")
}


class ParamScheduler:
    """Changes a setting of the optimizer within the window ``begin <= count < end``.

    Each step starts from the current value, so several schedules may follow one another or act at
    once, one per iteration and another per epoch.

    Args:
        optimizer: Whose parameter groups are scheduled.
        cfg: ``dict(type=..., begin=0, end=..., by_epoch=True, **arguments)``. ``type`` is
            MMEngine's name of a family for the learning rate (``"CosineAnnealingLR"``), the
            momentum (``"CosineAnnealingMomentum"``) or, with ``param_name``, any number of a
            parameter group (``"CosineAnnealingParamScheduler"``): Constant, CosineAnnealing,
            CosineRestart, Exponential, Linear, MultiStep, OneCycle, Poly, ReduceOnPlateau, Step.
            Any other class of ``torch.optim.lr_scheduler``, and one of these with arguments that
            only torch's has, is torch's own. ``convert_to_iter_based=True`` turns a schedule
            written in epochs into one by iteration.
        num_epochs: Epochs of the run, the default ``end`` of a schedule by epoch.
        num_iters: Iterations of the run, the default ``end`` of a schedule by iteration.
        epoch_length: Iterations of an epoch. Defaults to ``num_iters // num_epochs``.
        where: Path of ``cfg`` in the configuration, for messages.

    Attributes:
        optimizer: See above.
        by_epoch: Whether :meth:`step` is to be called after each epoch, else after each iteration.
        begin: See above.
        end: See above.
        where: Path of the config.

    Raises:
        ConfigError: If the window is empty or an argument does not fit.
        ComponentNotFoundError: If ``type`` names nothing.

    Example:
        >>> optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        >>> cfg = dict(type="LinearLR", start_factor=0.5, end=3)
        >>> warm_up = ParamScheduler(optimizer, cfg, num_epochs=9, num_iters=90)
        >>> warm_up.step()
        >>> optimizer.param_groups[0]["lr"]
        0.75
    """

    def __init__(
        self,
        optimizer: Optimizer,
        cfg: Mapping[str, Any],
        *,
        num_epochs: int,
        num_iters: int,
        epoch_length: int | None = None,
        where: str = "param_scheduler",
    ) -> None:
        if cfg.get("type") is None:
            raise ConfigError(
                f"{where}: the key 'type' is missing; given: "
                f"{', '.join(map(repr, cfg)) or 'nothing'}. It names a schedule: "
                f"{', '.join(_FAMILIES)}, or a class of torch.optim.lr_scheduler."
            )
        self.optimizer, self.where = optimizer, where
        arguments = {key: value for key, value in cfg.items() if key not in _WINDOW}
        factor = self._set_window(cfg, num_epochs, num_iters, epoch_length)
        self._driver = self._build_driver(arguments, factor)
        # A run by iterations is as long as it says, whatever its data.
        counts_epochs = epoch_length is not None and num_iters == num_epochs * epoch_length
        self._epoch_length = epoch_length if counts_epochs else None
        self._count = max(self._last_step, 0)
        self.start()

    def _set_window(
        self, cfg: Mapping[str, Any], num_epochs: int, num_iters: int, epoch_length: int | None
    ) -> int:
        """Set the window; return what arguments that count epochs are to be multiplied by."""
        for name in ("by_epoch", "convert_to_iter_based"):
            if not isinstance(cfg.get(name, True), bool):
                raise ConfigError(
                    f"{self.where}.{name}: True or False is needed, got {cfg[name]!r}."
                )
        self.by_epoch = in_epochs = cfg.get("by_epoch", True)
        factor = 1
        if cfg.get("convert_to_iter_based"):
            if not in_epochs:
                raise ConfigError(
                    f"{self.where}.convert_to_iter_based: it converts a schedule by epoch, and "
                    "by_epoch=False was given; leave one of the two out."
                )
            self.by_epoch = False
            factor = epoch_length or num_iters // max(num_epochs, 1)
        if cfg.get("verbose"):
            message = f"{self.where}.verbose has no effect: log lines show the value."
            warnings.warn(message, stacklevel=3)
        begin, end, last_step = cfg.get("begin", 0), cfg.get("end"), cfg.get("last_step", -1)
        for name, value in {"begin": begin, "end": end, "last_step": last_step}.items():
            if type(value) is not int and not (value is None and name == "end"):
                raise ConfigError(
                    f"{self.where}: {name}={value!r} was given; begin, end and last_step are "
                    "integers, epochs or iterations."
                )
        self._has_own_end = end is not None
        self._last_step: int = last_step
        self.begin = begin * factor
        self.end = end * factor if end is not None else num_epochs if self.by_epoch else num_iters
        if not 0 <= self.begin < self.end:
            length = f"{num_epochs:,} epoch(s)" if in_epochs else f"{num_iters:,} iteration(s)"
            given = (
                f"and end={end} were given"
                if end is not None
                else (f"was given, and the run ends after {length}")
            )
            raise ConfigError(f"{self.where}: begin={begin} {given}; 0 <= begin < end is needed.")
        return factor

    def _build_driver(
        self, arguments: dict[str, Any], factor: int
    ) -> ShapeDriver | ReduceOnPlateau | TorchDriver:
        name = arguments["type"]
        kind, setting = self._resolve(name, arguments)
        if isinstance(kind, type) and issubclass(kind, (_families.Shape, ReduceOnPlateau)):
            return self._build_ours(kind, setting, arguments, factor)
        if isinstance(kind, type) and issubclass(kind, lr_scheduler.ReduceLROnPlateau):
            raise ConfigError(
                f"{self.where}: torch's ReduceLROnPlateau does not say which metric it follows; "
                "use dict(type='ReduceOnPlateauLR', monitor=...), and rule for mode, min_value for "
                "min_lr."
            )
        if factor != 1:
            raise ConfigError(
                f"{self.where}.convert_to_iter_based: which arguments of {name!r} count epochs is "
                "not known; write them in iterations, with by_epoch=False."
            )
        return TorchDriver(self.optimizer, arguments, self.where)

    def _resolve(self, name: Any, arguments: Mapping[str, Any]) -> tuple[Any, str | None]:
        """Return the family or class of a name, and its setting if the name says it."""
        if not isinstance(name, str):
            return name, "lr"
        if name in _FAMILIES and name not in PARAM_SCHEDULERS.module_dict:  # the user's own wins
            family, setting = _FAMILIES[name]
            known = inspect.signature(family).parameters
            torchs = inspect.signature(getattr(lr_scheduler, name, family)).parameters
            # Such as total_iters of LinearLR, which only torch's class of the same name takes.
            if not any(one in torchs and one not in known for one in arguments):
                return family, setting
        if name == "ReduceLROnPlateau":  # until torch 2.1 it was no LRScheduler
            return lr_scheduler.ReduceLROnPlateau, "lr"
        try:
            return PARAM_SCHEDULERS.get(name, others=list(_FAMILIES)), "lr"
        except ComponentNotFoundError as error:
            raise ComponentNotFoundError(f"{self.where}.type: {error}") from error

    def _build_ours(
        self, family: type[Any], setting: str | None, arguments: dict[str, Any], factor: int
    ) -> ShapeDriver | ReduceOnPlateau:
        name = arguments.pop("type")
        setting = setting or arguments.pop("param_name", None)
        if setting is None:
            raise ConfigError(
                f"{self.where}.param_name: {name} needs the name of a setting, such as "
                "'weight_decay'."
            )
        follows_metric = issubclass(family, ReduceOnPlateau)
        if follows_metric and not self.by_epoch:
            raise ConfigError(
                f"{self.where}: a schedule that follows a metric counts epochs; leave out "
                "by_epoch=False and convert_to_iter_based."
            )
        check_arguments(family, arguments, self.where, name=getattr(name, "__name__", name))
        for key in getattr(family, "in_epochs", ()):
            value = arguments.get(key)
            if isinstance(value, Sequence):
                arguments[key] = [one * factor for one in value]
            elif value is not None:
                arguments[key] = value * factor
        try:
            if follows_metric:
                return family(self.optimizer, setting, self.where, **arguments)  # type: ignore[no-any-return]
            shape = family(self.end - self.begin, **arguments)
            return ShapeDriver(self.optimizer, setting, shape)
        except (ConfigError, TypeError, ValueError) as error:
            raise ConfigError(f"{self.where}: {error}") from error

    @property
    def need_val_args(self) -> bool:
        """Whether it follows a metric, by :meth:`follow`."""
        return isinstance(self._driver, ReduceOnPlateau)

    @property
    def monitor(self) -> str | None:
        """Name of the metric that it follows."""
        return getattr(self._driver, "monitor", None)

    @property
    def setting(self) -> str:
        """Name of what it changes, such as ``"lr"``."""
        return self._driver.setting

    def start(self) -> None:
        """Set the first values if the window begins with the run; the constructor does this."""
        if self.begin == 0 and self._last_step < 0:
            self._driver.start()

    def step(self) -> None:
        """Count one epoch or iteration, and change the value if inside the window."""
        self._count += 1
        if self._count == self.begin:
            self._driver.start()
        elif self.begin < self._count < self.end:
            self._driver.advance(self._count - self.begin)

    def follow(self, metrics: Mapping[str, Any]) -> None:
        """Update a schedule that :attr:`need_val_args` from the metrics of a validation.

        Raises:
            ConfigError: If the metric that it follows is not among them, or no number.
        """
        # Without an end of its own it follows every validation: a run by iterations counts one
        # epoch, when it ends, and may be resumed with more iterations.
        is_inside = self.begin <= self._count and (self._count < self.end or not self._has_own_end)
        if isinstance(self._driver, ReduceOnPlateau) and is_inside:
            self._driver.follow(metrics, self._count)

    def rewind(self) -> int:
        """Return to the initial values and position, and return how many steps were taken.

        :meth:`start` has to follow, once all schedules of the optimizer are rewound.
        """
        first = max(self._last_step, 0)
        done, self._count = self._count - first, first
        self._driver.rewind()
        return done

    def repeat(self) -> None:
        """Repeat the changes that metrics made at this count; for other schedules do nothing."""
        if isinstance(self._driver, ReduceOnPlateau):
            self._driver.repeat(self._count)

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the window, in primitives; arguments are not repeated."""
        return {
            "count": self._count,
            "begin": self.begin,
            "end": self.end,
            "epoch_length": self._epoch_length,
            "scheduler": self._driver.state_dict(),
        }

    def has_other_window(self, state_dict: Mapping[str, Any]) -> bool:
        """Return whether a state is of a schedule with another window.

        A window of the same epochs in steps of another length is the same.
        """
        before, now = state_dict["epoch_length"], self._epoch_length
        if self.by_epoch or not before or not now:
            before = now = 1
        # Each by itself: after a warm-up of so many steps, a schedule may end with the epochs.
        return any(
            own != saved and own * before != saved * now
            for own, saved in ((self.begin, state_dict["begin"]), (self.end, state_dict["end"]))
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the position. The values themselves are the optimizer's state."""
        if not {"count", "scheduler"} <= state_dict.keys():
            raise CheckpointError(
                f"{self.where}: the checkpoint's state of this schedule has the keys "
                f"{', '.join(map(str, state_dict)) or 'none'}; one that mm-runner wrote is needed. "
                "Take the weights alone by load_from without resume."
            )
        self._count = state_dict["count"]
        self._driver.load_state_dict(state_dict["scheduler"])


def replay(schedulers: Sequence[ParamScheduler], num_iters: int, epoch_length: int | None) -> None:
    """Repeat all steps of schedules from the initial values of the optimizer.

    Each value is computed from the previous one, so after a change of windows only this gives the
    values of the configuration at this position, to the last bit. The order is that of training:
    after each iteration schedules by iteration, after each epoch those by epoch, then those that
    follow a metric.

    Args:
        schedulers: All of one optimizer, each at its position.
        num_iters: Iterations of the run so far. A schedule that has taken fewer steps was held by
            steps that overflowed, most of which are the first ones.
        epoch_length: Iterations of an epoch, ``None`` if not known.
    """
    steps = [(scheduler, scheduler.rewind()) for scheduler in schedulers]
    for scheduler in schedulers:
        scheduler.start()
    by_iter = [(one, number) for one, number in steps if not one.by_epoch]
    by_epoch = [(one, number) for one, number in steps if one.by_epoch]
    num_epochs = max((number for _, number in by_epoch), default=0)
    num_iters = max([num_iters, *(number for _, number in by_iter)])
    # Epochs that are done may have had another length.
    if not epoch_length or num_iters // epoch_length != num_epochs:
        epoch_length = num_iters // max(num_epochs, 1)
    for one, _ in by_epoch:
        one.repeat()
    for epoch in range(num_epochs):
        _step(by_iter, range(epoch * epoch_length, (epoch + 1) * epoch_length), num_iters)
        _step(by_epoch, range(epoch, epoch + 1), num_epochs)
        for one, number in by_epoch:
            if epoch >= num_epochs - number:
                one.repeat()
    _step(by_iter, range(num_epochs * epoch_length, num_iters), num_iters)


def _step(steps: list[tuple[ParamScheduler, int]], indices: range, total: int) -> None:
    """Take steps of schedules that have each taken the last ones of ``total``."""
    for index in indices if steps else ():
        for scheduler, number in steps:
            if index >= total - number:
                scheduler.step()
