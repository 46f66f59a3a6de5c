"""Structure checks of a checkpoint before a run resumes from it."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mm_runner._untrusted import is_file_name, is_finite
from mm_runner.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_resumable"]

# What a value must be: a pair of words and a test; ``[spec]`` for a list; a dict for one with these
# keys, of which "key?" may be missing; or a function that raises _Misfit.
_Spec = Any
# No run counts further, and whatever computes with it stays an exact number.
_MOST = 2**53


class _Misfit(Exception):  # noqa: N818 - it never leaves this module
    """A value cannot be used; the text says where, and what is needed."""


def check_resumable(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Check the entries that a resumed run reads, each of them if it is there.

    Entries of hooks, datasets and schedulers of the user's own are left to these.

    Raises:
        CheckpointError: Naming the first entry that cannot be used.
    """
    try:
        _check(_CHECKPOINT, checkpoint, "")
        for key in checkpoint:
            if key.partition("#")[0] == "checkpoint_hook":
                _check(_CHECKPOINT_HOOK, checkpoint[key], key)
        if "rng" in checkpoint:  # a run of ours wrote it
            for key in ("meta", "state_dict", "data"):
                _demand(key in checkpoint, key, "it is missing", "what the run saved")
            _demand(checkpoint["data"], "data", "got nothing", "the place of each process")
    except _Misfit as misfit:
        raise CheckpointError(f"{path} cannot be resumed from: {misfit}") from None


def _check(spec: _Spec, value: Any, where: str) -> None:
    if isinstance(spec, tuple):
        needed, test = spec
        _demand(test(value), where, f"got {_shown(value)}", needed)
    elif isinstance(spec, list):
        _demand(isinstance(value, (list, tuple)), where, f"got {_shown(value)}", "a list")
        for index, item in enumerate(value):
            _check(spec[0], item, f"{where}[{index}]")
    elif isinstance(spec, dict):
        _mapping(_ANY)(value, where)
        for key, one in spec.items():
            name = key.removesuffix("?")
            if name in value:
                _check(one, value[name], _join(where, name))
            else:
                found = "it is missing"
                _demand(key.endswith("?"), _join(where, name), found, "what the run saved")
    else:
        spec(value, where)


def _demand(is_met: object, where: str, found: str, needed: str) -> None:
    if not is_met:
        raise _Misfit(f"{where}: {found}; {needed} is needed.")


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of the shape {tuple(value.shape)}"
    return reprlib.repr(value)


def _join(where: str, key: Any) -> str:
    shown = key if isinstance(key, str) and len(key) < 80 else _shown(key)
    return f"{where}.{shown}" if where else shown


def _optional(spec: _Spec) -> _Spec:
    return lambda value, where: None if value is None else _check(spec, value, where)


def _mapping(spec: _Spec, keys: type = str) -> _Spec:
    def check_mapping(value: Any, where: str) -> None:
        _demand(isinstance(value, dict), where, f"got {_shown(value)}", "a dict")
        for key, item in value.items():
            needed = f"a key of the type {keys.__name__}"
            _demand(type(key) is keys, where, f"got the key {_shown(key)}", needed)
            _check(spec, item, _join(where, key))

    return check_mapping


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


_ANY = ("anything", lambda _: True)
_COUNT = ("an integer >= 0", _is_count)
_NUMBER = ("a number", _is_number)
_FLAG = ("True or False", lambda value: isinstance(value, bool))
_TENSOR = ("a tensor", lambda value: isinstance(value, Tensor))
_FILE = ("the name of a file without a directory", is_file_name)
_OPAQUE_DICT = _mapping(_ANY)

_META = {
    "epoch?": _COUNT,
    "iter?": _COUNT,
    "world_size?": _COUNT,
    "format_version?": _COUNT,
    "seed?": _optional(("a seed", lambda value: type(value) is int and 0 <= value < 2**63)),
    "batch?": {"per_process?": _optional(_COUNT), "accumulated?": _mapping(_COUNT)},
    "versions?": _OPAQUE_DICT,
}
_POSITION = {
    "epoch": _COUNT,
    "batch": _COUNT,
    "samples": _optional(_COUNT),
    "num_batches": _optional(_COUNT),
    "state?": _optional({"generators": _mapping(_TENSOR), "loader": _ANY}),
}
_PLACE = {
    "epoch": _COUNT,
    "iter": _COUNT,
    "position?": _POSITION,
    "is_validated?": _FLAG,
    "pass": {"rng?": _OPAQUE_DICT, "generators?": _mapping(_TENSOR)},
}


def _check_place(value: Any, where: str) -> None:
    _check(_PLACE, value, where)
    if "position" in value:
        position, where = value["position"], f"{where}.position"
        is_within = position["num_batches"] is None or position["batch"] <= position["num_batches"]
        _demand(is_within, f"{where}.batch", f"got {position['batch']}", "a batch of the pass")
        is_behind = position["epoch"] <= value["iter"]
        needed = "no more passes than steps"
        _demand(is_behind, f"{where}.epoch", f"got {position['epoch']}", needed)


_SCHEDULE = {
    "count?": _COUNT,
    "scheduler?": _optional(
        {"best?": _optional(_NUMBER), "num_bad?": _COUNT, "cooldown_left?": _COUNT}
    ),
}


def _check_schedules(value: Any, where: str) -> None:
    _check(_mapping([_SCHEDULE]) if isinstance(value, dict) else [_SCHEDULE], value, where)


def _check_average(value: Any, where: str) -> None:
    _check(_OPAQUE_DICT, value, where)
    is_steps = {key: key.partition(".")[0] == "steps" for key in value}
    _demand(any(is_steps.values()), f"{where}.steps", "it is missing", "a count of steps")
    for key, item in value.items():
        _check(
            ("a count of steps", is_finite) if is_steps[key] else _TENSOR, item, f"{where}.{key}"
        )


_CHECKPOINT_HOOK = {
    "kept?": [_FILE],
    "best?": _mapping({"score": _NUMBER, "epoch": _COUNT, "iter": _COUNT, "file": _FILE}),
}

_CHECKPOINT = {
    "meta?": _META,
    "state_dict?": _OPAQUE_DICT,
    "rng?": [_OPAQUE_DICT],
    "data?": [_check_place],
    "message_hub?": [_mapping([_NUMBER])],
    "hooks?": {
        "EarlyStoppingHook?": {"best_score": _NUMBER, "wait_count": _COUNT},
        "GradientSpikeHook?": _mapping({"means": _optional(_TENSOR), "seen": _COUNT}),
    },
    "param_schedulers?": _check_schedules,
    "optimizer?": _OPAQUE_DICT,
    "ema_state_dict?": _check_average,
    "rank_buffers?": [_mapping(_TENSOR)],
}
