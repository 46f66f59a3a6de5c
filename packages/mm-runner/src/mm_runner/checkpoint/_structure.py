"""What the entries of a checkpoint must be for a run to resume from it."""

from __future__ import annotations

import random
import reprlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mm_runner._untrusted import is_file_name, is_finite
from mm_runner.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_resumable"]

# Raises _Misfit unless a value, which stands at a path of keys, can be used.
_Check = Callable[[Any, str], None]
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
        _CHECKPOINT(checkpoint, "")
        if "rng" in checkpoint:  # a run of ours wrote it
            for key in ("meta", "state_dict", "data"):
                _demand(key in checkpoint, key, "it is missing", "what the run saved")
    except _Misfit as misfit:
        raise CheckpointError(f"{path} cannot be resumed from: {misfit}") from None


def _demand(is_met: object, where: str, found: str, needed: str) -> None:
    if not is_met:
        raise _Misfit(f"{where}: {found}; {needed} is needed.")


def _of(needed: str, test: Callable[[Any], object]) -> _Check:
    def check(value: Any, where: str) -> None:
        _demand(test(value), where, f"got {_shown(value)}", needed)

    return check


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of the shape {tuple(value.shape)}"
    return reprlib.repr(value)


def _optional(check: _Check) -> _Check:
    return lambda value, where: None if value is None else check(value, where)


def _either(test: Callable[[Any], object], one: _Check, other: _Check) -> _Check:
    return lambda value, where: (one if test(value) else other)(value, where)


def _items(check: _Check) -> _Check:
    def check_items(value: Any, where: str) -> None:
        _demand(isinstance(value, (list, tuple)), where, f"got {_shown(value)}", "a list")
        for index, item in enumerate(value):
            check(item, f"{where}[{index}]")

    return check_items


def _mapping(check: _Check, keys: type = str) -> _Check:
    def check_mapping(value: Any, where: str) -> None:
        _demand(isinstance(value, dict), where, f"got {_shown(value)}", "a dict")
        for key, item in value.items():
            needed = f"a key of the type {keys.__name__}"
            _demand(type(key) is keys, where, f"got the key {_shown(key)}", needed)
            check(item, _join(where, key))

    return check_mapping


def _entries(required: Mapping[str, _Check], others: Mapping[str, _Check] | None = None) -> _Check:
    """Return a check of a dict with ``required`` keys; unknown ones pass, but are text too."""
    known = {**required, **(others or {})}

    def check_entries(value: Any, where: str) -> None:
        _mapping(_any)(value, where)
        for key in required:
            _demand(key in value, _join(where, key), "it is missing", "what the run saved")
        for key, check in known.items():
            if key in value:
                check(value[key], _join(where, key))

    return check_entries


def _join(where: str, key: Any) -> str:
    shown = key if isinstance(key, str) and len(key) < 80 else _shown(key)
    return f"{where}.{shown}" if where else shown


def _any(value: Any, where: str) -> None:
    """Accept everything."""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _is_generator(value: Any) -> bool:
    try:
        torch.Generator().set_state(value)
    except (TypeError, RuntimeError):
        return False
    return True


def _is_bytes(value: Any) -> bool:
    """Tell whether a value may be the state of a device's generator: only the device knows more."""
    return isinstance(value, Tensor) and value.dtype == torch.uint8 and value.ndim == 1


def _is_python_random(value: Any) -> bool:
    try:
        version, internal, gauss = value
        random.Random().setstate((version, tuple(internal), gauss))  # noqa: S311
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False
    return gauss is None or is_finite(gauss)


def _is_numpy_random(value: Any) -> bool:
    try:
        name, keys, position, has_gauss, cached = value
    except (TypeError, ValueError):
        return False
    return (
        name == "MT19937"
        and isinstance(keys, (list, tuple))
        and len(keys) == 624
        and all(_is_count(key) and key < 2**32 for key in keys)
        and _is_count(position)
        and position <= len(keys)
        and _is_count(has_gauss)
        and is_finite(cached)
    )


def _is_vector(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 1 and value.is_floating_point()


_COUNT = _of("an integer >= 0", _is_count)
_NUMBER = _of("a number", _is_number)
_FINITE = _of("a finite number", is_finite)
_RATE = _of("a finite number >= 0", lambda value: is_finite(value) and value >= 0)
_TEXT = _of("text", lambda value: isinstance(value, str))
_FLAG = _of("True or False", lambda value: isinstance(value, bool))
_TENSOR = _of("a tensor", lambda value: isinstance(value, Tensor))
_FILE = _of("the name of a file without a directory", is_file_name)
_GENERATOR = _of("a generator's state", _is_generator)
_OPAQUE_DICT = _mapping(_any)

_META = _entries(
    {},
    {
        "epoch": _COUNT,
        "iter": _COUNT,
        "seed": _optional(_of("a seed", lambda value: type(value) is int and 0 <= value < 2**63)),
        "world_size": _COUNT,
        "format_version": _COUNT,
        "batch": _entries({}, {"per_process": _optional(_COUNT), "accumulated": _mapping(_COUNT)}),
        "versions": _OPAQUE_DICT,
    },
)
_RNG = _entries(
    {
        "python": _of("the state of Python's generator", _is_python_random),
        "torch": _GENERATOR,
    },
    {
        "numpy": _of("the state of NumPy's generator", _is_numpy_random),
        **dict.fromkeys(("cuda", "mps", "npu", "xpu"), _of("a generator's state", _is_bytes)),
    },
)
_PASS = _entries({}, {"rng": _RNG, "generators": _mapping(_GENERATOR)})


_POSITION = _entries(
    {
        "epoch": _COUNT,
        "batch": _COUNT,
        "samples": _optional(_COUNT),
        "num_batches": _optional(_COUNT),
    },
    {
        "order": _COUNT,
        "state": _optional(_entries({"generators": _mapping(_GENERATOR), "loader": _any})),
    },
)
_PLACE = _entries(
    {"epoch": _COUNT, "iter": _COUNT},
    {"position": _POSITION, "pass": _PASS, "is_validated": _FLAG},
)


def _check_place(value: Any, where: str) -> None:
    _PLACE(value, where)
    if "position" in value:
        position, where = value["position"], f"{where}.position"
        is_within = position["num_batches"] is None or position["batch"] <= position["num_batches"]
        _demand(is_within, f"{where}.batch", f"got {position['batch']}", "a batch of the pass")
        is_behind = position["epoch"] <= value["iter"]
        needed = "no more passes than steps"
        _demand(is_behind, f"{where}.epoch", f"got {position['epoch']}", needed)


_GROUP = _entries({"params": _items(_COUNT)}, {"lr": _RATE, "initial_lr": _RATE})
_OPTIMIZER = _entries(
    {"state": _mapping(_OPAQUE_DICT, keys=int), "param_groups": _items(_GROUP)},
    {
        "loss_scaler": _entries(
            {},
            {
                "scale": _of("a finite number > 0", lambda v: is_finite(v) and v > 0),
                "growth_factor": _of("a number > 1", lambda v: is_finite(v) and v > 1),
                "backoff_factor": _of("a number from 0 to 1", lambda v: is_finite(v) and 0 < v < 1),
                "growth_interval": _COUNT,
                "_growth_tracker": _COUNT,
            },
        ),
        "skipped_steps": _entries({}, {"num_in_a_row": _COUNT}),
    },
)
_PLATEAU = _entries(
    {"best": _optional(_NUMBER), "num_bad": _COUNT, "cooldown_left": _COUNT},
    {"reduced_at": _optional(_items(_COUNT))},
)
_COURSE = _entries({}, {"seen": _items(_items(_FINITE))})
_SCHEDULE = _entries(
    {},
    {
        "count": _COUNT,
        "begin": _COUNT,
        "end": _NUMBER,
        "epoch_length": _optional(_COUNT),
        "scheduler": _optional(
            _either(
                lambda value: isinstance(value, dict) and "num_bad" in value, _PLATEAU, _COURSE
            ),
        ),
    },
)
_RECORD = _entries({"score": _NUMBER, "epoch": _COUNT, "iter": _COUNT, "file": _FILE})
_CHECKPOINT_HOOK = _entries({}, {"run": _TEXT, "kept": _items(_FILE), "best": _mapping(_RECORD)})


def _check_average(value: Any, where: str) -> None:
    _mapping(_any)(value, where)
    has_steps = any(key.partition(".")[0] == "steps" for key in value)
    _demand(has_steps, f"{where}.steps", "it is missing", "a count of steps")
    for key, item in value.items():
        is_steps = key == "steps" or key.startswith("steps.")
        check = _of("a count of steps", is_finite) if is_steps else _TENSOR
        check(item, _join(where, key))


def _check_hooks(value: Any, where: str) -> None:
    """Check the states of our hooks; a user's own hook checks its own."""
    _mapping(_any)(value, where)
    for name, check in _HOOKS.items():
        for key in (key for key in value if key.partition("#")[0] == name):
            check(value[key], _join(where, key))


_HOOKS = {
    "EarlyStoppingHook": _entries({"best_score": _NUMBER, "wait_count": _COUNT}),
    "GradientSpikeHook": _mapping(
        _entries(
            {"means": _optional(_of("a list of norms in a tensor", _is_vector)), "seen": _COUNT}
        )
    ),
}

_ENTRIES = _entries(
    {},
    {
        "meta": _META,
        "state_dict": _OPAQUE_DICT,
        "rng": _items(_RNG),
        "data": _items(_check_place),
        "message_hub": _items(_mapping(_items(_NUMBER))),
        "hooks": _check_hooks,
        "optimizer": _either(
            lambda value: isinstance(value, dict) and "param_groups" not in value and value,
            _mapping(_OPTIMIZER),
            _OPTIMIZER,
        ),
        "param_schedulers": _either(
            lambda value: isinstance(value, dict), _mapping(_items(_SCHEDULE)), _items(_SCHEDULE)
        ),
        "ema_state_dict": _check_average,
        "rank_buffers": _items(_mapping(_TENSOR)),
    },
)


def _CHECKPOINT(value: Any, where: str) -> None:  # noqa: N802
    _ENTRIES(value, where)
    for key in value:
        if key.partition("#")[0] == "checkpoint_hook":
            _CHECKPOINT_HOOK(value[key], key)
