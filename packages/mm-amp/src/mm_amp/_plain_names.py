"""Names of modules as the user wrote them, whatever wraps the model or parts of it."""

from collections.abc import Iterator

from torch import nn

# What torch's wrappers call the module inside. Many call it "module", as users may: see below.
_WRAPPED_NAMES = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def walk(model: nn.Module) -> Iterator[tuple[str, str, nn.Module]]:
    """Yield ``(plain name, name with wrappers, module)``, a shared module once per name.

    The model itself, and a module that wraps it, have the plain name ``""``; in general a wrapper
    has the name of what it wraps.
    """
    yield from _walk(model, "", "", ())


def _walk(
    module: nn.Module, name: str, full_name: str, above: tuple[nn.Module, ...]
) -> Iterator[tuple[str, str, nn.Module]]:
    yield name, full_name, module
    above = (*above, module)
    for own, child in module._modules.items():  # noqa: SLF001 - named_children drops sharing
        if child is not None and child not in above:
            yield from _walk(child, child_name(module, name, own), _join(full_name, own), above)


def child_name(parent: nn.Module, name: str, own_name: str) -> str:
    """Return the plain name of a child.

    Args:
        parent: The module that holds the child.
        name: Plain name of ``parent``.
        own_name: What ``parent`` calls the child.
    """
    is_only_child = len(parent._modules) == 1  # noqa: SLF001
    is_wrapped = own_name in _WRAPPED_NAMES or (own_name == "module" and is_only_child)
    return name if is_wrapped else _join(name, own_name)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name
