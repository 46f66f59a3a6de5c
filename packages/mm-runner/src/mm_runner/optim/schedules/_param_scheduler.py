"""Schedules of one setting of an optimizer, under MMEngine's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor
from typing_extensions import override

from mm_runner.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from torch.optim import Optimizer

INF = 10**9
_WINDOW = ("begin", "end", "last_step", "by_epoch", "verbose")


class ParamScheduler:
    """Changes a setting of the optimizer within the window ``begin <= count < end``.

    It is MMEngine's ``_ParamScheduler``. A subclass overrides ``_get_value()``, which returns a
    value for each parameter group, from :attr:`last_step`, :attr:`base_values` and the groups of
    :attr:`optimizer`. Numbers, texts and lists of these among its attributes are saved in
    checkpoints.

    Each step starts from the current value, so several schedules may follow one another or act at
    once, one per iteration and another per epoch. Groups keep the value that schedules started from
    as ``initial_<param_name>``, and the exact value of a tensor as ``scheduled_<param_name>``.

    Args:
        optimizer: An optimizer, or the wrapper of one.
        param_name: Number of a parameter group that it changes, such as ``"lr"``; ``"momentum"`` is
            the first beta of an optimizer that has betas instead.
        begin: First count that it acts at. Defaults to 0.
        end: First count that it does not act at any more. Defaults to ``INF``.
        last_step: Last step done; the next one is set at once. Defaults to -1: none.
        by_epoch: Whether :meth:`step` is to be called after each epoch, else after each iteration.
        verbose: No effect; log lines have the learning rate.

    Attributes:
        optimizer: The optimizer itself.
        count: Steps taken, from 0.
        monitor: Name of the metric that it follows, or ``None``.
        need_val_args: Whether it follows a metric, by :meth:`follow`.
        where: Path of its config, for messages.

    Raises:
        ConfigError: If ``0 <= begin < end`` does not hold, the groups lack the setting, or they
            lack its initial value and ``last_step`` is given.
    """

    where: str = ""
    monitor: str | None = None
    need_val_args = False

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
        self.where, self.param_name = self.where or type(self).__name__, param_name
        if not 0 <= begin < end:
            raise ConfigError(
                f"{self.where}: begin={begin} and end={end} were given; 0 <= begin < end is needed."
            )
        self.optimizer = getattr(optimizer, "optimizer", optimizer)
        self.begin, self.end, self.by_epoch, self.count = begin, end, by_epoch, last_step + 1
        self._has_own_end, self._epoch_length = True, 1
        for group in self.optimizer.param_groups:
            if last_step != -1 and f"initial_{param_name}" not in group:
                raise ConfigError(
                    f"{self.where}: last_step={last_step} was given, and parameter groups have no "
                    f"'initial_{param_name}'. Load the state of the optimizer first."
                )
            if not _is_number(self._value(group)):
                numbers = ", ".join(key for key, value in group.items() if _is_number(value))
                raise ConfigError(
                    f"{self.where}: {param_name!r} is to be scheduled, and the parameter groups of "
                    f"{type(self.optimizer).__name__} have no such number; they have {numbers}."
                )
            self._read(group)  # before another schedule changes the initial value
        self._advance()

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
        kwargs["end"] = end if end == INF else end * epoch_length
        build: Any = cls
        return build(*args, begin=begin * epoch_length, by_epoch=False, **kwargs)

    @property
    def last_step(self) -> int:
        """Step within the window, from 0; -1 before it."""
        return max(min(self.count, self.end - 1) - self.begin, -1)

    @property
    def base_values(self) -> list[float]:
        """Values of the parameter groups before any schedule acted on them."""
        return [self._read(group)[1] for group in self.optimizer.param_groups]

    def of_run(self, where: str, epoch_length: int, *, has_own_end: bool) -> None:
        """Tell its place in a run: path of the config, length of an epoch, whether it gives an end.

        Without an end of its own it follows every metric: a run by iterations counts one epoch,
        when it ends, and may be resumed with more iterations.
        """
        self.where, self._epoch_length, self._has_own_end = where, epoch_length, has_own_end

    def step(self, metrics: Mapping[str, Any] | None = None) -> None:
        """Count one epoch or iteration; or with ``metrics``, which some follow, a validation."""
        if metrics is not None:
            self.follow(metrics)
            return
        self.count += 1
        self._advance()

    def _advance(self) -> None:
        """Set the values of the present count if it is inside the window."""
        if self.begin <= self.count < self.end:
            for group, value in zip(self.optimizer.param_groups, self._get_value(), strict=True):
                self._write(group, float(value))

    def _get_value(self) -> Sequence[float]:
        """Return the value of each parameter group at the present step."""
        raise NotImplementedError("A schedule overrides _get_value().")

    def get_last_value(self) -> list[Any]:
        """Return the present value of each parameter group."""
        return [self._value(group) for group in self.optimizer.param_groups]

    def follow(self, metrics: Mapping[str, Any]) -> None:
        """Update a schedule that :attr:`need_val_args` from the metrics of a validation."""

    def state_dict(self) -> dict[str, Any]:
        """Return the position and a subclass's own attributes, in primitives."""
        return {
            "count": self.count,
            "scheduler": {},
            "length": self.end - self.begin,
            "epoch_length": self._epoch_length,
            "attributes": self._own_attributes(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the position. The values themselves are the optimizer's state."""
        if not {"count", "scheduler"} <= state_dict.keys():
            raise CheckpointError(
                f"{self.where}: the checkpoint's state has the keys "
                f"{', '.join(map(str, state_dict)) or 'none'}; count and scheduler are needed."
            )
        self.count = state_dict["count"]
        saved = state_dict.get("attributes", {})
        for name in saved.keys() & self._own_attributes().keys():
            setattr(self, name, saved[name])

    def _own_attributes(self) -> dict[str, Any]:
        # The arguments of a family are configuration.
        others = _OURS | getattr(self, "__dataclass_fields__", {}).keys()
        own = vars(self).items()
        return {name: one for name, one in own if name not in others and is_plain(one)}

    def _value(self, group: Mapping[str, Any]) -> Any:
        if self.param_name == "momentum" and "momentum" not in group and "betas" in group:
            return group["betas"][0]
        return group.get(self.param_name)

    def _read(self, group: dict[str, Any]) -> tuple[float, float]:
        """Return the current value of a group, and the one that schedules started from."""
        current = self._value(group)
        if isinstance(current, Tensor):  # read once: it waits for the device, and is less exact
            exact = f"scheduled_{self.param_name}"
            if exact not in group:
                group[exact] = float(current)
            current = group[exact]
        return float(current), float(group.setdefault(f"initial_{self.param_name}", float(current)))

    def _write(self, group: dict[str, Any], value: float) -> None:
        current = self._value(group)
        if isinstance(current, Tensor):
            group[f"scheduled_{self.param_name}"] = value
            current.fill_(value)
        elif self.param_name in group:
            group[self.param_name] = value
        else:
            group["betas"] = (value, *group["betas"][1:])


class FamilySchedule(ParamScheduler, ABC):
    """Course of a setting within its window.

    Each step starts from the current value, which another schedule may have changed: schedules that
    act at once multiply. A family is a dataclass of the arguments that users write in the
    configuration; :func:`named_class` makes a class of it that takes an optimizer before them.

    Attributes:
        family: The dataclass.
        fills_window: Whether the values depend on the length of the window.
        in_epochs: Arguments that count epochs, and are multiplied by the length of an epoch where
            a schedule by epoch is converted to one by iteration.
        fractions: Arguments that lie from 0 to 1; a dataclass checks them.
        counts: Arguments that are positive.
    """

    family: ClassVar[type[FamilySchedule]]
    fills_window: bool = False
    in_epochs: ClassVar[tuple[str, ...]] = ()
    fractions: ClassVar[tuple[str, ...]] = ()
    counts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, optimizer: Any, param_name: str, *args: Any, **kwargs: Any) -> None:
        window = {name: kwargs.pop(name) for name in _WINDOW if name in kwargs}
        self.family.__init__(self, *args, **kwargs)
        super().__init__(optimizer, param_name, **window)

    def __post_init__(self) -> None:
        for name in self.fractions:
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}={getattr(self, name)!r} was given; it lies from 0 to 1.")
        for name in self.counts:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value!r} was given; a positive number is needed.")
        floors = getattr(self, "eta_min", None), getattr(self, "eta_min_ratio", None)
        if None not in floors:
            raise ConfigError(
                f"eta_min={floors[0]!r} and eta_min_ratio={floors[1]!r} were given; give one of "
                "them."
            )

    @classmethod
    def in_iters(cls, arguments: dict[str, Any], epoch_length: int) -> dict[str, Any]:
        """Return the arguments with those that count epochs in iterations."""
        converted = dict(arguments)
        for name in cls.in_epochs:
            value = arguments.get(name)
            if isinstance(value, Sequence):
                converted[name] = [one * epoch_length for one in value]
            elif value is not None:
                converted[name] = value * epoch_length
        return converted

    @classmethod
    @override
    def build_iter_from_epoch(
        cls, *args: Any, epoch_length: int | None = None, **kwargs: Any
    ) -> Any:
        kwargs = cls.in_iters(kwargs, epoch_length or 1)
        return super().build_iter_from_epoch(*args, epoch_length=epoch_length, **kwargs)

    @property
    def _length(self) -> int:
        """Steps of the window."""
        return self.end - self.begin

    @abstractmethod
    def _value_at(self, step: int, current: float, base: float) -> float:
        """Return the value of one parameter group.

        Args:
            step: Steps since the window began, from 0.
            current: The group's value before this step.
            base: The group's value before any schedule acted on it.
        """

    @override
    def _get_value(self) -> Sequence[float]:
        step, groups = self.count - self.begin, self.optimizer.param_groups
        return [self._value_at(step, *self._read(group)) for group in groups]

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the position. The values themselves are the optimizer's state.

        A schedule that fills a longer run than the one it was saved in keeps its :attr:`end`: part
        of its course is done, and the rest of another one does not follow from it.
        """
        super().load_state_dict(state_dict)
        length = state_dict.get("length", self._length)
        if not self.by_epoch and state_dict.get("epoch_length"):  # an epoch has other steps now
            length = round(length * self._epoch_length / state_dict["epoch_length"])
        if self.fills_window and not self._has_own_end:
            self.end = self.begin + min(length, self._length)


class LRSchedulerMixin:
    """Makes a schedule of any setting one of the learning rate; it stands before its class."""

    def __init__(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(optimizer, "lr", *args, **kwargs)  # type: ignore[call-arg]


class MomentumSchedulerMixin:
    """The same for the momentum, or the first beta of an optimizer that has betas instead."""

    def __init__(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(optimizer, "momentum", *args, **kwargs)  # type: ignore[call-arg]


# Attributes that no checkpoint needs.
_OURS = {"where", "param_name", "begin", "end", "by_epoch", "count"}
_OURS |= {"_has_own_end", "_epoch_length"}


def is_plain(value: Any) -> bool:
    """Return whether every torch loads a value safely; others are configuration."""
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Tensor)) and not isinstance(value, bool)
