"""Modules that do something besides what their class says, and stay the same objects.

A variant of a class is a subclass that a module is given in place of it. Its parameters, buffers,
hooks and the keys of its state dict are untouched; modules of one class stay of one class, which is
how repeated blocks are recognised. Copies and pickles of it are variants too.
"""

from __future__ import annotations

import copyreg
import types
from typing import Any

from torch import nn
from typing_extensions import override

__all__ = ["Variant", "make_variant", "own_class", "unmake_variants"]


# One for all modules of a class.
_classes: dict[tuple[type[nn.Module], type[Variant]], type[Variant]] = {}


class Variant(nn.Module):
    """Mixed in before the class that a module had; ``super()`` leads to what that does."""

    variant_of: type[nn.Module]
    variant_mixin: type[Variant]

    @override
    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        if not isinstance(reduced, tuple) or reduced[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
            return reduced  # its class has a way of its own
        # The class of a variant has no name that it could be found by.
        mixins: list[type[Variant]] = []
        kind: Any = type(self)
        while "variant_of" in vars(kind):
            mixins.insert(0, kind.variant_mixin)
            kind = kind.variant_of
        return (_new_variant, (kind, tuple(mixins), *reduced[1][1:]), *reduced[2:])


def make_variant(module: nn.Module, mixin: type[Variant]) -> None:
    """Let ``module`` do what ``mixin`` says, in place."""
    module.__class__ = _variant_class(type(module), mixin)


def own_class(module: nn.Module) -> type[nn.Module]:
    """Return the class of ``module`` without what it does besides."""
    kind: Any = type(module)
    while "variant_of" in vars(kind) and issubclass(kind, Variant):
        kind = kind.variant_of
    return kind  # type: ignore[no-any-return]


def unmake_variants(model: nn.Module) -> None:
    """Give ``model`` and all modules in it their own classes back."""
    for module in model.modules():
        if isinstance(module, Variant):
            module.__class__ = own_class(module)  # type: ignore[assignment]


def _variant_class(original: type[nn.Module], mixin: type[Variant]) -> type[Variant]:
    if (original, mixin) in _classes:
        return _classes[original, mixin]
    namespace = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "variant_of": original,
        "variant_mixin": mixin,
    }
    made = types.new_class(
        original.__name__, (mixin, original), exec_body=lambda body: body.update(namespace)
    )
    return _classes.setdefault((original, mixin), made)


def _new_variant(kind: type[nn.Module], mixins: tuple[type[Variant], ...], *args: Any) -> nn.Module:
    for mixin in mixins:
        kind = _variant_class(kind, mixin)
    return kind.__new__(kind, *args)
