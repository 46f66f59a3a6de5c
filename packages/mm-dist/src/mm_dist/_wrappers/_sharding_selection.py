"""Find modules by class, class name, or pattern on their own names."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from mm_dist._errors import ConfigError
from mm_dist._suggestion import suggest_name


def has_forward(module: nn.Module) -> bool:
    """Return whether a module can be called; a ``ModuleList`` cannot."""
    return type(module).forward is not nn.Module.forward or "forward" in module.__dict__


def find_modules(
    candidates: Mapping[str, nn.Module],
    selectors: Iterable[Any],
    argument: str,
    *,
    is_miss_allowed: bool = False,
) -> list[nn.Module]:
    """Return the modules that at least one selector matches, each once, in the model's order.

    Args:
        candidates: Modules by name.
        selectors: Classes (subclasses match), names of classes (a full path too), names of
            modules, or patterns on these as ``blocks.*`` in which ``*`` also matches dots.
        argument: Name of the argument they came from, for messages.
        is_miss_allowed: Whether one may match nothing.

    Raises:
        ConfigError: If one must match and matches nothing, or only containers without a forward.
    """
    chosen: set[str] = set()
    for selector in selectors:
        names = {name for name, module in candidates.items() if _matches(selector, name, module)}
        callable_names = {name for name in names if has_forward(candidates[name])}
        if not callable_names and not is_miss_allowed:
            raise ConfigError(_describe_miss(candidates, selector, names, argument))
        chosen |= callable_names
    return [module for name, module in candidates.items() if name in chosen]


def find_named(known: Mapping[str, Any], pattern: str, argument: str) -> list[str]:
    """Return the names that a pattern matches.

    Raises:
        ConfigError: If there are none.
    """
    names = [name for name in known if fnmatchcase(name, pattern)]
    if not names:
        raise ConfigError(
            f"{argument}: {pattern!r} matches none of the model's names, which are "
            f"{', '.join(list(known)[:10])}{' ...' if len(known) > 10 else ''}."
            f"{suggest_name(pattern, known)}"
        )
    return names


def _matches(selector: Any, name: str, module: nn.Module) -> bool:
    if isinstance(selector, type):
        return isinstance(module, selector)
    if selector in _class_names(module):
        return True
    return fnmatchcase(name, selector)


def _class_names(module: nn.Module) -> set[str]:
    classes = [kind for kind in type(module).__mro__ if kind not in (nn.Module, object)]
    names = {kind.__name__ for kind in classes}
    return names | {f"{kind.__module__}.{kind.__qualname__}" for kind in classes}


def _describe_miss(
    candidates: Mapping[str, nn.Module], selector: Any, containers: set[str], argument: str
) -> str:
    if containers:
        name = min(containers)
        return (
            f"{argument}: {selector!r} names {name!r}, a {type(candidates[name]).__name__}, which "
            f"has no forward and cannot be gathered by itself; name what it holds: '{name}.*'."
        )
    classes = sorted({type(module).__name__ for module in candidates.values()})
    wanted = selector.__name__ if isinstance(selector, type) else str(selector)
    near = suggest_name(wanted, {name.lower(): name for name in classes}.values()) or suggest_name(
        wanted, candidates
    )
    return (
        f"{argument}: {selector!r} matches no module; classes found: "
        f"{', '.join(classes) or 'none'}.{near} Give a class, the name of a class, or a pattern on "
        "module names such as 'backbone.layers.*'."
    )
