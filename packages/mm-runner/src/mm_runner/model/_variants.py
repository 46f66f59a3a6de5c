"""Modules that do something besides what their class says, and stay the same objects.

A variant of a class is a subclass that a module is given in place of it. Its parameters, buffers,
hooks and the keys of its state dict are untouched; modules of one class stay of one class, which is
how repeated blocks are recognised. Copies and pickles of it are variants too.
"""

from __future__ import annotations

import copy
from abc import ABCMeta
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.fx
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from typing_extensions import override

__all__ = ["Variant", "make_variant", "own_class", "unmake_variants"]


# How torch.nn.utils.parametrize names its classes.
_OVER = "Parametrized"


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
        with _as_own_class(self):
            reduced: Any = self.__reduce_ex__(protocol)
        if not isinstance(reduced, tuple):
            return reduced
        return (_new_variant, (_mixins(type(self)), *reduced[:2]), *reduced[2:])


def make_variant(module: nn.Module, mixin: type[Variant]) -> None:
    """Let ``module`` do what ``mixin`` says, in place; nothing, if it does already."""
    kind = type(module)
    if isinstance(module, mixin):
        return
    # What torch's parametrizations put over a class takes the only base of its own for that class.
    if is_parametrized(module) and len(kind.__bases__) == 1 and kind.__name__.startswith(_OVER):
        under = _variant_class(kind.__bases__[0], mixin)
        module.__class__ = _new_class(type(kind), kind.__name__, (under,), _namespace(kind))
    else:
        module.__class__ = _variant_class(kind, mixin)


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
    bases = tuple(map(_without_variants, kind.__bases__))
    return _new_class(type(kind), kind.__name__, bases, _namespace(kind))


def _namespace(kind: Any) -> dict[str, Any]:
    return {
        name: value for name, value in vars(kind).items() if name not in ("__dict__", "__weakref__")
    }


@contextmanager
def _as_own_class(module: nn.Module) -> Iterator[None]:
    kind: Any = type(module)
    module.__class__ = own_class(module)
    try:
        yield
    finally:
        module.__class__ = kind


def _variant_class(original: Any, mixin: type[Variant]) -> Any:
    # One for all modules of a class. Python knows it for as long as there are any.
    for made in type.__subclasses__(original):
        if vars(made).get("variant_of") is original and made.variant_mixin is mixin:
            return made
    namespace = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "variant_of": original,
        "variant_mixin": mixin,
    }
    # Methods that read or write the class of the object are to find its own.
    if hasattr(original, "__deepcopy__"):
        namespace["__deepcopy__"] = _deepcopy
    if issubclass(original, torch.fx.GraphModule):
        namespace["recompile"] = _recompile
    return _new_class(type(original), original.__name__, (mixin, original), namespace)


def _deepcopy(self: Variant, memo: dict[int, Any]) -> nn.Module:
    with _as_own_class(self):
        copied = copy.deepcopy(self, memo)
    for mixin in _mixins(type(self)):
        make_variant(copied, mixin)
    return copied


def _recompile(self: Any) -> Any:
    with _as_own_class(self):
        return self.recompile()


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
