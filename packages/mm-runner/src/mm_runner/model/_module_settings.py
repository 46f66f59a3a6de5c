"""Apply the configuration's settings of single modules: checkpointing, folded normalizations."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from mm_runner.errors import ConfigError, did_you_mean

from ._checkpointing import checkpointed_forward
from ._conv_bn import Pair, find_pairs, fold_pair
from ._wrapped_forward import replace_forward, restore_forwards

__all__ = [
    "MODULE_SETTINGS",
    "apply_module_settings",
    "check_module_settings",
    "find_module_settings",
]

_CHECKPOINTING, _CONV_BN = "activation_checkpointing", "efficient_conv_bn_eval"
# The keys, and their labels in the log and in plans.
MODULE_SETTINGS = {_CHECKPOINTING: "checkpointed", _CONV_BN: "conv-bn-eval"}


def check_module_settings(cfg: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names and patterns of modules by key; of keys that have some.

    Raises:
        ConfigError: If one of the two keys holds something else.
    """
    found = {}
    for key in MODULE_SETTINGS:
        value = cfg.get(key)
        names = [value] if isinstance(value, str) and value else value or []
        is_list = isinstance(names, (list, tuple))
        if not is_list or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(
                f"{key}: the name of a module, such as 'backbone', or a list of names is needed, "
                f"got {value!r}."
            )
        if names:
            found[key] = list(names)
    return found


def find_module_settings(
    model: nn.Module, cfg: Mapping[str, Any]
) -> tuple[list[nn.Module], list[Pair]]:
    """Return the modules to checkpoint, and the pairs to fold.

    Raises:
        ConfigError: As :func:`apply_module_settings` does.
    """
    found = {
        key: _find_modules(model, names, key) for key, names in check_module_settings(cfg).items()
    }
    traced = found.get(_CONV_BN, {})
    pairs = [pair for name, module in traced.items() for pair in find_pairs(module, name)]
    checkpointed = list(found.get(_CHECKPOINTING, {}).values())
    return checkpointed, list({id(one.convolution): one for one in pairs}.values())


def apply_module_settings(model: nn.Module, cfg: Mapping[str, Any]) -> None:
    """Apply ``activation_checkpointing`` and ``efficient_conv_bn_eval``, and undo an earlier run's.

    Args:
        model: Not wrapped and not compiled; changed in place.
        cfg: The full configuration; ``{}`` only undoes.

    Raises:
        ConfigError: If a name matches no module, or a module cannot be changed so; the model is
            unchanged then.
    """
    checkpointed, pairs = find_module_settings(model, cfg)
    restore_forwards(model)
    for pair in pairs:
        fold_pair(pair)
    for module in checkpointed:
        replace_forward(module, checkpointed_forward)


def _find_modules(model: nn.Module, patterns: list[str], where: str) -> dict[str, nn.Module]:
    """Return the named modules that have a forward; the outermost of nested."""
    kind = type(model).__name__
    # A shared module has several names.
    modules = {name: one for name, one in model.named_modules(remove_duplicate=False) if name}
    chosen: dict[str, nn.Module] = {}
    for pattern in patterns:
        found = [name for name in modules if name == pattern or fnmatchcase(name, pattern)]
        if not found:
            children = ", ".join(name for name, _ in model.named_children()) or "nothing"
            hint = did_you_mean(pattern, modules) or f" It consists of {children}."
            raise ConfigError(f"{where}: {pattern!r} names no module of {kind}.{hint}")
        usable = {name: modules[name] for name in found if _has_forward(modules[name])}
        if not usable:
            raise ConfigError(
                f"{where}: {pattern!r} names a {type(modules[found[0]]).__name__}, which has no "
                f"forward that can be replaced. Name other modules, such as {found[0] + '.*'!r}."
            )
        chosen.update(usable)
    outermost = {
        id(module): name
        for name, module in reversed(chosen.items())
        if not any(name.startswith(f"{other}.") for other in chosen)
    }
    return {name: modules[name] for name in outermost.values()}


def _has_forward(module: nn.Module) -> bool:
    # A subclass of nn.ModuleDict may have one, as some backbones do.
    is_missing = getattr(module.forward, "__func__", None) is nn.Module.forward
    return not is_missing and not isinstance(module, torch.jit.ScriptModule)
