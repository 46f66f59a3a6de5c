"""Find modules by glob patterns on their names, whatever wraps the model."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from ._checks import did_you_mean
from ._errors import ConfigError, ConfigTypeError

# What torch's wrappers call the module inside; see also _is_wrapping.
_WRAPPED_NAMES = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_NUM_NAMES_SHOWN = 12


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
    """Return the modules of ``model`` that any of ``patterns`` matches, with their names.

    A ``*`` also matches dots. Names are those of the model itself: what DDP, ``torch.compile`` and
    the like put in front is left out, though a pattern may spell it.

    Raises:
        ConfigError: If a pattern matches nothing.
    """
    names = list(_walk(model))
    found: dict[nn.Module, str] = {}
    for pattern in patterns:
        matching = [
            (module, name)
            for name, full_name, module in names
            if name and (fnmatchcase(name, pattern) or fnmatchcase(full_name, pattern))
        ]
        if not matching:
            raise _nothing_matches(argument, model, pattern, names)
        for module, name in matching:
            found.setdefault(module, name)
    return found


def _walk(
    module: nn.Module, name: str = "", full_name: str = ""
) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield ``(name, name with wrappers, module)``; a shared module once per name."""
    yield name, full_name, module
    for child_name, child in module._modules.items():  # noqa: SLF001 - named_children drops sharing
        if child is not None:
            own_name = "" if _is_wrapping(module, child_name) else child_name
            yield from _walk(child, _join(name, own_name), _join(full_name, child_name))


def _is_wrapping(module: nn.Module, child_name: str) -> bool:
    is_only_child = len(module._modules) == 1  # noqa: SLF001
    return child_name in _WRAPPED_NAMES or (child_name == "module" and is_only_child)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _nothing_matches(
    argument: str, model: nn.Module, pattern: str, names: list[tuple[str, str, nn.Module]]
) -> ConfigError:
    known = list(dict.fromkeys(name for name, _, _ in names if name))
    by_class = [name for name, _, module in names if name and type(module).__name__ == pattern]
    if by_class:
        hint = f"; that is a class, whose modules are {_shorten(by_class)}."
    else:
        hint = did_you_mean(pattern, known) or f"; there is {_shorten(known) or 'none'}."
    return ConfigError(
        f"{argument} holds {pattern!r}, which matches no module of {type(model).__name__}{hint}"
    )


def _shorten(names: list[str]) -> str:
    shown = ", ".join(names[:_NUM_NAMES_SHOWN])
    num_more = len(names) - _NUM_NAMES_SHOWN
    return f"{shown} and {num_more} more" if num_more > 0 else shown
