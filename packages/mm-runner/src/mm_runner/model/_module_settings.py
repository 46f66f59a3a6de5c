"""Apply the configuration's settings of single modules: checkpointing, folded normalizations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from mm_runner.errors import ConfigError, did_you_mean

from ._checkpointing import checkpointed_forward
from ._conv_bn import Pair, find_pairs, fold_pair, folding_forward
from ._wrapped_forward import names_with_forward, replace_forward, restore_forwards

__all__ = [
    "MODULE_SETTINGS",
    "apply_module_settings",
    "check_module_settings",
    "describe_module_settings",
    "plan_module_settings",
    "repeated_blocks",
]

_CHECKPOINTING, _CONV_BN = "activation_checkpointing", "efficient_conv_bn_eval"
# The keys, and their labels in the log and in plans.
MODULE_SETTINGS = {_CHECKPOINTING: "checkpointed", _CONV_BN: "conv-bn-eval"}
_AUTO = "auto"
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
# A repeated block with more than this share of its parameters in repeated blocks is a stage, and
# the blocks in it are taken. The two attentions of a decoder layer are about half of it.
_STAGE = 2 / 3
_MAX_NAMES = 3


def check_module_settings(cfg: Mapping[str, Any]) -> None:
    """Check the two keys as far as that needs no model.

    Raises:
        ConfigError: If one of them holds something else than names of modules.
    """
    for key in MODULE_SETTINGS:
        _names(cfg, key)


def apply_module_settings(model: nn.Module, cfg: Mapping[str, Any]) -> None:
    """Apply ``activation_checkpointing`` and ``efficient_conv_bn_eval``, and undo an earlier run's.

    Args:
        model: Not wrapped and not compiled; changed in place.
        cfg: The full configuration; ``{}`` only undoes.

    Raises:
        ConfigError: If a name matches no module, or a module cannot be changed so; the model is
            unchanged then.
    """
    checkpointed, pairs = _find(model, cfg)
    restore_forwards(model)
    for pair in pairs:
        fold_pair(pair)
    for module in checkpointed.values():
        replace_forward(module, checkpointed_forward)


def plan_module_settings(model: nn.Module, cfg: Mapping[str, Any]) -> dict[str, str]:
    """Return which modules :func:`apply_module_settings` would change, by key, as text.

    Raises:
        ConfigError: As that does.
    """
    checkpointed, pairs = _find(model, cfg)
    return _describe(list(checkpointed), [pair.name for pair in pairs])


def describe_module_settings(model: nn.Module) -> dict[str, str]:
    """Return which modules of ``model``, which is not wrapped, are changed, by key, as text."""
    functions = (checkpointed_forward, folding_forward)
    return _describe(*(names_with_forward(model, function) for function in functions))


def _find(model: nn.Module, cfg: Mapping[str, Any]) -> tuple[dict[str, nn.Module], list[Pair]]:
    checkpointed = _find_modules(model, _names(cfg, _CHECKPOINTING), _CHECKPOINTING)
    traced = _find_modules(model, _names(cfg, _CONV_BN), _CONV_BN)
    pairs = [pair for name, module in traced.items() for pair in find_pairs(module, name)]
    return checkpointed, list({id(pair.convolution): pair for pair in pairs}.values())


def _describe(checkpointed: list[str], folded: list[str]) -> dict[str, str]:
    named = {_CHECKPOINTING: checkpointed, _CONV_BN: folded}
    return {
        key: ", ".join(names)
        if len(names) <= _MAX_NAMES
        else f"{len(names)} modules: {', '.join(names[:2])}, ..., {names[-1]}"
        for key, names in named.items()
        if names
    }


def _names(cfg: Mapping[str, Any], key: str) -> list[str]:
    """Return the names or patterns of modules that a key holds."""
    value, can_be_auto = cfg.get(key), key == _CHECKPOINTING
    names = [value] if isinstance(value, str) and value else value or []
    is_list = isinstance(names, (list, tuple))
    if not is_list or not all(isinstance(name, str) and name for name in names):
        auto = ", or 'auto' for the blocks that repeat" if can_be_auto else ""
        raise ConfigError(
            f"{key}: the name of a module, such as 'backbone', or a list of names{auto} is "
            f"needed, got {value!r}."
        )
    if _AUTO in names and (len(names) > 1 or not can_be_auto):
        reason = "stands alone" if can_be_auto else "is not known here; name modules"
        raise ConfigError(f"{key}: got {value!r}; 'auto' {reason}.")
    return list(names)


def _find_modules(model: nn.Module, names: list[str], where: str) -> dict[str, nn.Module]:
    """Return the named modules that have a forward, in the model's order; the outermost of nested.

    ``names`` are dotted names, patterns of them (``"backbone.layers.*"``), or only ``"auto"``.
    """
    kind = type(model).__name__
    if names == [_AUTO]:
        blocks = repeated_blocks(model)
        if not blocks:
            raise ConfigError(
                f"{where}: 'auto' was given, and {kind} has no blocks that repeat in an "
                "nn.ModuleList, nn.Sequential or nn.ModuleDict; name the modules."
            )
        return blocks
    # A shared module has several names.
    modules = {name: one for name, one in model.named_modules(remove_duplicate=False) if name}
    chosen: set[int] = set()
    for pattern in names:
        found = [name for name in modules if name == pattern or fnmatchcase(name, pattern)]
        if not found:
            children = ", ".join(name for name, _ in model.named_children()) or "nothing"
            hint = did_you_mean(pattern, modules) or f" It consists of {children}."
            raise ConfigError(f"{where}: {pattern!r} names no module of {kind}.{hint}")
        usable = [id(modules[name]) for name in found if _has_forward(modules[name])]
        if not usable:
            raise ConfigError(
                f"{where}: {pattern!r} names a {type(modules[found[0]]).__name__}, which has no "
                f"forward that can be replaced. Name other modules, such as {found[0] + '.*'!r}."
            )
        chosen.update(usable)
    return dict(_outermost("", model, chosen, set()))


def _has_forward(module: nn.Module) -> bool:
    # A subclass of nn.ModuleDict may have one, as some backbones do.
    is_missing = getattr(module.forward, "__func__", None) is nn.Module.forward
    return not is_missing and not isinstance(module, torch.jit.ScriptModule)


def repeated_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks that repeat in containers, by name; stages are divided into blocks."""
    blocks = {
        id(child): child
        for module in model.modules()
        if isinstance(module, _CONTAINERS)
        for child in module.children()
        if child is not model and _is_block(child)
    }
    # Blocks of one class may differ in size; the class of a plain container says nothing.
    kinds = {
        key: repr(one) if isinstance(one, _CONTAINERS) else type(one) for key, one in blocks.items()
    }
    number = Counter(kinds.values())
    repeated = {key for key, kind in kinds.items() if number[kind] > 1}
    found: dict[str, nn.Module] = {}
    for name, block in _outermost("", model, repeated, set()):
        inner = repeated_blocks(block)
        if sum(map(_size, inner.values())) > _STAGE * _size(block):
            found.update((f"{name}.{rest}", one) for rest, one in inner.items())
        else:
            found[name] = block
    return found


def _is_block(module: nn.Module) -> bool:
    layers = [part for part in module.modules() if [*part.parameters(recurse=False)]]
    return _has_forward(module) and len(layers) > 1


def _size(module: nn.Module) -> int:
    return sum(0 if is_lazy(one) else one.numel() for one in module.parameters())


def _outermost(
    name: str, module: nn.Module, chosen: set[int], seen: set[int]
) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    if id(module) in chosen:
        yield name, module
        return
    for child_name, child in module.named_children():
        yield from _outermost(f"{name}.{child_name}".lstrip("."), child, chosen, seen)
