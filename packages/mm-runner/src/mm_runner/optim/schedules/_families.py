"""MMEngine's families of schedules: how a value changes from step to step within its window."""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, Literal

from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.evaluator import score_of

from ._param_scheduler import FamilySchedule, LRSchedulerMixin, MomentumSchedulerMixin

# A smaller factor has lost its precision: the next value starts from the base.
_TINY = 1e-12


class _Course(FamilySchedule):
    """A course in closed form: ``floor + (base - floor) * scale(step)``.

    A step multiplies the current value, less the floor, by the quotient of two scales.
    """

    @abstractmethod
    def _scale(self, step: int) -> float:
        """Return the factor at ``step``."""

    @override
    def _value_at(self, step: int, current: float, base: float) -> float:
        ratio = getattr(self, "eta_min_ratio", None)
        floor = base * ratio if ratio is not None else getattr(self, "eta_min", None) or 0.0
        scale, before = self._scale(step), self._scale(step - 1) if step else 1.0
        if abs(before) < _TINY:
            return float(floor + (base - floor) * scale)
        return float(floor + (current - floor) * (scale / before))


@dataclass(eq=False)
class Constant(_Course):
    """Multiply by ``factor`` until the last step of the window, or for good if it has only one."""

    fills_window = True
    fractions = ("factor",)

    factor: float = 1 / 3

    @override
    def _scale(self, step: int) -> float:
        return self.factor if step < max(self._length - 1, 1) else 1.0


@dataclass(eq=False)
class Linear(_Course):
    """Go from ``start_factor`` to ``end_factor`` times the value by the window's last step.

    In a window of one step the value stays at ``start_factor``.
    """

    fills_window = True
    fractions = ("start_factor", "end_factor")

    start_factor: float = 1 / 3
    end_factor: float = 1.0

    @override
    def _scale(self, step: int) -> float:
        last = self._length - 1
        done = min(step / last, 1.0) if last else 0.0
        return self.start_factor + (self.end_factor - self.start_factor) * done


@dataclass(eq=False)
class Exponential(FamilySchedule):
    """Multiply by ``gamma`` in every step."""

    gamma: float

    @override
    def _value_at(self, step: int, current: float, base: float) -> float:
        return current * self.gamma if step else current


@dataclass(eq=False)
class Step(FamilySchedule):
    """Multiply by ``gamma`` every ``step_size`` epochs or iterations."""

    in_epochs = counts = ("step_size",)

    step_size: int
    gamma: float = 0.1

    @override
    def _value_at(self, step: int, current: float, base: float) -> float:
        return current * self.gamma if step and step % self.step_size == 0 else current


@dataclass(eq=False)
class MultiStep(FamilySchedule):
    """Multiply by ``gamma`` at each of ``milestones``.

    They count from the start of the window; one given twice counts twice.
    """

    in_epochs = ("milestones",)

    milestones: Sequence[int]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        given = list(self.milestones)
        if not all(isinstance(one, int) for one in given) or given != sorted(given):
            raise ConfigError(f"milestones={given!r} was given; ascending integers are needed.")

    @override
    def _value_at(self, step: int, current: float, base: float) -> float:
        times = list(self.milestones).count(step) if step else 0
        return float(current * self.gamma**times) if times else current


@dataclass(eq=False)
class CosineAnnealing(_Course):
    """Go down to the floor along half a cosine, and up again after ``T_max`` steps.

    Args:
        T_max: Steps of the half cosine. Defaults to the length of the window.
        eta_min: The floor. Defaults to 0.
        eta_min_ratio: The floor as a fraction of each group's own value; instead of ``eta_min``.
    """

    in_epochs = counts = ("T_max",)

    T_max: int | None = None
    eta_min: float | None = None
    eta_min_ratio: float | None = None

    @property
    def fills_window(self) -> bool:  # type: ignore[override]
        return self.T_max is None

    @override
    def _scale(self, step: int) -> float:
        # Equal to (1 + cos(pi t / T)) / 2, and exact where that cancels, near the end.
        return math.cos(math.pi * step / (2 * (self.T_max or self._length))) ** 2


@dataclass(eq=False)
class Poly(_Course):
    """Go down to ``eta_min`` as ``(1 - t / T) ** power`` by the window's last step."""

    fills_window = True

    eta_min: float = 0.0
    power: float = 1.0

    @override
    def _scale(self, step: int) -> float:
        last = self._length - 1
        return float((max(1 - step / last, 0.0) if last else 1.0) ** self.power)


@dataclass(eq=False)
class CosineRestart(_Course):
    """Go down along half a cosine, again and again, from the base times each period's weight.

    The first period starts from the current value. A restart sets the base times its weight,
    whatever other schedules have multiplied the value by. After the last period the value stays.

    Args:
        periods: Steps of each half cosine.
        restart_weights: One for each period. Defaults to 1 for all.
        eta_min: As of :class:`CosineAnnealing`.
        eta_min_ratio: As there.
    """

    in_epochs = ("periods",)

    periods: Sequence[int]
    restart_weights: Sequence[float] = (1.0,)
    eta_min: float | None = None
    eta_min_ratio: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        periods, weights = self.periods, self.restart_weights
        if len(self._weights) != len(periods) or min(periods, default=0) < 1:
            raise ConfigError(
                f"{len(periods)} periods and {len(weights)} restart_weights were given, "
                f"{periods!r} and {weights!r}; give positive periods, and one weight for each."
            )

    @property
    def _weights(self) -> list[float]:
        weights = list(self.restart_weights)
        return weights * len(self.periods) if len(weights) == 1 else weights

    @property
    def _starts(self) -> list[int]:
        return [0, *accumulate(self.periods)]

    @override
    def _scale(self, step: int) -> float:
        index = bisect_right(self._starts, step) - 1
        start, end = self._starts[index], self._starts[index + 1]
        return math.cos(math.pi * (step - start) / (2 * (end - start))) ** 2

    @override
    def _value_at(self, step: int, current: float, base: float) -> float:
        if step >= self._starts[-1]:
            return current
        if step in self._starts:
            return (base if step else current) * self._weights[self._starts.index(step)]
        return super()._value_at(step, current, base)


@dataclass(eq=False)
class OneCycle(FamilySchedule):
    """Go up to ``eta_max`` and down again, far below the start: the one-cycle policy.

    The start is ``eta_max / div_factor``, the end ``eta_max / div_factor / final_div_factor``; the
    optimizer's own value has no effect.

    Args:
        eta_max: The top.
        total_steps: Steps of the cycle. Defaults to the length of the window.
        pct_start: Fraction of the cycle that goes up. Defaults to 0.3.
        anneal_strategy: ``"cos"`` (the default) or ``"linear"``.
        div_factor: See above. Defaults to 25.
        final_div_factor: See above. Defaults to 10,000.
        three_phase: Go down to the start as long as up, and then to the end.
    """

    in_epochs = counts = ("total_steps",)
    fractions = ("pct_start",)

    eta_max: float
    total_steps: int | None = None
    pct_start: float = 0.3
    anneal_strategy: Literal["cos", "linear"] = "cos"
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    three_phase: bool = False

    @property
    def fills_window(self) -> bool:  # type: ignore[override]
        return self.total_steps is None

    @override
    def _value_at(self, step: int, current: float, base: float) -> float:
        total, low = self.total_steps or self._length, self.eta_max / self.div_factor
        top = float(self.pct_start * total) - 1
        # Pairs of the step at which a phase ends and the value there.
        turns = [(0.0, low), (top, self.eta_max), *([(2 * top, low)] if self.three_phase else [])]
        turns.append((float(total - 1), low / self.final_div_factor))
        last = len(turns) - 1
        index = next((i for i in range(1, last) if step <= turns[i][0]), last)
        (begin, start), (end, goal) = turns[index - 1], turns[index]
        if step > end:
            return goal  # the cycle is over
        done = (step - begin) / (end - begin) if end > begin else 1.0
        if self.anneal_strategy == "cos":
            done = (1 - math.cos(math.pi * done)) / 2
        return start + (goal - start) * done


@dataclass(eq=False)
class ReduceOnPlateau(FamilySchedule):
    """Multiply by ``factor`` once a metric has not improved for more than ``patience`` validations.

    Args:
        monitor: Name of the metric, as the validation reports it.
        rule: ``"less"`` or ``"greater"`` is better.
        factor: Less than 1.
        patience: Validations to wait.
        threshold: Least change that counts.
        threshold_rule: ``"rel"``: a fraction of the best; ``"abs"``: a difference.
        cooldown: Validations after a change in which nothing is counted.
        min_value: Floor, one number or one for each parameter group.
        eps: Smaller changes are not made.
    """

    fractions = ("factor",)
    need_val_args = True

    monitor: str = "loss"
    rule: Literal["less", "greater"] = "less"
    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    threshold_rule: Literal["rel", "abs"] = "rel"
    cooldown: int = 0
    min_value: float | Sequence[float] = 0.0
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        self._state: dict[str, Any] = {"best": None, "num_bad": 0, "cooldown_left": 0}

    @override
    def _value_at(self, step: int, current: float, base: float) -> float:
        return current

    @override
    def follow(self, metrics: Mapping[str, Any]) -> None:
        """Update from the metrics of a validation.

        Raises:
            ConfigError: If the metric that it follows is not among them, or no number.
        """
        is_inside = self.begin <= self.count and (self.count < self.end or not self._has_own_end)
        if not is_inside or not self._is_due(
            score_of(metrics, self.monitor, f"{self.where}.monitor")
        ):
            return
        floors: Any = self.min_value
        listed = floors if isinstance(floors, Sequence) else [floors]
        for index, group in enumerate(self.optimizer.param_groups):
            current, _ = self._read(group)
            # A group beyond the list has the last floor.
            new = max(current * self.factor, listed[min(index, len(listed) - 1)])
            if current - new > self.eps:
                self._write(group, new)

    def _is_due(self, metric: float) -> bool:
        """Update from a metric; return whether to reduce the value now."""
        state, best = self._state, self._state["best"]
        is_better = best is None and not math.isnan(metric)
        if best is not None:
            sign = 1.0 if self.rule == "less" else -1.0
            margin = self.threshold * (abs(best) if self.threshold_rule == "rel" else 1.0)
            is_better = sign * metric < sign * best - margin
        if is_better:
            state["best"], state["num_bad"] = metric, 0
        else:
            state["num_bad"] += 1
        if state["cooldown_left"] > 0:
            state["cooldown_left"] -= 1
            state["num_bad"] = 0
        if state["num_bad"] <= self.patience:
            return False
        state["cooldown_left"], state["num_bad"] = self.cooldown, 0
        return True

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "scheduler": dict(self._state)}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._state = {name: state_dict["scheduler"][name] for name in self._state}


# MMEngine's names: a family and what it schedules; "ParamScheduler" takes ``param_name``.
FAMILIES: dict[str, tuple[type[FamilySchedule], str | None]] = {
    f"{family.__name__}{ending}": (family, setting)
    for family in (
        *(Constant, CosineAnnealing, CosineRestart, Exponential, Linear),
        *(MultiStep, OneCycle, Poly, ReduceOnPlateau, Step),
    )
    for ending, setting in {"LR": "lr", "Momentum": "momentum", "ParamScheduler": None}.items()
    if (family, ending) != (OneCycle, "Momentum")
}


@cache
def named_class(name: str) -> type[FamilySchedule]:
    """Return the class of a name of ``FAMILIES``; those of one setting derive from the general one.

    Its arguments are ``optimizer``, ``param_name`` for the general one, those of the family, and by
    keyword the others of :class:`ParamScheduler`.
    """
    family, setting = FAMILIES[name]
    content = {"family": family, "__doc__": family.__doc__, "__module__": "mm_runner.optim"}
    if setting is None:
        return type(name, (family,), {**content, "__init__": FamilySchedule.__init__})
    mixin = LRSchedulerMixin if setting == "lr" else MomentumSchedulerMixin
    return type(name, (mixin, named_class(f"{family.__name__}ParamScheduler")), content)
