"""Names of modules and parameters in the model as the user wrote it, without wrappers."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mm_amp._checks import did_you_mean
from mm_amp._errors import ConfigError, ConfigTypeError

# Names that torch's wrappers give the module inside. Many use "module", as users may: see below.
_WRAPPED_NAMES = frozenset({"_orig_mod", "_checkpoint_wrapped_module"})
_NUM_SHOWN = 12


def walk(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield ``(plain name, name with wrappers, module)``, a shared module once per name.

    The model itself has the plain name ``""``, and a wrapper that of the module it wraps.
    """
    plain_names, modules = {"": ""}, {"": model}
    for full_name, module in model.named_modules(remove_duplicate=False):
        parent, _, own_name = full_name.rpartition(".")
        if full_name:
            is_alone = own_name == "module" and len(list(modules[parent].children())) == 1
            name = plain_names[parent]
            if not (is_alone or own_name in _WRAPPED_NAMES):
                name = f"{name}.{own_name}" if name else own_name
            plain_names[full_name], modules[full_name] = name, module
        yield plain_names[full_name], full_name, module


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
    """Return the parameters of a module in its order, each once; none of anything else."""
    found: dict[int, NamedParameter] = {}
    for name, _, module in walk(model) if isinstance(model, nn.Module) else ():
        for own_name, parameter in module.named_parameters(recurse=False):
            full_name = f"{name}.{own_name}" if name else own_name
            one = NamedParameter(full_name, name, type(module).__name__, parameter)
            found.setdefault(id(parameter), one)
    return list(found.values())


def optimized_parameters(optimizer: torch.optim.Optimizer, model: Any) -> list[NamedParameter]:
    """Return the parameters of ``optimizer``, group by group, named as in ``model`` if there."""
    known = {id(one.parameter): one for one in named_parameters(model)}
    return [
        known.get(id(parameter))
        or NamedParameter(f"param_groups[{index}][{position}]", "", None, parameter)
        for index, group in enumerate(optimizer.param_groups)
        for position, parameter in enumerate(group["params"])
    ]


def parse_patterns(argument: str, patterns: str | Iterable[str]) -> tuple[str, ...]:
    """Return one pattern or several as a tuple; raise if one is empty or no string."""
    is_list = isinstance(patterns, Iterable) and not isinstance(patterns, (str, bytes))
    listed: tuple[Any, ...] = tuple(patterns) if is_list else (patterns,)
    for pattern in listed:
        if not isinstance(pattern, str) or not pattern:
            raise ConfigTypeError(
                f"{argument} holds {pattern!r}; it takes glob patterns on module names, "
                "such as ['head', '*.norm']."
            )
    return listed


def find_modules(argument: str, model: nn.Module, patterns: Iterable[str]) -> dict[nn.Module, str]:
    """Return the modules of ``model`` that match any of ``patterns``, with their names.

    A ``*`` also matches dots. Patterns may use the plain names or those with wrappers; one that
    matches nothing raises ``ConfigError``.
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
            raise ConfigError(
                f"{argument} holds {pattern!r}, which matches no module of "
                f"{type(model).__name__}{_hint(pattern, names)} It has {_list(names)}."
            )
        for module, name in matching:
            found.setdefault(module, name)
    return found


def _hint(pattern: str, types: dict[str, str]) -> str:
    """Return names near a pattern: modules of that class, names that contain it, typos of it."""
    near = [
        name
        for name, own_type in types.items()
        if own_type == pattern or pattern in name or pattern.endswith(f".{name}")
    ]
    return f"; did you mean {near[0]!r}?" if near else did_you_mean(pattern, types)


def _list(names: Iterable[str]) -> str:
    """Return the names, of a large model those of its direct children."""
    listed = list(names)
    if len(listed) > _NUM_SHOWN:
        listed = [name for name in listed if "." not in name]
    more = ", ..." if len(listed) > _NUM_SHOWN else ""
    return ", ".join(listed[:_NUM_SHOWN]) + more or "no modules inside it"
