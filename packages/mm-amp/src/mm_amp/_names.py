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


def optimized_parameters(optimizer: torch.optim.Optimizer, model: Any) -> list[NamedParameter]:
    """Return the parameters of ``optimizer``, group by group, named as in ``model`` if there."""
    known: dict[int, NamedParameter] = {}
    for name, _, module in walk(model) if isinstance(model, nn.Module) else ():
        for own_name, parameter in module.named_parameters(recurse=False):
            full_name = f"{name}.{own_name}" if name else own_name
            one = NamedParameter(full_name, name, type(module).__name__, parameter)
            known.setdefault(id(parameter), one)
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
            names = list(dict.fromkeys(name for name, *_ in listed if name))
            more = ", ..." if len(names) > _NUM_SHOWN else ""
            raise ConfigError(
                f"{argument} holds {pattern!r}, which matches no module of "
                f"{type(model).__name__}{did_you_mean(pattern, names)} It has "
                f"{', '.join(names[:_NUM_SHOWN]) or 'no modules inside it'}{more}."
            )
        for module, name in matching:
            found.setdefault(module, name)
    return found
