"""Modules that do something besides what their class says, and stay the same objects.

A variant of a class is a subclass that a module is given in place of it. Its parameters, buffers,
hooks and the keys of its state dict are untouched; modules of one class stay of one class, which is
how repeated blocks are recognised. Copies and pickles of it are variants too.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from typing import Any

from torch import nn
from typing_extensions import override

__all__ = ["Variant", "make_variant", "own_class", "unmake_variants"]


# One for all modules of a class.
_classes: dict[tuple[type[nn.Module], type[Variant]], type[Variant]] = {}


class Variant(nn.Module):
    """Mixed in before the class that a module had; ``super()`` leads to what that does.

    ``variant_state`` names attributes that are taken away with it.
    """

    variant_of: type[nn.Module]
    variant_mixin: type[Variant]
    variant_state: tuple[str, ...] = ()

    @override
    def __init_subclass__(cls, **kwargs: Any) -> None:
        # To the registries that users' classes enter by this, a variant is nothing new.
        if "variant_of" not in vars(cls):
            super().__init_subclass__(**kwargs)

    @override
    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class of a variant has no name that it could be found by.
        kind: Any = type(self)
        self.__class__ = own_class(self)  # type: ignore[assignment]
        try:
            reduced: Any = self.__reduce_ex__(protocol)
        finally:
            self.__class__ = kind
        if not isinstance(reduced, tuple):
            return reduced
        return (_new_variant, (_mixins(kind), *reduced[:2]), *reduced[2:])


def make_variant(module: nn.Module, mixin: type[Variant]) -> None:
    """Let ``module`` do what ``mixin`` says, in place; nothing, if it does already."""
    if not isinstance(module, mixin):
        module.__class__ = _variant_class(type(module), mixin)


def own_class(module: nn.Module) -> type[nn.Module]:
    """Return the class of ``module`` without what it does besides."""
    return _without_variants(type(module))  # type: ignore[no-any-return]


def unmake_variants(model: nn.Module) -> None:
    """Give ``model`` and all modules in it their own classes back."""
    for module in model.modules():
        if isinstance(module, Variant):
            for mixin in _mixins(type(module)):
                for name in mixin.variant_state:
                    module.__dict__.pop(name, None)
            module.__class__ = own_class(module)  # type: ignore[assignment]


def _mixins(kind: Any) -> tuple[type[Variant], ...]:
    variants = [one for one in reversed(kind.__mro__) if "variant_of" in vars(one)]
    return tuple(one.variant_mixin for one in variants)


def _without_variants(kind: Any) -> Any:
    if not issubclass(kind, Variant):
        return kind
    if "variant_of" in vars(kind):
        return _without_variants(kind.variant_of)
    # Made of a variant, as torch's parametrizations do: the same of what the variant was made of.
    namespace = {
        name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")
    }
    bases = tuple(map(_without_variants, kind.__bases__))
    return _new_class(type(kind), kind.__name__, bases, namespace)


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
    made = _new_class(type(original), original.__name__, (mixin, original), namespace)
    return _classes.setdefault((original, mixin), made)


def _new_class(metaclass: Any, name: str, bases: tuple[Any, ...], namespace: dict[str, Any]) -> Any:
    # Past what a metaclass of the user's does with each class, such as to register it.
    new: Any = ABCMeta.__new__ if issubclass(metaclass, ABCMeta) else type.__new__
    return new(metaclass, name, bases, namespace)


def _new_variant(
    mixins: tuple[type[Variant], ...], function: Callable[..., nn.Module], args: tuple[Any, ...]
) -> nn.Module:
    module = function(*args)
    for mixin in mixins:
        make_variant(module, mixin)
    return module
