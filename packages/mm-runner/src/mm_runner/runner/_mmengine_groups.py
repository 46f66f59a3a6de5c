"""The state of an optimizer as MMEngine saved it, in the parameter groups that this run has built.

Under a ``paramwise_cfg`` MMEngine makes a group for each parameter; here parameters with equal
settings share one. Which parameter a saved one is follows from its name where the groups have names
(of constructors with layer-wise rates), else from its place in the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mm_runner.checkpoint import clean_name
from mm_runner.errors import CheckpointError, ConfigError
from mm_runner.model import unwrap_model
from mm_runner.optim import named_wrappers

from ._sharded_state import as_sharded

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from mm_runner.runner import Runner

__all__ = ["LIKE_PARAMETER", "optimizer_in_own_groups"]

# What MMEngine, MMPretrain and MMDetection note in a group, and no optimizer reads.
_NOTES = {"lr_mult", "decay_mult", "lr_scale", "group_name", "layer_id", "param_name"}
_NAMES = {"params", "param_names"}
# What torch's and most other optimizers keep in the shape of the parameter.
LIKE_PARAMETER = (
    "acc_delta",
    "exp_avg",
    "exp_avg_sq",
    "exp_inf",
    "grad_avg",
    "max_exp_avg_sq",
    "momentum_buffer",
    "square_avg",
    "sum",
)
_ABSENT = object()
_MOST_NAMES = 6


def optimizer_in_own_groups(runner: Runner, checkpoint: Mapping[str, Any]) -> Any:
    """Return the checkpoint's optimizer state, that of MMEngine in the groups of this run.

    Args:
        runner: Has the model and its optimizers.
        checkpoint: With ``"optimizer"``, which is left as it is.

    Raises:
        CheckpointError: If MMEngine's groups are of other parameters, or of a form in which it
            cannot be told which parameter is which.
        ConfigError: If one of this run's groups has parameters that differ in their saved settings.
    """
    saved = checkpoint["optimizer"]
    meta = checkpoint.get("meta", {})
    if not any("mmengine_version" in one for one in (meta, meta.get("versions", {}))):
        return saved
    model = unwrap_model(runner.model)
    is_sharded = as_sharded(runner.model) is not None
    wrappers = named_wrappers(runner.optim_wrapper)
    states = {"": saved} if "" in wrappers else saved
    regrouped = {
        name: _regrouped(state, wrappers[name].optimizer, model, name, is_sharded=is_sharded)
        if name in wrappers
        else state
        for name, state in states.items()
    }
    return regrouped[""] if "" in wrappers else regrouped


def _regrouped(
    state: Any, optimizer: Optimizer, model: nn.Module, name: str, *, is_sharded: bool
) -> Any:
    trained = [one for group in optimizer.param_groups for one in group["params"]]
    named = _names_around(trained, model, name)
    if named is None or not (
        isinstance(state, Mapping) and {"state", "param_groups"} <= state.keys()
    ):
        return state  # whoever loads it tells what is wrong; or it is of what the model has not
    saved = _Saved(state, optimizer, named, f" of {name!r}" if name else "")
    for one in [] if is_sharded else trained:
        saved.check_shapes(one)
    indices = [saved.indices[id(one)] for one in trained]
    numbers = count()
    return {
        **state,
        "state": {
            number: state["state"][index]
            for number, index in enumerate(indices)
            if index in state["state"]
        },
        "param_groups": [
            {**saved.settings(group), "params": [next(numbers) for _ in group["params"]]}
            for group in optimizer.param_groups
        ],
    }


def _names_around(trained: list[Tensor], model: nn.Module, name: str) -> dict[int, str] | None:
    """Return the names, by identity and in order, of the parameters that an optimizer was given.

    These are all of the part that it is named after, if what it trains lies there, or else of the
    model; ``None`` if neither has them.
    """
    part = dict(model.named_modules()).get(name, model)
    for module in (part, model):
        named = {id(one): clean_name(path) for path, one in module.named_parameters()}
        if all(id(one) in named for one in trained):
            return named
    return None


@dataclass(frozen=True)
class _Saved:
    """What MMEngine saved of one optimizer.

    Attributes:
        state: Of the optimizer.
        optimizer: This run's.
        named: The model's parameters by identity, in its order.
        of: Which optimizer, for messages.
    """

    state: Mapping[str, Any]
    optimizer: Optimizer
    named: dict[int, str]
    of: str

    @cached_property
    def indices(self) -> dict[int, Any]:
        """The number of each of this run's parameters in ``state``, by identity."""
        saved = [index for group in self._groups for index in group["params"]]
        grouped = [id(one) for group in self.optimizer.param_groups for one in group["params"]]
        ordered = [key for key in self.named if key in set(grouped)]
        names = _names(self._groups)
        if names is not None:
            by_name = dict(zip(names, saved, strict=True))
            missing = [self.named[key] for key in ordered if self.named[key] not in by_name]
            if missing:
                raise self._misfit(f"the saved groups do not name {_listed(missing)}")
            return {key: by_name[self.named[key]] for key in ordered}
        if _sizes(self._groups) == _sizes(self.optimizer.param_groups):
            return dict(zip(grouped, saved, strict=True))
        if len(self._groups) > 1 and max(_sizes(self._groups)) > 1:
            raise self._misfit("which parameter is which is not said in groups of several")
        if len(self._groups) == 1 and len(self.optimizer.param_groups) > 1:
            raise self._misfit("it was saved without a paramwise_cfg that sets parameters apart")
        for keys in (ordered, list(self.named)):  # with the frozen ones
            if len(keys) == len(saved):
                return dict(zip(keys, saved, strict=True))
        raise self._misfit("the parameters are not the same")

    def check_shapes(self, parameter: Tensor) -> None:
        """Raise unless what was saved for ``parameter`` has its shape."""
        index = self.indices[id(parameter)]
        state = self.state["state"].get(index, {})
        for key in LIKE_PARAMETER:
            value = state.get(key)
            if isinstance(value, Tensor) and value.shape != parameter.shape:
                raise self._misfit(
                    f"the {key} of number {index} has the shape {tuple(value.shape)}, and "
                    f"{self.named[id(parameter)]}, which should be that parameter, "
                    f"{tuple(parameter.shape)}"
                )

    def settings(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the saved settings of one of this run's groups."""
        groups = {index: group for group in self._groups for index in group["params"]}
        saved = [groups[self.indices[id(one)]] for one in own["params"]]
        settings = {}
        for key in dict.fromkeys(key for group in saved for key in group):
            if key in _NAMES or (key not in own and (key in _NOTES or _is_mirror(key, own))):
                continue
            values = [group.get(key, _ABSENT) for group in saved]
            if all(_is_same(value, values[0]) for value in values):
                settings[key] = values[0]
            elif key in own or key.startswith("initial_"):
                raise self._differing(key, own, values)
        return settings

    @property
    def _groups(self) -> list[Any]:
        groups: list[Any] = self.state["param_groups"]
        return groups

    def _misfit(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"The checkpoint's optimizer{self.of} does not fit: MMEngine saved "
            f"{_counted(self._groups)}, this run's {type(self.optimizer).__name__} has "
            f"{_counted(self.optimizer.param_groups)}, and {reason}. Under a paramwise_cfg "
            "MMEngine makes a group for each parameter, and these are put together as this run "
            "needs them, if the same parameters are trained with the same paramwise_cfg. Give it "
            "the model and the optim_wrapper of the run that saved it; or take the weights alone, "
            "by load_from without resume."
        )

    def _differing(self, key: str, own: Mapping[str, Any], values: list[Any]) -> ConfigError:
        names = [self.named[id(one)] for one in own["params"]]
        others = [i for i, value in enumerate(values) if not _is_same(value, values[0])]
        first = [name for i, name in enumerate(names) if i not in others]
        told = ["nothing" if value is _ABSENT else repr(value) for value in values]
        return ConfigError(
            f"optim_wrapper.paramwise_cfg: these parameters share a group in this run's "
            f"optimizer{self.of}, and MMEngine's checkpoint has a {key} of {told[0]} for "
            f"{_listed(first)}, of {told[others[0]]} for {_listed([names[i] for i in others])}. "
            "Give the paramwise_cfg of the run that saved it; or take the weights alone, by "
            "load_from without resume."
        )


def _names(groups: list[Any]) -> list[str] | None:
    """Return the names that all saved groups have of their parameters, or else ``None``."""
    names: list[str] = []
    for group in groups:
        own = group.get("param_names", [group["param_name"]] if "param_name" in group else None)
        if own is None or len(own) != len(group["params"]):
            return None
        names.extend(clean_name(str(name)) for name in own)
    return names


def _sizes(groups: list[Any]) -> list[int]:
    return [len(group["params"]) for group in groups]


def _counted(groups: list[Any]) -> str:
    total = sum(_sizes(groups))
    return (
        f"{len(groups)} parameter group{'s' if len(groups) != 1 else ''} of {total} "
        f"parameter{'s' if total != 1 else ''}"
    )


def _is_mirror(key: str, own: Mapping[str, Any]) -> bool:
    """Tell whether a setting repeats the first beta, for MMEngine's schedules of the momentum.

    Ours change the momentum of a group that has one, and this is not what its optimizer reads.
    """
    return key == "momentum" and "betas" in own


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
