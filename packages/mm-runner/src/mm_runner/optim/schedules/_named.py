"""Schedules as classes, under MMEngine's names, for scripts and for subclasses."""

from __future__ import annotations

import inspect
from dataclasses import fields
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner._untrusted import is_like
from mm_runner.errors import ConfigError

from ._families import FAMILIES, Shape
from ._param_scheduler import ParamScheduler
from ._torch_schedule import is_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
        param_name: What it changes, such as ``"lr"``.
        begin: First count that it acts at. Defaults to 0.
        end: First count that it does not act at any more. Defaults to ``INF``.
        last_step: Last step done; the next one is set at once. Defaults to -1: none.
        by_epoch: Whether it counts epochs, else iterations.
        verbose: No effect; log lines have the learning rate.

    Attributes:
        param_name: See above.

    Raises:
        ConfigError: If ``begin < end`` does not hold, the groups lack the setting, or they lack its
            initial value and ``last_step`` is given.
    """

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
        lacks = [f"initial_{param_name}" not in one for one in self.optimizer.param_groups]
        if last_step != -1 and any(lacks):
            raise ConfigError(
                f"{self.where}: last_step={last_step} was given, and parameter groups have no "
                f"'initial_{param_name}'. Load the state of the optimizer first."
            )
        self.begin, self.end, self.by_epoch, self.count = begin, end, by_epoch, last_step + 1
        self._has_own_end, self._epoch_length = True, 1
        self._start(param_name, vars(self).get("_course", _OfSubclass()))

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
        """Build one that counts iterations from arguments that count epochs.

        Args:
            *args: Of the class.
            begin: In epochs.
            end: In epochs; ``INF`` stays.
            by_epoch: Must be true.
            epoch_length: Iterations of an epoch.
            **kwargs: Of the class.

        Raises:
            ConfigError: If ``by_epoch`` is false, or ``epoch_length`` is no positive number.
        """
        if not by_epoch or not epoch_length or epoch_length < 0:
            raise ConfigError(
                f"build_iter_from_epoch: by_epoch={by_epoch} and epoch_length={epoch_length} were "
                "given; by_epoch=True and a positive number are needed."
            )
        kwargs = cls._in_iters(kwargs, epoch_length)
        end = end if end == INF else end * epoch_length
        build: Any = cls
        return build(*args, begin=begin * epoch_length, end=end, by_epoch=False, **kwargs)

    @classmethod
    def _in_iters(cls, arguments: dict[str, Any], epoch_length: int) -> dict[str, Any]:  # noqa: ARG003
        return arguments

    @override
    def step(self, metrics: Mapping[str, Any] | None = None) -> None:
        """Count one epoch or iteration; or with ``metrics``, which some follow, a validation."""
        if metrics is None:
            super().step()
        else:
            self.follow(metrics)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "attributes": dict(self._own_attributes())}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        saved = state_dict.get("attributes", {})
        for name, value in self._own_attributes():
            is_kind = is_plain if value is None else partial(is_like, own=value)
            if name in saved and is_kind(saved[name]):
                setattr(self, name, saved[name])

    def _own_attributes(self) -> Iterator[tuple[str, Any]]:
        """Yield the plain attributes that a subclass of a user keeps, without its arguments."""
        for name, value in list(vars(self).items()):
            is_ours = name in (*_OURS, *getattr(self._course, "__dataclass_fields__", ()))
            if not is_ours and is_plain(value):
                yield name, value


class _FamilySchedule(Schedule):
    """Schedule of a family; the arguments of the family come after ``param_name``."""

    family: type[Shape]
    _course: Any

    def __init__(self, optimizer: Any, param_name: str, *args: Any, **kwargs: Any) -> None:
        window = {name: kwargs.pop(name) for name in _WINDOW if name in kwargs}
        self._course = self.family(*args, **kwargs)
        begin, end = window.get("begin", 0), window.get("end", INF)
        self._course.length = end - begin
        for one in fields(self.family):  # type: ignore[arg-type]
            setattr(self, one.name, getattr(self._course, one.name))
        super().__init__(optimizer, param_name, **window)

    @classmethod
    @override
    def _in_iters(cls, arguments: dict[str, Any], epoch_length: int) -> dict[str, Any]:
        return cls.family.in_iters(arguments, epoch_length)


class LRSchedulerMixin:
    """Makes a schedule of any setting one of the learning rate; it stands before its class."""

    def __init__(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(optimizer, "lr", *args, **kwargs)  # type: ignore[call-arg]


class MomentumSchedulerMixin:
    """The same for the momentum, or the first beta of an optimizer that has betas instead."""

    def __init__(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(optimizer, "momentum", *args, **kwargs)  # type: ignore[call-arg]


_MIXINS = {"lr": LRSchedulerMixin, "momentum": MomentumSchedulerMixin}
_OF_SCHEDULE = list(inspect.signature(Schedule).parameters.values())
_WINDOW = tuple(one.name for one in _OF_SCHEDULE[2:])
# Attributes that no checkpoint needs.
_OURS = {"where", "param_name", "begin", "end", "by_epoch", "count", "setting", "monitor"}
_OURS |= {"need_val_args", "_has_own_end", "_epoch_length"}


@cache
def named_class(name: str) -> type[Schedule]:
    """Return the class of a name of ``FAMILIES``; those of one setting derive from the general one.

    Its arguments are ``optimizer``, ``param_name`` for the general one, those of the family, and by
    keyword those of :class:`Schedule`.
    """
    family, setting = FAMILIES[name]
    bases: tuple[type, ...] = (_FamilySchedule,)
    if setting is not None:
        bases = (_MIXINS[setting], named_class(f"{family.__name__}ParamScheduler"))

    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        super(kind, self).__init__(*args, **kwargs)

    empty = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    window = [one.replace(kind=one.KEYWORD_ONLY) for one in _OF_SCHEDULE[2:]]
    first = [empty, *_OF_SCHEDULE[: 2 if setting is None else 1]]
    own = inspect.signature(family).parameters.values()
    parameters = [*(one.replace(default=one.empty) for one in first), *own, *window]
    initialise.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    content = {"__init__": initialise, "__doc__": family.__doc__, "__module__": "mm_runner.optim"}
    kind: Any = type(name, bases, {**content, "family": family})
    return kind  # type: ignore[no-any-return]
