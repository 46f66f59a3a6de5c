"""Apply the configuration's settings of single modules: checkpointing, folded normalizations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from mm_runner.errors import ConfigError, did_you_mean

from ._checkpointing import checkpoint_module, checkpointed_names
from ._conv_bn import Pair, find_pairs, fold_pairs, folded_names
from ._wrapped_forward import restore_forwards

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
    fold_pairs(pairs)
    for name, module in checkpointed.items():
        checkpoint_module(module, name)


def plan_module_settings(model: nn.Module, cfg: Mapping[str, Any]) -> dict[str, str]:
    """Return which modules :func:`apply_module_settings` would change, by key, as text.

    Raises:
        ConfigError: As that does.
    """
    checkpointed, pairs = _find(model, cfg)
    return _describe(checkpointed, [pair.name for pair in pairs])


def describe_module_settings(model: nn.Module) -> dict[str, str]:
    """Return which modules of ``model``, which is not wrapped, are changed, by key, as text."""
    return _describe(checkpointed_names(model), folded_names(model))


def _find(model: nn.Module, cfg: Mapping[str, Any]) -> tuple[dict[str, nn.Module], list[Pair]]:
    checkpointed = _find_modules(model, _names(cfg, _CHECKPOINTING), _CHECKPOINTING)
    traced = _find_modules(model, _names(cfg, _CONV_BN), _CONV_BN)
    pairs = [pair for name, module in traced.items() for pair in find_pairs(module, name)]
    return checkpointed, list({id(pair.convolution): pair for pair in pairs}.values())


def _describe(checkpointed: Iterable[str], folded: Iterable[str]) -> dict[str, str]:
    named = {_CHECKPOINTING: list(checkpointed), _CONV_BN: list(folded)}
    return {key: _shorten(names) for key, names in named.items() if names}


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
        reason = (
            "'auto' stands alone." if can_be_auto else "'auto' is not known here; name modules."
        )
        raise ConfigError(f"{key}: got {value!r}; {reason}")
    return list(names)


def _find_modules(model: nn.Module, names: Sequence[str], where: str) -> dict[str, nn.Module]:
    """Return the named modules that have a forward, in the model's order; the outermost of nested.

    ``names`` are dotted names, patterns of them (``"backbone.layers.*"``), or only ``"auto"``.
    """
    if list(names) == [_AUTO]:
        blocks = repeated_blocks(model)
        if not blocks:
            raise ConfigError(
                f"{where}: 'auto' was given, and {type(model).__name__} has no blocks that repeat "
                "in an nn.ModuleList, nn.Sequential or nn.ModuleDict; name the modules."
            )
        return blocks
    chosen = {id(module) for name in names for module in _matches(model, name, where)}
    return dict(_outermost("", model, chosen, set()))


def _shorten(names: Sequence[str]) -> str:
    """Join names, without the middle of a long list."""
    if len(names) <= _MAX_NAMES:
        return ", ".join(names)
    return f"{len(names)} modules: {', '.join(names[:2])}, ..., {names[-1]}"


def _matches(model: nn.Module, pattern: str, where: str) -> list[nn.Module]:
    # A shared module has several names.
    named = model.named_modules(remove_duplicate=False)
    modules = {name: module for name, module in named if name}
    found = [name for name in modules if name == pattern or fnmatchcase(name, pattern)]
    if not found:
        children = ", ".join(name for name, _ in model.named_children()) or "nothing"
        hint = did_you_mean(pattern, modules) or f" It consists of {children}."
        raise ConfigError(f"{where}: {pattern!r} names no module of {type(model).__name__}.{hint}")
    usable = [modules[name] for name in found if _has_forward(modules[name])]
    if not usable:
        kind = type(modules[found[0]]).__name__
        raise ConfigError(
            f"{where}: {pattern!r} names a {kind}, which has no forward that can be replaced. Name "
            f"other modules, such as {found[0] + '.*'!r}."
        )
    return usable


def _has_forward(module: nn.Module) -> bool:
    # A subclass of nn.ModuleDict may have one, as some backbones do.
    is_missing = getattr(module.forward, "__func__", None) is nn.Module.forward
    return not is_missing and not isinstance(module, torch.jit.ScriptModule)


def repeated_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks that repeat in containers, by name; stages are divided into blocks."""
    found: dict[str, nn.Module] = {}
    for name, block in _outermost("", model, _ids_of_blocks(model), set()):
        inner = repeated_blocks(block)
        if sum(map(_size, inner.values())) > _STAGE * _size(block):
            found.update((f"{name}.{rest}", one) for rest, one in inner.items())
        else:
            found[name] = block
    return found


def _ids_of_blocks(model: nn.Module) -> set[int]:
    candidates = {
        id(child): child
        for module in model.modules()
        if isinstance(module, _CONTAINERS)
        for child in module.children()
        if child is not model and _is_block(child)
    }
    # Blocks of one class may differ in size; the class of a plain container says nothing.
    kinds = {
        number: repr(child) if isinstance(child, _CONTAINERS) else type(child)
        for number, child in candidates.items()
    }
    repeated = Counter(kinds.values())
    return {number for number, kind in kinds.items() if repeated[kind] > 1}


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
