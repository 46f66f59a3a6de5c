"""Schedules as classes, under MMEngine's names, for scripts and for subclasses."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.errors import ConfigError

from ._families import FAMILIES, Shape
from ._param_scheduler import ParamScheduler
from ._torch_schedule import is_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.optim import Optimizer

__all__ = ["INF", "LRSchedulerMixin", "MomentumSchedulerMixin", "Schedule", "named_class"]

INF = 10**9


class _OfSubclass(Shape):
    """No shape: the values are those of a subclass."""

    @override
    def value(self, step: int, current: float, base: float) -> float:
        raise NotImplementedError("A schedule overrides _get_value().")


class Schedule(ParamScheduler):
    """Base of schedules that are classes; MMEngine calls it ``_ParamScheduler``.

    A subclass overrides ``_get_value()``, which returns a value for each parameter group, from
    :attr:`last_step`, :attr:`base_values` and the groups of :attr:`optimizer`. Numbers, texts and
    lists of these among its attributes are saved in checkpoints.

    Args:
        optimizer: An optimizer, or the wrapper of one.
        param_name: What it changes, such as ``"lr"``; also an attribute.
        begin: First count that it acts at. Defaults to 0.
        end: First count that it does not act at any more. Defaults to ``INF``.
        last_step: Last step done; the next one is set at once. Defaults to -1: none.
        by_epoch: Whether it counts epochs, else iterations.
        verbose: No effect; log lines have the learning rate.

    Raises:
        ConfigError: If ``begin < end`` does not hold, the groups lack the setting, or they lack its
            initial value and ``last_step`` is given.
    """

    family: type[Shape] = _OfSubclass

    def __init__(
        self,
        optimizer: Optimizer,
        param_name: str,
        begin: int = 0,
        end: int = INF,
        last_step: int = -1,
        by_epoch: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
        verbose: bool = False,  # noqa: ARG002, FBT001, FBT002
    ) -> None:
        self.where, self.param_name = type(self).__name__, param_name
        if not 0 <= begin < end:
            raise ConfigError(
                f"{self.where}: begin={begin} and end={end} were given; 0 <= begin < end is needed."
            )
        self.optimizer = getattr(optimizer, "optimizer", optimizer)
        initial = f"initial_{param_name}"
        if last_step != -1 and any(initial not in one for one in self.optimizer.param_groups):
            raise ConfigError(
                f"{self.where}: last_step={last_step} was given, and parameter groups have no "
                f"{initial!r}. Load the state of the optimizer first."
            )
        self.begin, self.end, self.by_epoch, self.count = begin, end, by_epoch, last_step + 1
        self._has_own_end, self._epoch_length = True, 1
        course = vars(self).get("_course") or _OfSubclass()
        course.length = end - begin
        self._start(param_name, course)

    @property
    def last_step(self) -> int:
        """Step within the window, from 0; -1 before it."""
        return max(min(self.count, self.end - 1) - self.begin, -1)

    @property
    def base_values(self) -> list[float]:
        """Values of the parameter groups before any schedule acted on them."""
        return [self._read(group)[1] for group in self.optimizer.param_groups]

    @classmethod
    def build_iter_from_epoch(
        cls,
        *args: Any,
        begin: int = 0,
        end: int = INF,
        by_epoch: bool = True,
        epoch_length: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Build one that counts iterations, from arguments that count epochs of ``epoch_length``.

        Raises:
            ConfigError: If ``by_epoch`` is false, or ``epoch_length`` is no positive number.
        """
        if not by_epoch or not epoch_length or epoch_length < 0:
            raise ConfigError(
                f"build_iter_from_epoch: by_epoch={by_epoch} and epoch_length={epoch_length} were "
                "given; by_epoch=True and a positive number are needed."
            )
        kwargs = cls.family.in_iters(kwargs, epoch_length)
        kwargs["end"] = end if end == INF else end * epoch_length
        build: Any = cls
        return build(*args, begin=begin * epoch_length, by_epoch=False, **kwargs)

    @override
    def step(self, metrics: Mapping[str, Any] | None = None) -> None:
        """Count one epoch or iteration; or with ``metrics``, which some follow, a validation."""
        if metrics is None:
            super().step()
        else:
            self.follow(metrics)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "attributes": self._own_attributes()}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        saved = state_dict.get("attributes", {})
        for name in saved.keys() & self._own_attributes().keys():
            setattr(self, name, saved[name])

    def _own_attributes(self) -> dict[str, Any]:
        """Return the plain attributes of a user's subclass, without the family's arguments."""
        left_out = (*_OURS, *inspect.signature(self.family).parameters)
        own = vars(self).items()
        return {name: one for name, one in own if name not in left_out and is_plain(one)}


class _FamilySchedule(Schedule):
    """Schedule of a family; the arguments of the family come after ``param_name``."""

    def __init__(self, optimizer: Any, param_name: str, *args: Any, **kwargs: Any) -> None:
        window = {name: kwargs.pop(name) for name in _WINDOW if name in kwargs}
        self._course = self.family(*args, **kwargs)
        for name in inspect.signature(self.family).parameters:
            setattr(self, name, getattr(self._course, name))
        super().__init__(optimizer, param_name, **window)


class LRSchedulerMixin:
    """Makes a schedule of any setting one of the learning rate; it stands before its class."""

    def __init__(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(optimizer, "lr", *args, **kwargs)  # type: ignore[call-arg]


class MomentumSchedulerMixin:
    """The same for the momentum, or the first beta of an optimizer that has betas instead."""

    def __init__(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(optimizer, "momentum", *args, **kwargs)  # type: ignore[call-arg]


_MIXINS = {"lr": LRSchedulerMixin, "momentum": MomentumSchedulerMixin}
_WINDOW = ("begin", "end", "last_step", "by_epoch", "verbose")
# Attributes that no checkpoint needs.
_OURS = {"where", "param_name", "begin", "end", "by_epoch", "count", "setting", "monitor"}
_OURS |= {"need_val_args", "_has_own_end", "_epoch_length"}


@cache
def named_class(name: str) -> type[Schedule]:
    """Return the class of a name of ``FAMILIES``; those of one setting derive from the general one.

    Its arguments are ``optimizer``, ``param_name`` for the general one, those of the family, and by
    keyword the others of :class:`Schedule`.
    """
    family, setting = FAMILIES[name]
    bases: tuple[type, ...] = (_FamilySchedule,)
    if setting is not None:
        bases = (_MIXINS[setting], named_class(f"{family.__name__}ParamScheduler"))
    content = {"family": family, "__doc__": family.__doc__, "__module__": "mm_runner.optim"}
    return type(name, bases, content)
