"""Resolve the name of a schedule to its family and setting."""

from __future__ import annotations

import inspect
from typing import Any

from . import _cycles, _decays
from ._plateau import ReduceOnPlateau

__all__ = ["family_of", "schedule_names"]

_FAMILIES: dict[str, type[Any]] = {
    "Constant": _decays.Constant,
    "CosineAnnealing": _decays.CosineAnnealing,
    "CosineRestart": _cycles.CosineRestart,
    "Exponential": _decays.Exponential,
    "Linear": _decays.Linear,
    "MultiStep": _decays.MultiStep,
    "OneCycle": _cycles.OneCycle,
    "Poly": _decays.Poly,
    "ReduceOnPlateau": ReduceOnPlateau,
    "Step": _decays.Step,
}
# Endings of names, and their settings; the last takes param_name.
_SETTINGS = {"LR": "lr", "Momentum": "momentum", "ParamScheduler": None}
_ABSENT = ("OneCycleMomentum",)


def schedule_names() -> list[str]:
    """List the names of every family for every setting."""
    names = [f"{family}{ending}" for family in _FAMILIES for ending in _SETTINGS]
    return [name for name in names if name not in _ABSENT]


def family_of(name: str, arguments: dict[str, Any]) -> tuple[type[Any], str | None] | None:
    """Return the family and the setting of a schedule's name.

    Args:
        name: Such as ``"CosineAnnealingLR"``.
        arguments: What is to be given to it.

    Returns:
        ``None`` if it is no name of a family, or if an argument is one that only torch's class of
        the same name takes (``total_iters`` of ``LinearLR``, ``max_lr`` of ``OneCycleLR``). The
        setting is ``None`` where the config says which.
    """
    for ending, setting in _SETTINGS.items():
        family = _FAMILIES.get(name.removesuffix(ending)) if name.endswith(ending) else None
        if family is not None and name not in _ABSENT:
            return None if _is_for_torch(name, family, arguments) else (family, setting)
    return None


def _is_for_torch(name: str, family: type[Any], arguments: dict[str, Any]) -> bool:
    from torch.optim import lr_scheduler  # noqa: PLC0415 - asked once per schedule

    torchs = getattr(lr_scheduler, name, None)
    if torchs is None:
        return False
    ours, theirs = (inspect.signature(one).parameters for one in (family, torchs))
    return any(argument in theirs and argument not in ours for argument in arguments)
