"""Schedules of a run that has another length than the one it goes on from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from mm_runner.optim import ParamScheduler, named_wrappers
from mm_runner.optim.schedules import replay

from ._epoch_length import epoch_length

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mm_runner.runner import Runner

__all__ = ["KeptSettings", "fit_to_length"]


class KeptSettings:
    """Settings of the optimizers' groups, to be set again after a state was loaded once more.

    Args:
        optim_wrapper: A wrapper, or several.
        names: Of the wrappers whose settings these are.
    """

    def __init__(self, optim_wrapper: Any, names: Sequence[str]) -> None:
        self._wrapper = optim_wrapper
        wrappers = named_wrappers(optim_wrapper)
        self._kept = {
            name: [
                {key: _copy(value) for key, value in group.items() if key != "params"}
                for group in wrappers[name].optimizer.param_groups
            ]
            for name in names
        }

    def restore(self) -> None:
        """Set them again."""
        wrappers = named_wrappers(self._wrapper)
        for name, kept in self._kept.items():
            for group, settings in zip(wrappers[name].optimizer.param_groups, kept, strict=True):
                for key, value in settings.items():
                    _set(group, key, value)


def fit_to_length(
    runner: Runner,
    name: str,
    schedulers: Sequence[Any],
    states: Sequence[Mapping[str, Any]],
    num_iters: int,
) -> bool:
    """Let the values of restored schedules be those that a run of this length has there.

    Where a window is another one than in the checkpoint, as the default ``end`` of a run that is
    given more epochs, the value that was reached belongs to a course that is none any more.

    Args:
        runner: The run, whose optimizers are restored.
        name: Of the wrapper, ``""`` if there is only one.
        schedulers: All of its schedules, which are restored.
        states: Of each, from the checkpoint.
        num_iters: Iterations that are done.

    Returns:
        Whether values were set anew.
    """
    if not all(isinstance(one, ParamScheduler) for one in schedulers):
        return False  # of the user's own
    changed = [
        (one, state)
        for one, state in zip(schedulers, states, strict=True)
        # One that follows a metric has no course.
        if not one.need_val_args and one.has_other_window(state)
    ]
    if not changed:
        return False
    why = _describe(runner, *changed[0])
    groups = named_wrappers(runner.optim_wrapper)[name].optimizer.param_groups
    settings = dict.fromkeys(one.setting for one in schedulers)
    before = {setting: _values(groups, setting) for setting in settings}
    replay(schedulers, num_iters, epoch_length(runner.train_dataloader, runner.world_size))
    said = [_told(setting, old, _values(groups, setting)) for setting, old in before.items()]
    runner.logger.info(
        f"{why}: schedules{f' of {name}' if name else ''} go on as if that had been so from "
        f"the start ({', '.join(said)})."
    )
    return True


def _describe(runner: Runner, scheduler: ParamScheduler, state: Mapping[str, Any]) -> str:
    unit = "epochs" if scheduler.by_epoch else "iterations"
    length = runner.max_epochs if scheduler.by_epoch else runner.max_iters
    if scheduler.begin == state["begin"] and scheduler.end == length:
        return f"The run is {length:,} {unit} long now, and was {state['end']:,}"
    return (
        f"{scheduler.where} acts from {scheduler.begin:,} to {scheduler.end:,} {unit} now, and did "
        f"from {state['begin']:,} to {state['end']:,}"
    )


def _values(groups: Sequence[Mapping[str, Any]], setting: str) -> list[float]:
    return [float(group[setting] if setting in group else group["betas"][0]) for group in groups]


def _told(setting: str, before: Sequence[float], after: Sequence[float]) -> str:
    """Describe the first group that has another value, or the first one."""
    pairs = list(zip(before, after, strict=True))
    old, new = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return f"{setting} {old:.4g} -> {new:.4g}" if old != new else f"{setting} stays {old:.4g}"


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _set(group: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(value, Tensor) and isinstance(group.get(key), Tensor):
        group[key].copy_(value)  # groups, and compiled code, may hold this very one
    else:
        group[key] = value
