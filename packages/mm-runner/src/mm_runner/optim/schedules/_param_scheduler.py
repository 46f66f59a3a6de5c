"""Schedules of one setting of an optimizer, and how a run builds and replays them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.optim import lr_scheduler

import mm_dist
from mm_amp import OptimWrapperDict
from mm_runner.errors import CheckpointError, ComponentNotFoundError, ConfigError, did_you_mean
from mm_runner.evaluator import score_of
from mm_runner.registry import PARAM_SCHEDULERS, check_arguments

from ._drivers import Setting, TorchSchedule
from ._families import FAMILIES, ReduceOnPlateau, Shape

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["ParamScheduler", "build_param_schedulers", "named_schedulers", "replay"]

_WINDOW = ("begin", "end", "by_epoch", "convert_to_iter_based", "verbose")


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
        window: ``begin`` and ``end`` as configured; the run's own end counts epochs if it does.
        setting: Name of what it changes, such as ``"lr"``.
        monitor: Name of the metric that it follows, or ``None``.
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
                f"{', '.join(FAMILIES)}, or a class of torch.optim.lr_scheduler."
            )
        self.optimizer, self.where = optimizer, where
        self.setting, self._count = "lr", 0
        factor = self._set_window(cfg, num_epochs, num_iters, epoch_length)
        arguments = {key: value for key, value in cfg.items() if key not in _WINDOW}
        self._course = self._build_course(arguments, factor)
        try:
            self._setting = Setting(optimizer, self.setting)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        self.monitor = getattr(self._course, "monitor", None)
        self.start()

    def _set_window(
        self, cfg: Mapping[str, Any], num_epochs: int, num_iters: int, epoch_length: int | None
    ) -> int:
        """Set the window; return what arguments that count epochs are to be multiplied by."""
        converts = cfg.get("convert_to_iter_based", False)
        in_epochs = cfg.get("by_epoch", True)
        for name, flag in {"by_epoch": in_epochs, "convert_to_iter_based": converts}.items():
            if not isinstance(flag, bool):
                raise ConfigError(f"{self.where}.{name}: True or False is needed, got {flag!r}.")
        if converts and not in_epochs:
            raise ConfigError(
                f"{self.where}.convert_to_iter_based: it converts a schedule by epoch, and "
                "by_epoch=False was given; leave one of the two out."
            )
        begin, end = cfg.get("begin", 0), cfg.get("end")
        for name, value in {"begin": begin, "end": end}.items():
            if type(value) is not int and not (value is None and name == "end"):
                raise ConfigError(
                    f"{self.where}: {name}={value!r} was given; begin and end are integers, "
                    "epochs or iterations."
                )
        self.by_epoch, self._has_own_end = in_epochs and not converts, end is not None
        factor = (epoch_length or num_iters // max(num_epochs, 1)) if converts else 1
        of_run = num_epochs if self.by_epoch else num_iters
        self.begin, self.end = begin * factor, of_run if end is None else end * factor
        if not 0 <= self.begin < self.end:
            length = f"{num_epochs:,} epoch(s)" if in_epochs else f"{num_iters:,} iteration(s)"
            given = f"was given, and the run ends after {length}"
            if end is not None:
                given = f"and end={end} were given"
            raise ConfigError(f"{self.where}: begin={begin} {given}; 0 <= begin < end is needed.")
        # With other data an epoch has other steps, and a run of the same epochs is the same.
        counts_epochs = epoch_length is not None and num_iters == num_epochs * epoch_length
        self.window = [begin, (num_epochs if counts_epochs else of_run) if end is None else end]
        return factor

    def _build_course(
        self, arguments: dict[str, Any], factor: int
    ) -> Shape | ReduceOnPlateau | TorchSchedule:
        name = arguments["type"]
        kind, setting = self._resolve(name, arguments)
        if not (isinstance(kind, type) and issubclass(kind, (Shape, ReduceOnPlateau))):
            if factor != 1:
                raise ConfigError(
                    f"{self.where}.convert_to_iter_based: which arguments of {name!r} count epochs "
                    "is not known; write them in iterations, with by_epoch=False."
                )
            return TorchSchedule(self.optimizer, arguments, self.where)
        del arguments["type"]
        self.setting = setting or arguments.pop("param_name", None)
        if self.setting is None:
            raise ConfigError(
                f"{self.where}.param_name: {name} needs the name of a setting, such as "
                "'weight_decay'."
            )
        check_arguments(kind, arguments, self.where, name=getattr(name, "__name__", name))
        if issubclass(kind, ReduceOnPlateau) and not self.by_epoch:
            raise ConfigError(
                f"{self.where}: a schedule that follows a metric counts epochs; leave out "
                "by_epoch=False and convert_to_iter_based."
            )
        for key in getattr(kind, "in_epochs", ()):
            value = arguments.get(key)
            if isinstance(value, Sequence):
                arguments[key] = [one * factor for one in value]
            elif value is not None:
                arguments[key] = value * factor
        try:
            course: Shape | ReduceOnPlateau = kind(**arguments)
        except (ConfigError, TypeError, ValueError) as error:
            raise ConfigError(f"{self.where}: {error}") from error
        if isinstance(course, Shape):
            course.length = self.end - self.begin
        return course

    def _resolve(self, name: Any, arguments: Mapping[str, Any]) -> tuple[Any, str | None]:
        """Return the family or class of a name, and its setting if the name says it."""
        if not isinstance(name, str):
            return name, "lr"
        if name in FAMILIES and name not in PARAM_SCHEDULERS.module_dict:  # a registered name wins
            family, setting = FAMILIES[name]
            known = inspect.signature(family).parameters
            torchs = inspect.signature(getattr(lr_scheduler, name, family)).parameters
            # Such as total_iters of LinearLR, which only torch's class of the same name takes.
            if not any(one in torchs and one not in known for one in arguments):
                return family, setting
        if name == "ReduceLROnPlateau":
            raise ConfigError(
                f"{self.where}: torch's ReduceLROnPlateau does not say which metric it follows; "
                "use dict(type='ReduceOnPlateauLR', monitor=...), and rule for mode, min_value for "
                "min_lr."
            )
        try:
            return PARAM_SCHEDULERS.get(name, others=list(FAMILIES)), "lr"
        except ComponentNotFoundError as error:
            raise ComponentNotFoundError(f"{self.where}.type: {error}") from error

    @property
    def need_val_args(self) -> bool:
        """Whether it follows a metric, by :meth:`follow`."""
        return isinstance(self._course, ReduceOnPlateau)

    def start(self) -> None:
        """Set the first values if the window begins with the run; the constructor does this."""
        if self.begin == self._count == 0:
            self._advance(0)

    def step(self) -> None:
        """Count one epoch or iteration, and change the value if inside the window."""
        self._count += 1
        if self.begin <= self._count < self.end:
            self._advance(self._count - self.begin)

    def _advance(self, step: int) -> None:
        if isinstance(self._course, TorchSchedule):
            self._course.advance(step)
        elif isinstance(self._course, Shape):
            for group in self._setting.groups:
                current, base = self._setting.read(group)
                value = self._course.value(step, current, base)
                if value != current:
                    self._setting.write(group, value)

    def follow(self, metrics: Mapping[str, Any]) -> None:
        """Update a schedule that :attr:`need_val_args` from the metrics of a validation.

        Raises:
            ConfigError: If the metric that it follows is not among them, or no number.
        """
        plateau = self._course
        # Without an end of its own it follows every validation: a run by iterations counts one
        # epoch, when it ends, and may be resumed with more iterations.
        is_inside = self.begin <= self._count and (self._count < self.end or not self._has_own_end)
        if not isinstance(plateau, ReduceOnPlateau) or not is_inside:
            return
        if plateau.follow(score_of(metrics, plateau.monitor, f"{self.where}.monitor")):
            floors: Any = plateau.min_value
            listed = isinstance(floors, Sequence)
            for index, group in enumerate(self._setting.groups):
                current, _ = self._setting.read(group)
                # A group beyond the list has the last floor.
                floor = floors[min(index, len(floors) - 1)] if listed else floors
                new = max(current * plateau.factor, floor)
                if current - new > plateau.eps:
                    self._setting.write(group, new)

    def rewind(self) -> int:
        """Return to the initial values and position, and return how many steps were taken.

        :meth:`start` has to follow, once all schedules of the optimizer are rewound.
        """
        done, self._count = self._count, 0
        self._setting.rewind()
        return done

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the window, in primitives; arguments are not repeated."""
        state: Any = {}  # the values are the optimizer's state
        if isinstance(self._course, ReduceOnPlateau):
            state = dict(self._course.state)
        elif isinstance(self._course, TorchSchedule):
            state = self._course.state_dict()
        return {"count": self._count, "window": self.window, "scheduler": state}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the position. The values themselves are the optimizer's state."""
        if not {"count", "scheduler"} <= state_dict.keys():
            raise CheckpointError(
                f"{self.where}: the checkpoint's state of this schedule has the keys "
                f"{', '.join(map(str, state_dict)) or 'none'}; one that mm-runner wrote is needed. "
                "Take the weights alone by load_from without resume."
            )
        self._count, state = state_dict["count"], state_dict["scheduler"]
        if isinstance(self._course, ReduceOnPlateau):
            self._course.state = {name: state[name] for name in self._course.state}
        elif isinstance(self._course, TorchSchedule):
            self._course.load_state_dict(state)


def build_param_schedulers(
    optim_wrapper: Any,
    cfg: Any,
    *,
    num_epochs: int,
    num_iters: int,
    epoch_length: int | None = None,
) -> list[ParamScheduler] | dict[str, list[ParamScheduler]]:
    """Build every scheduler of ``cfg``.

    Args:
        optim_wrapper: An optimizer wrapper, or an ``OptimWrapperDict``.
        cfg: ``None``, one config (or a ready :class:`ParamScheduler`), or a list of these. For an
            ``OptimWrapperDict`` that is for each of its wrappers; or a dict of these by name, where
            others have no schedule.
        num_epochs: Epochs of the run.
        num_iters: Iterations of the run.
        epoch_length: Iterations of an epoch. Defaults to ``num_iters // num_epochs``.

    Returns:
        The schedulers; for an ``OptimWrapperDict``, by the name of the wrapper.

    Raises:
        ConfigError: If ``cfg`` is something else or does not fit.
    """
    run = {"num_epochs": num_epochs, "num_iters": num_iters, "epoch_length": epoch_length}
    if not isinstance(optim_wrapper, OptimWrapperDict):
        return _build_list(optim_wrapper.optimizer, cfg, "param_scheduler", run)
    if not isinstance(cfg, Mapping) or "type" in cfg:
        cfg = dict.fromkeys(optim_wrapper, cfg)
    for name in cfg:
        if name not in optim_wrapper:
            raise ConfigError(
                f"param_scheduler.{name}: there is no optim wrapper of this name; there is "
                f"{', '.join(optim_wrapper)}.{did_you_mean(str(name), optim_wrapper)}"
            )
    return {
        name: _build_list(wrapper.optimizer, cfg.get(name), f"param_scheduler.{name}", run)
        for name, wrapper in optim_wrapper.items()
    }


def _build_list(
    optimizer: Optimizer, cfg: Any, where: str, run: dict[str, Any]
) -> list[ParamScheduler]:
    listed = list(cfg) if isinstance(cfg, Sequence) and not isinstance(cfg, str) else [cfg]
    schedulers = []
    for index, one in enumerate(listed if cfg is not None else []):
        place = f"{where}[{index}]" if len(listed) > 1 else where
        if isinstance(one, ParamScheduler):
            schedulers.append(one)
            continue
        if not isinstance(one, Mapping):
            raise ConfigError(f"{place}: a dict with the key 'type' is needed, got {one!r}.")
        schedule = ParamScheduler(optimizer, one, where=place, **run)
        schedulers.append(schedule)
        total, unit = (
            one.get("total_steps"),
            "epochs" if schedule.by_epoch else "steps of one batch",
        )
        needed = min(schedule.end, run["num_epochs" if schedule.by_epoch else "num_iters"])
        needed -= schedule.begin
        is_short = isinstance(total, int) and total < needed
        if is_short and not one.get("convert_to_iter_based") and mm_dist.is_main_process():
            warnings.warn(
                f"{place}: the cycle ends after total_steps={total}, and it acts in {needed} "
                f"{unit}: the value stays at its end from there. Give total_steps={needed}.",
                stacklevel=2,
            )
    return schedulers


def named_schedulers(
    schedulers: list[ParamScheduler] | dict[str, list[ParamScheduler]],
) -> dict[str, list[ParamScheduler]]:
    """Return schedulers by the name of their wrapper; those of the only one under ``""``."""
    return schedulers if isinstance(schedulers, dict) else {"": schedulers}


def replay(schedulers: Sequence[ParamScheduler], num_iters: int, epoch_length: int | None) -> None:
    """Repeat all steps of schedules from the initial values of the optimizer.

    Each value is computed from the previous one, so after a change of windows only this gives the
    values of the configuration at this position, to the last bit.

    Args:
        schedulers: All of one optimizer, each at its position; none follows a metric.
        num_iters: Iterations of the run so far. A schedule that has taken fewer steps was held by
            steps that overflowed, most of which are the first ones.
        epoch_length: Iterations of an epoch, ``None`` if not known.
    """
    steps = [(scheduler, scheduler.rewind()) for scheduler in schedulers]
    num_epochs = max([number for one, number in steps if one.by_epoch], default=0)
    by_iter = [number for one, number in steps if not one.by_epoch]
    num_iters = max([num_iters, num_epochs, *by_iter])
    # Epochs that are done may have had another length.
    if not epoch_length or num_iters // epoch_length != num_epochs:
        epoch_length = max(num_iters // max(num_epochs, 1), 1)
    for scheduler in schedulers:
        scheduler.start()
    for done in range(1, num_iters + 1):
        epoch, rest = divmod(done, epoch_length)
        for one, number in steps:
            if not one.by_epoch and done > num_iters - number:
                one.step()
        for one, number in steps:
            if one.by_epoch and not rest and num_epochs - number < epoch <= num_epochs:
                one.step()
