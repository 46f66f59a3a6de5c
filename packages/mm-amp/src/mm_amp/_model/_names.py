"""Names of modules and parameters in the model as the user wrote it, without wrappers."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mm_amp._errors import ConfigError, ConfigTypeError
from mm_amp._torch_private import children_of

# Names that torch's wrappers give the module inside. Many use "module", as users may: see below.
_WRAPPED_NAMES = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_NUM_SHOWN = 12


def walk(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield ``(plain name, name with wrappers, module)``, a shared module once per name.

    The model itself has the plain name ``""``, and a wrapper that of the module it wraps.
    """
    yield from _walk(model, "", "", ())


def _walk(
    module: nn.Module, name: str, full_name: str, above: tuple[nn.Module, ...]
) -> Iterator[tuple[str, str, nn.Module]]:
    yield name, full_name, module
    above = (*above, module)
    for own, child in children_of(module):
        if child not in above:
            yield from _walk(child, child_name(module, name, own), _join(full_name, own), above)


def child_name(parent: nn.Module, name: str, own_name: str) -> str:
    """Return the plain name of a child.

    Args:
        parent: The module that holds the child.
        name: Plain name of ``parent``.
        own_name: Name of the child in ``parent``.
    """
    is_wrapped = own_name in _WRAPPED_NAMES or (
        own_name == "module" and len(children_of(parent)) == 1
    )
    return name if is_wrapped else _join(name, own_name)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


class NamedParameter(NamedTuple):
    """A parameter and its place in the model.

    Attributes:
        name: In the model, or its place in the optimizer, such as ``param_groups[0][3]``.
        module: Name of the module that owns it; empty if that is the model itself or unknown.
        module_type: Class of that module, or ``None`` if the model does not hold the parameter.
        parameter: The parameter.
    """

    name: str
    module: str
    module_type: str | None
    parameter: Tensor


def named_parameters(model: Any) -> list[NamedParameter]:
    """Return the parameters of a module in its order, each once; of anything else none."""
    found: dict[int, NamedParameter] = {}
    for name, _, module in walk(model) if isinstance(model, nn.Module) else ():
        for own_name, parameter in module.named_parameters(recurse=False):
            one = NamedParameter(_join(name, own_name), name, type(module).__name__, parameter)
            found.setdefault(id(parameter), one)
    return list(found.values())


def optimized_parameters(optimizer: torch.optim.Optimizer, model: Any) -> list[NamedParameter]:
    """Return the parameters of ``optimizer``, group by group, named as in ``model``.

    Args:
        optimizer: The model need not hold its parameters.
        model: A module or ``None``.
    """
    known = {id(one.parameter): one for one in named_parameters(model)}
    return [
        known.get(id(parameter))
        or NamedParameter(f"param_groups[{index}][{position}]", "", None, parameter)
        for index, group in enumerate(optimizer.param_groups)
        for position, parameter in enumerate(group["params"])
    ]


def parse_patterns(argument: str, patterns: str | Iterable[str]) -> tuple[str, ...]:
    """Return the patterns as a tuple; one may come without a list around it.

    Raises:
        ConfigTypeError: If one is no string.
        ConfigError: If one is empty.
    """
    is_list = isinstance(patterns, Iterable) and not isinstance(patterns, (str, bytes))
    listed: tuple[Any, ...] = tuple(patterns) if is_list else (patterns,)
    for pattern in listed:
        if not isinstance(pattern, str):
            raise ConfigTypeError(
                f"{argument} holds {pattern!r}; it takes glob patterns on module names, "
                "such as ['head', '*.norm']."
            )
        if not pattern:
            raise ConfigError(f"{argument} holds an empty pattern; name a module, such as 'head'.")
    return listed


def find_modules(argument: str, model: nn.Module, patterns: Iterable[str]) -> dict[nn.Module, str]:
    """Return the modules of ``model`` that match any of ``patterns``, with their names.

    A ``*`` also matches dots. Patterns may use the plain names or those with wrappers.

    Raises:
        ConfigError: If a pattern matches nothing.
    """
    listed = list(walk(model))
    found: dict[nn.Module, str] = {}
    for pattern in patterns:
        matching = [
            (module, name)
            for name, full_name, module in listed
            if name and (fnmatchcase(name, pattern) or fnmatchcase(full_name, pattern))
        ]
        if not matching:
            names = {name: type(module).__name__ for name, _, module in listed if name}
            own_type = [type(module).__name__ for name, _, module in listed if not name][-1]
            raise ConfigError(
                f"{argument} holds {pattern!r}, which matches no module of {own_type}"
                f"{_hint(pattern, names)} {own_type} has {_list(names)}."
            )
        for module, name in matching:
            found.setdefault(module, name)
    return found


def _hint(pattern: str, types: dict[str, str]) -> str:
    """Return names near a pattern: modules of that class, names that contain it, typos of it."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for messages

    near = [name for name, own_type in types.items() if own_type == pattern]
    near = near or [name for name in types if fnmatchcase(name, f"*{pattern}*")]
    near = near or [name for name in types if pattern.endswith(f".{name}")]
    near = near or get_close_matches(pattern, types, n=3)
    return f"; did you mean {' or '.join(map(repr, near[:3]))}?" if near else "."


def _list(names: Iterable[str]) -> str:
    """Return the names, of a large model those of its direct children."""
    listed = list(names)
    if len(listed) > _NUM_SHOWN:
        listed = [name for name in listed if "." not in name]
    more = ", ..." if len(listed) > _NUM_SHOWN else ""
    return ", ".join(listed[:_NUM_SHOWN]) + more or "no modules inside it; use OptimWrapper"
