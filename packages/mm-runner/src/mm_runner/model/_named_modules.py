"""Find modules of a model by name, by pattern, or because they repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from mm_runner.errors import ConfigError, did_you_mean

__all__ = ["check_module_names", "find_modules", "shorten_names"]

_AUTO = "auto"
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
# A repeated block with more than this share of its parameters in repeated blocks is a stage, and
# the blocks in it are taken. The two attentions of a decoder layer are about half of it.
_STAGE = 2 / 3
_MAX_NAMES = 3


def check_module_names(value: Any, where: str, *, allow_auto: bool = False) -> list[str]:
    """Return names or patterns of modules as a list; an empty one for ``None`` and false values.

    Args:
        value: A name, or a list of them.
        where: The key that holds it.
        allow_auto: Whether ``"auto"`` may be given.

    Raises:
        ConfigError: If it is something else.
    """
    names = [value] if isinstance(value, str) and value else value or []
    is_list = isinstance(names, (list, tuple))
    if not is_list or not all(isinstance(name, str) and name for name in names):
        auto = ", or 'auto' for the blocks that repeat" if allow_auto else ""
        raise ConfigError(
            f"{where}: the name of a module, such as 'backbone', or a list of names{auto} is "
            f"needed, got {value!r}."
        )
    if _AUTO in names and (len(names) > 1 or not allow_auto):
        reason = "'auto' stands alone." if allow_auto else "'auto' is not known here; name modules."
        raise ConfigError(f"{where}: got {value!r}; {reason}")
    return list(names)


def find_modules(model: nn.Module, names: Sequence[str], where: str) -> dict[str, nn.Module]:
    """Find modules that have a forward; of nested ones, the outermost.

    Args:
        model: Not wrapped.
        names: Dotted names, patterns of them (``"backbone.layers.*"``), or only ``"auto"``: the
            blocks that repeat.
        where: The key that names them, for messages.

    Returns:
        The modules by name, in the model's order.

    Raises:
        ConfigError: If a name matches no module with a forward; if no block repeats.
    """
    if list(names) == [_AUTO]:
        blocks = _repeated_blocks(model)
        if not blocks:
            raise ConfigError(
                f"{where}: 'auto' was given, and {type(model).__name__} has no blocks that repeat "
                "in an nn.ModuleList, nn.Sequential or nn.ModuleDict; name the modules."
            )
        return blocks
    chosen = {id(module) for name in names for module in _matches(model, name, where)}
    return dict(_outermost("", model, chosen, set()))


def shorten_names(names: Sequence[str]) -> str:
    """Join names, without the middle of a long list.

    Example:
        >>> shorten_names(["blocks.0", "blocks.1", "blocks.2", "blocks.3"])
        '4 modules: blocks.0, blocks.1, ..., blocks.3'
    """
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


def _repeated_blocks(model: nn.Module) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {}
    for name, block in _outermost("", model, _ids_of_blocks(model), set()):
        inner = _repeated_blocks(block)
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
