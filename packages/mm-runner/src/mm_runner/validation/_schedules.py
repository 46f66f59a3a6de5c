"""Schedules, tried on an optimizer like the one of the run."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer

from mm_runner.errors import ComponentNotFoundError, ConfigError
from mm_runner.optim import ParamScheduler
from mm_runner.optim.schedules._names import schedule_names

from ._components import check_finite, need_mapping
from ._optim import Optimizers, try_to_build

__all__ = ["check_schedules"]

# Longer than any run: the real length is known once there is data.
_ENDLESS = 10**9


def check_schedules(cfg: Any, where: str, num_epochs: Any, optimizers: Optimizers) -> None:
    """Check the schedules: a config, a list of configs, or a dict of these by name of a wrapper.

    Args:
        cfg: See above.
        where: Path of it.
        num_epochs: Epochs of the run; anything but a positive integer if they are not counted.
        optimizers: As :func:`check_optim_wrapper` returned them.

    Raises:
        ConfigError: If one does not fit.
        ComponentNotFoundError: If a ``type`` names nothing.
    """
    for one, place, name in _listed(cfg, where, ""):
        if isinstance(one, ParamScheduler):
            continue
        need_mapping(one, place, "a dict with the key 'type'")
        if one.get("type") is None:
            raise ConfigError(_without_type(one, place, where, optimizers))
        check_finite(one, place)
        for key in ("by_epoch", "convert_to_iter_based"):
            if not isinstance(one.get(key, True), bool):
                raise ConfigError(f"{place}.{key}: True or False is needed, got {one[key]!r}.")
        # Of several optimizers that share a schedule, the first stands for all.
        template = optimizers.get(name, next(iter(optimizers.values()), None))
        optimizer = _optimizer_to_try(one, template)
        try:
            try_to_build(functools.partial(_build, optimizer, one, place, num_epochs))
        except ComponentNotFoundError as error:
            text = str(error)
            raise ComponentNotFoundError(
                text if text.startswith(place) else f"{place}.type: {text}"
            ) from error


def _without_type(cfg: Mapping[str, Any], place: str, where: str, optimizers: Optimizers) -> str:
    names = [name for name in cfg if name in optimizers]
    if names and place.endswith("]") and _is_by_name(cfg):
        form = ", ".join(f"{name}=[...]" for name in names)
        return (
            f"{place}: schedules by the name of an optimizer were given within a list; the names "
            f"go outside of the lists: {where}=dict({form})."
        )
    families = [name for name in schedule_names() if name.endswith("LR")]
    return (
        f"{place}: the key 'type' is missing; given: {', '.join(map(repr, cfg)) or 'nothing'}. It "
        f"names a schedule: {', '.join(families)}, for another setting with Momentum or "
        "ParamScheduler at the end; or a class of torch.optim.lr_scheduler."
    )


def _build(
    optimizer: Optimizer, cfg: Mapping[str, Any], where: str, num_epochs: Any
) -> ParamScheduler:
    counts = isinstance(num_epochs, int) and num_epochs > 0
    return ParamScheduler(
        optimizer,
        cfg,
        num_epochs=num_epochs if counts else _ENDLESS,
        num_iters=_ENDLESS,
        where=where,
    )


def _optimizer_to_try(cfg: Mapping[str, Any], template: Optimizer | None) -> Optimizer:
    """Return an optimizer like ``template`` that has as many groups as ``cfg`` has values for.

    How many there are in the run, the model says, which is not there yet.
    """
    if template is None:  # what another's has is not known: whatever is to be scheduled
        template = SGD([nn.Parameter()], lr=0.1, momentum=0.9)
        if isinstance(cfg.get("param_name"), str):
            template.param_groups[0].setdefault(cfg["param_name"], 0.1)
    lengths = [len(value) for value in cfg.values() if isinstance(value, (list, tuple))]
    settings = {key: value for key, value in template.param_groups[0].items() if key != "params"}
    tried = copy.copy(template)
    tried.param_groups = [  # deeply: a learning rate that is a tensor is changed in place
        {**copy.deepcopy(settings), "params": [nn.Parameter()]} for _ in range(max([1, *lengths]))
    ]
    return tried


def _listed(cfg: Any, where: str, name: str) -> Iterator[tuple[Any, str, str]]:
    """Yield each schedule with its path and the name of its wrapper."""
    if isinstance(cfg, Mapping) and "type" not in cfg and _is_by_name(cfg):
        for key, own in cfg.items():
            yield from _listed(own, f"{where}.{key}", str(key))
    elif isinstance(cfg, (list, tuple)):
        for index, one in enumerate(cfg):
            yield one, f"{where}[{index}]", name
    elif cfg is not None:
        yield cfg, where, name


def _is_by_name(cfg: Mapping[str, Any]) -> bool:
    return any(isinstance(value, (Mapping, list, tuple)) for value in cfg.values())
