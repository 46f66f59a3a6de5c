"""Modules of a model by their names, by patterns of names, or because they repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from mm_runner.errors import ConfigError, did_you_mean

from ._variants import own_class

__all__ = ["AUTO", "check_module_names", "find_modules", "in_words"]

AUTO = "auto"
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
# Blocks that consist of repeated blocks to this part, by parameters, are stages: what is in them
# counts. Of a layer with two attentions and a feed-forward network, the attentions are about half.
_STAGE = 2 / 3
_MOST_NAMES = 3


def check_module_names(value: Any, where: str, *, auto: bool = False) -> list[str]:
    """Return names or patterns of modules as a list; of what is ``None``, false or empty, none.

    Args:
        value: A name, or a list of them.
        where: The key that it was given for.
        auto: Whether ``"auto"`` means something.

    Raises:
        ConfigError: If it is something else.
    """
    names = [value] if isinstance(value, str) and value else value or []
    is_list = isinstance(names, (list, tuple))
    if not is_list or not all(isinstance(name, str) and name for name in names):
        also = ", or 'auto' for the blocks that repeat" if auto else ""
        raise ConfigError(
            f"{where}: the name of a module, such as 'backbone', or a list of names{also} is "
            f"needed, got {value!r}."
        )
    if AUTO in names and (len(names) > 1 or not auto):
        raise ConfigError(
            f"{where}: {value!r} was given; "
            + ("'auto' stands alone." if auto else "there is no 'auto' here, name the modules.")
        )
    return list(names)


def find_modules(model: nn.Module, names: Sequence[str], where: str) -> dict[str, nn.Module]:
    """Find modules that have a forward; of those in one another, the outermost.

    Args:
        model: Not wrapped.
        names: Dotted names, patterns of them (``"backbone.layers.*"``), or only ``"auto"``: the
            blocks that repeat.
        where: The key that names them, for messages.

    Returns:
        The modules by name, in the model's order.

    Raises:
        ConfigError: If a name fits no module, or what it fits has no forward of its own; if nothing
            repeats.
    """
    if list(names) == [AUTO]:
        blocks = _repeated_blocks(model)
        if not blocks:
            raise ConfigError(
                f"{where}: 'auto' was given, and {type(model).__name__} has no blocks that repeat "
                "in an nn.ModuleList, nn.Sequential or nn.ModuleDict; name the modules."
            )
        return blocks
    chosen = {id(module) for name in names for module in _matches(model, name, where)}
    return dict(_outermost("", model, chosen, set()))


def in_words(names: Sequence[str]) -> str:
    """Return a list of names, without the middle of a long one.

    Example:
        >>> in_words(["blocks.0", "blocks.1", "blocks.2", "blocks.3"])
        '4 modules: blocks.0, blocks.1, ..., blocks.3'
    """
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{len(names)} modules: {', '.join(names[:2])}, ..., {names[-1]}"


def _matches(model: nn.Module, pattern: str, where: str) -> list[nn.Module]:
    # One that has several names can be called by each of them.
    named = model.named_modules(remove_duplicate=False)
    modules = {name: module for name, module in named if name}
    found = [name for name in modules if name == pattern or fnmatchcase(name, pattern)]
    if not found:
        children = ", ".join(name for name, _ in model.named_children()) or "nothing"
        hint = did_you_mean(pattern, modules) or f" It consists of {children}."
        raise ConfigError(f"{where}: {pattern!r} names no module of {type(model).__name__}.{hint}")
    usable = [modules[name] for name in found if has_forward(modules[name])]
    if not usable:
        kind = type(modules[found[0]]).__name__
        remedy = f"Name what it holds: {found[0] + '.*'!r}."
        if isinstance(modules[found[0]], torch.jit.ScriptModule):
            remedy = "Name modules outside of it, or give it as it was before torch.jit."
        raise ConfigError(
            f"{where}: {pattern!r} names a {kind}, which has no forward that can be changed. "
            f"{remedy}"
        )
    return usable


def has_forward(module: nn.Module) -> bool:
    """Return whether ``module`` is called itself, by code that can be changed."""
    # Subclasses of nn.ModuleDict may have one, as a backbone that returns what its stages give has.
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
        if _is_block(child)
    }
    # Of one class, blocks may have other sizes. A plain container says nothing by its class.
    kinds = {
        number: _structure(child) if isinstance(child, _CONTAINERS) else own_class(child)
        for number, child in candidates.items()
        if child is not model
    }
    repeated = Counter(kinds.values())
    return {number for number, kind in kinds.items() if repeated[kind] > 1}


def _is_block(module: nn.Module) -> bool:
    layers = [
        part for part in module.modules() if next(part.parameters(recurse=False), None) is not None
    ]
    return has_forward(module) and len(layers) > 1


def _structure(module: nn.Module) -> tuple[Any, ...]:
    # By the name of the class: torch's parametrizations make a class for each module.
    parts = ((name, own_class(part).__qualname__) for name, part in module.named_modules())
    shapes = (None if is_lazy(one) else one.shape for one in module.parameters())
    return (*parts, *shapes)


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
