"""Schedules of one setting of an optimizer, and how a run builds them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

import mm_dist
from mm_amp import OptimWrapperDict
from mm_runner.errors import CheckpointError, ComponentNotFoundError, ConfigError, did_you_mean
from mm_runner.evaluator import score_of
from mm_runner.registry import PARAM_SCHEDULERS, check_arguments

from ._families import FAMILIES, ReduceOnPlateau, Shape
from ._torch_schedule import TorchSchedule

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["ParamScheduler", "build_param_schedulers", "named_schedulers", "own_class"]

_WINDOW = ("begin", "end", "by_epoch", "convert_to_iter_based", "verbose")


class ParamScheduler:
    """Changes a setting of the optimizer within the window ``begin <= count < end``.

    Each step starts from the current value, so several schedules may follow one another or act at
    once, one per iteration and another per epoch. Groups keep the value that schedules started from
    as ``initial_<setting>``, and the exact value of a tensor as ``scheduled_<setting>``.

    Args:
        optimizer: Whose parameter groups are scheduled.
        cfg: ``dict(type=..., begin=0, end=..., by_epoch=True, **arguments)``. ``type`` is
            MMEngine's name of a family for the learning rate (``"CosineAnnealingLR"``), the
            momentum (``"CosineAnnealingMomentum"``: the first beta of an optimizer that has betas
            instead) or, with ``param_name``, any number of a parameter group
            (``"CosineAnnealingParamScheduler"``), or the class of that name; or any other class of
            ``torch.optim.lr_scheduler``. ``convert_to_iter_based=True`` turns a schedule written in
            epochs into one by iteration.
        num_epochs: Epochs of the run, the default ``end`` of a schedule by epoch.
        num_iters: Iterations of the run, the default ``end`` of a schedule by iteration.
        epoch_length: Iterations of an epoch. Defaults to ``num_iters // num_epochs``.
        where: Path of ``cfg`` in the configuration, for messages.

    Attributes:
        optimizer: See above.
        by_epoch: Whether :meth:`step` is to be called after each epoch, else after each iteration.
        count: Steps taken, from 0; the schedule acts from ``begin`` until before ``end``.
        setting: Name of what it changes, such as ``"lr"``.
        monitor: Name of the metric that it follows, or ``None``.
        need_val_args: Whether it follows a metric, by :meth:`follow`.
        where: Path of the config.

    Raises:
        ConfigError: If the window is empty or an argument does not fit.
        ComponentNotFoundError: If ``type`` names nothing.
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
        self.optimizer, self.where, self.count = optimizer, where, 0
        arguments = dict(cfg)
        window = {name: arguments.pop(name) for name in _WINDOW if name in cfg}
        check_arguments(self._set_window, window, where, is_partial=True)
        factor = self._set_window(num_epochs, num_iters, epoch_length, **window)
        self._start(*self._build_course(arguments, factor))

    def _start(self, setting: str, course: Any) -> None:
        """Check that every group has the setting, and set its first value."""
        self.setting, self._course = setting, course
        self.monitor = getattr(course, "monitor", None)
        self.need_val_args = isinstance(course, ReduceOnPlateau)
        for group in self.optimizer.param_groups:
            if not _is_number(self._value(group)):
                numbers = ", ".join(key for key, value in group.items() if _is_number(value))
                raise ConfigError(
                    f"{self.where}: {setting!r} is to be scheduled, and the parameter groups of "
                    f"{type(self.optimizer).__name__} have no such number; they have {numbers}."
                )
            self._read(group)  # before another schedule changes the initial value
        self._advance()

    def _set_window(
        self,
        num_epochs: int,
        num_iters: int,
        epoch_length: int | None,
        *,
        begin: int = 0,
        end: int | None = None,
        by_epoch: bool = True,
        convert_to_iter_based: bool = False,
        verbose: Any = False,  # noqa: ARG002 - MMEngine's
    ) -> int:
        """Set the window; return what arguments that count epochs are to be multiplied by."""
        converts = by_epoch and convert_to_iter_based
        self.by_epoch = by_epoch and not converts
        factor = (epoch_length or num_iters // max(num_epochs, 1)) if converts else 1
        of_run = num_epochs if self.by_epoch else num_iters
        self.begin, self.end = begin * factor, of_run if end is None else end * factor
        if not 0 <= self.begin < self.end:
            unit = "epoch(s)" if self.by_epoch else "iteration(s)"
            raise ConfigError(
                f"{self.where}: begin={begin} and end={end} were given, and the run ends after "
                f"{of_run:,} {unit}; 0 <= begin < end is needed."
            )
        # Without an end of its own it follows every metric: a run by iterations counts one epoch,
        # when it ends, and may be resumed with more iterations.
        self._has_own_end = end is not None
        self._epoch_length = epoch_length or num_iters // max(num_epochs, 1)
        return factor

    def _build_course(self, arguments: dict[str, Any], factor: int) -> tuple[str, Any]:
        """Return the name of the setting, and what computes its values."""
        name, where = arguments["type"], self.where
        kind, setting = _resolve(name, where)
        if not (isinstance(kind, type) and issubclass(kind, Shape)):
            bases = [base.__name__ for base in getattr(kind, "__mro__", ())]
            has_window = "_ParamScheduler" in bases  # MMEngine's
            if factor != 1 and not hasattr(kind, "build_iter_from_epoch"):
                raise ConfigError(
                    f"{where}.convert_to_iter_based: it does not convert {name!r}; write "
                    "its arguments in iterations, with by_epoch=False."
                )
            if has_window and factor == 1:
                length = self.end - self.begin
                arguments |= {"begin": 0, "end": length, "by_epoch": self.by_epoch}
            elif has_window:
                length = (self.end - self.begin) // factor
                arguments |= {"begin": 0, "end": length, "epoch_length": factor}
                arguments["type"] = kind.build_iter_from_epoch
            return "lr", TorchSchedule(self.optimizer, arguments, where)
        del arguments["type"]
        setting = setting or arguments.pop("param_name", None)
        check_arguments(kind, arguments, where, name=getattr(name, "__name__", name))
        try:
            course = kind(**kind.in_iters(arguments, factor))
        except (ConfigError, TypeError, ValueError) as error:
            raise ConfigError(f"{where}: {error}") from error
        course.length = self.end - self.begin
        return setting, course

    def step(self) -> None:
        """Count one epoch or iteration, and change the value if inside the window."""
        self.count += 1
        self._advance()

    def _advance(self) -> None:
        if not self.begin <= self.count < self.end:
            return
        if isinstance(self._course, TorchSchedule):
            self._course.advance(self.count - self.begin)
            return
        for group, value in zip(self.optimizer.param_groups, self._get_value(), strict=True):
            self._write(group, float(value))

    def _get_value(self) -> Sequence[float]:
        """Return the value of each parameter group at the present step."""
        step, groups = self.count - self.begin, self.optimizer.param_groups
        return [self._course.value(step, *self._read(group)) for group in groups]

    def get_last_value(self) -> list[Any]:
        """Return the present value of each parameter group."""
        return [self._value(group) for group in self.optimizer.param_groups]

    def follow(self, metrics: Mapping[str, Any]) -> None:
        """Update a schedule that :attr:`need_val_args` from the metrics of a validation.

        Raises:
            ConfigError: If the metric that it follows is not among them, or no number.
        """
        plateau = self._course
        is_inside = self.begin <= self.count and (self.count < self.end or not self._has_own_end)
        if not isinstance(plateau, ReduceOnPlateau) or not is_inside:
            return
        if plateau.follow(score_of(metrics, plateau.monitor, f"{self.where}.monitor")):
            floors: Any = plateau.min_value
            listed = floors if isinstance(floors, Sequence) else [floors]
            for index, group in enumerate(self.optimizer.param_groups):
                current, _ = self._read(group)
                # A group beyond the list has the last floor.
                new = max(current * plateau.factor, listed[min(index, len(listed) - 1)])
                if current - new > plateau.eps:
                    self._write(group, new)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, in primitives; arguments are not repeated."""
        is_torchs = isinstance(self._course, TorchSchedule)
        state = self._course.state_dict() if is_torchs else dict(self._course.state)
        return {
            "count": self.count,
            "scheduler": state,
            "length": self.end - self.begin,
            "epoch_length": self._epoch_length,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the position. The values themselves are the optimizer's state.

        A schedule that fills a longer run than the one it was saved in keeps its :attr:`end`: part
        of its course is done, and the rest of another one does not follow from it.
        """
        if not {"count", "scheduler"} <= state_dict.keys():
            raise CheckpointError(
                f"{self.where}: the checkpoint's state has the keys "
                f"{', '.join(map(str, state_dict)) or 'none'}; count and scheduler are needed."
            )
        self.count, state = state_dict["count"], state_dict["scheduler"]
        if isinstance(self._course, TorchSchedule):
            self._course.load_state_dict(state)
            return
        self._course.state = {name: state[name] for name in self._course.state}
        length = state_dict.get("length", self._course.length)
        if not self.by_epoch and state_dict.get("epoch_length"):  # an epoch has other steps now
            length = round(length * self._epoch_length / state_dict["epoch_length"])
        if self._course.fills_window and not self._has_own_end:
            self._course.length = min(length, self._course.length)
            self.end = self.begin + self._course.length

    def _value(self, group: Mapping[str, Any]) -> Any:
        if self.setting == "momentum" and "momentum" not in group and "betas" in group:
            return group["betas"][0]
        return group.get(self.setting)

    def _read(self, group: dict[str, Any]) -> tuple[float, float]:
        """Return the current value of a group, and the one that schedules started from."""
        current = self._value(group)
        if isinstance(current, Tensor):  # read once: it waits for the device, and is less exact
            exact = f"scheduled_{self.setting}"
            if exact not in group:
                group[exact] = float(current)
            current = group[exact]
        return float(current), float(group.setdefault(f"initial_{self.setting}", float(current)))

    def _write(self, group: dict[str, Any], value: float) -> None:
        current = self._value(group)
        if isinstance(current, Tensor):
            group[f"scheduled_{self.setting}"] = value
            current.fill_(value)
        elif self.setting in group:
            group[self.setting] = value
        else:
            group["betas"] = (value, *group["betas"][1:])


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
            ``OptimWrapperDict`` that is for each of its wrappers; or a dict of these by name.
        num_epochs: See :class:`ParamScheduler`.
        num_iters: See there.
        epoch_length: See there.

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


def _build_one(
    optimizer: Optimizer,
    cfg: Mapping[str, Any],
    *,
    num_epochs: int,
    num_iters: int,
    epoch_length: int | None = None,
    where: str,
) -> ParamScheduler:
    """Build one scheduler; arguments and errors are those of :class:`ParamScheduler`.

    A class of a user is called with ``optimizer`` and the arguments of ``cfg``, and ``end``: by
    default the end of the run.
    """
    kind = own_class(cfg, where)
    if kind is None:
        run: Any = {"num_epochs": num_epochs, "num_iters": num_iters, "epoch_length": epoch_length}
        return ParamScheduler(optimizer, cfg, where=where, **run)
    of_run = num_epochs if cfg.get("by_epoch", True) else num_iters
    arguments = {"end": of_run, **cfg, "optimizer": optimizer}
    del arguments["type"]
    build: Any = kind
    if arguments.pop("convert_to_iter_based", False) and cfg.get("by_epoch", True):
        build = kind.build_iter_from_epoch
        arguments["epoch_length"] = epoch_length or num_iters // max(num_epochs, 1)
    check_arguments(build, arguments, where, name=kind.__name__)
    try:
        schedule: ParamScheduler = build(**arguments)
    except (ConfigError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error
    schedule.where, schedule._has_own_end = where, "end" in cfg  # noqa: SLF001
    schedule._epoch_length = epoch_length or num_iters // max(num_epochs, 1)  # noqa: SLF001
    return schedule


def own_class(cfg: Mapping[str, Any], where: str) -> Any:
    """Return the class that ``type`` names if it is a user's, derived from ours, else ``None``."""
    kind = _resolve(cfg["type"], where)[0] if cfg.get("type") is not None else None
    return kind if isinstance(kind, type) and issubclass(kind, ParamScheduler) else None


def _resolve(name: Any, where: str) -> tuple[Any, str | None]:
    """Return the family or class that ``type`` names, and the setting if the name says it."""
    kind = name
    if isinstance(name, str):
        bare = name.removeprefix("mmengine.")
        if bare in FAMILIES and bare not in PARAM_SCHEDULERS.module_dict:  # a registered name wins
            return FAMILIES[bare]
        try:
            kind = PARAM_SCHEDULERS.get(name, others=list(FAMILIES))
        except ComponentNotFoundError as error:
            raise ComponentNotFoundError(f"{where}.type: {error}") from error
    module, name = getattr(kind, "__module__", None) or "", getattr(kind, "__name__", None)
    if name in FAMILIES and module.startswith(("mm_runner.optim", "mmengine.optim.")):
        return FAMILIES[name]
    return kind, "lr"


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
        schedule = _build_one(optimizer, one, where=place, **run)
        schedulers.append(schedule)
        total = one.get("total_steps")
        of_run = run["num_epochs"] if schedule.by_epoch else run["num_iters"]
        needed = min(schedule.end, of_run) - schedule.begin
        is_short = isinstance(total, int) and total < needed
        if is_short and not one.get("convert_to_iter_based") and mm_dist.is_main_process():
            unit = "epochs" if schedule.by_epoch else "steps of one batch"
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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Tensor)) and not isinstance(value, bool)
