"""The keys of a configuration and what each takes, read from the code that checks them."""

# ruff: noqa: SLF001 - no package needs these tables of another
import inspect
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import mm_amp
import mm_dist
import mm_npu
from mm_compile import _config as compiling
from mm_compile._torch import compile_keywords
from mm_runner import Runner
from mm_runner.hooks import CheckpointHook, LoggerHook
from mm_runner.loops import EpochBasedTrainLoop, IterBasedTrainLoop, ValLoop
from mm_runner.reporting import LogProcessor
from mm_runner.runner._checks import CFG_KEYS
from mm_runner.validation import _run as checks

# What the Runner itself passes.
_GIVEN = ("cfg", "runner", "dataloader", "evaluator", "module")
_ONLY_IN_PYTHON = ("Any", "Module", "Path", "_empty", "dtype", "timedelta")
_VERSION = {f"# torch {torch.__version__.partition('+')[0]}": ""}


def keys_of(section: str) -> str:
    """Return a line for each key of ``section``: its type, and its default or "required"."""
    return "\n".join(f"{name}{kind}" for name, kind in SECTIONS[section].items())


def _arguments(*components: Any) -> dict[str, str]:
    """Return the arguments of ``components``; where two share a name, the first component wins."""
    found: dict[str, str] = {}
    for one in components:
        for name, argument in inspect.signature(one).parameters.items():
            if name not in _GIVEN and argument.kind is not argument.VAR_KEYWORD:
                is_required = argument.default is argument.empty
                default = ", required" if is_required else f" = {argument.default!r}"
                found.setdefault(name, f"{_kind(argument.annotation)}{default}")
    return found


def _names(*components: Any) -> dict[str, str]:
    """Return the arguments of classes of torch, whose types and defaults differ by version."""
    return {**_VERSION, **dict.fromkeys(_arguments(*components), "")}


def _types(kinds: Mapping[str, Any]) -> dict[str, str]:
    return {name: _kind(kind) for name, kind in kinds.items()}


def _kind(annotation: Any) -> str:
    """Return the types that a value in a file may have."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    text = re.sub(r"\b\w+\.(?=\w)", "", text)
    text = re.sub(r"Mapping\[str, Any\]|Optimizer", "dict", text)
    text = re.sub(r"Sequence|Iterable", "list", text).replace("tuple[int, int]", "list[int]")
    types = [one for one in text.split(" | ") if one not in _ONLY_IN_PYTHON]
    return f": {' | '.join(types)}" if types else ""


def _compile_keys(names: Iterable[str]) -> dict[str, str]:
    return {
        name: f": {compiling._TYPES[name][1]}" if name in compiling._TYPES else "" for name in names
    }


SECTIONS = {
    "Runner": {**_arguments(Runner), **dict.fromkeys(CFG_KEYS, ""), **_types(checks._SETTINGS)},
    "dataloader": {"num_batch_per_epoch": ": int", **_names(DataLoader)},
    "train_cfg": _arguments(EpochBasedTrainLoop, IterBasedTrainLoop),
    "val_cfg": _arguments(ValLoop),
    "optim_wrapper": _arguments(mm_amp.AmpOptimWrapper),
    "checkpoint": _arguments(CheckpointHook),
    "logger": _arguments(LoggerHook),
    "log_processor": _arguments(LogProcessor),
    "randomness": _types(checks._RANDOMNESS),
    "env_cfg": _types(checks._ENV),
    "mp_cfg": _types(checks._PROCESSES),
    "dist_cfg": _arguments(partial(mm_dist.check_dist_arguments, "auto")),
    "npu_cfg": _arguments(mm_npu.read_npu_switches),
    "model_wrapper_cfg": {
        **_arguments(mm_dist.MMDistributedDataParallel),
        **_names(DistributedDataParallel),
    },
    "compile": {
        **_compile_keys(compiling._OWN_KEYS),
        **_VERSION,
        **_compile_keys(compile_keywords()),
    },
}
