"""The default scope: the library whose registries are searched first."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator


class DefaultScope:
    """A default scope, under MMEngine's names.

    Args:
        scope_name: A library that has registries of its own, such as ``"mmpretrain"``.

    Example:
        >>> with DefaultScope.overwrite_default_scope("birds"):
        ...     DefaultScope.get_current_instance().scope_name
        'birds'
    """

    current: ClassVar[DefaultScope | None] = None

    def __init__(self, scope_name: str) -> None:
        self.scope_name = scope_name

    @classmethod
    def get_current_instance(cls) -> DefaultScope | None:
        """Return the present default scope, ``None`` if there is none."""
        return DefaultScope.current

    @classmethod
    @contextmanager
    def overwrite_default_scope(cls, scope_name: str | None) -> Iterator[None]:
        """Use another default scope within the block; ``None`` keeps the present one."""
        previous = DefaultScope.current
        if scope_name is not None:
            DefaultScope.current = DefaultScope(scope_name)
        try:
            yield
        finally:
            DefaultScope.current = previous


def in_default_scope(component: Any) -> bool:
    """Return whether a component is part of the library that is the default scope."""
    scope, module = DefaultScope.current, str(getattr(component, "__module__", ""))
    return scope is not None and module.startswith(f"{scope.scope_name}.")


# Where the components came from that a run took from libraries.
_origins: dict[str, list[str]] = {}


def note_origin(kind: str, component: Any) -> None:
    """Note that a component of a library is in use."""
    library = str(getattr(component, "__module__", "")).partition(".")[0]
    text = f"{kind} {getattr(component, '__name__', component)}"
    listed = _origins.setdefault(library, [])
    if text not in listed:
        listed.append(text)


def origins() -> list[tuple[str, str]]:
    """Return the libraries whose components the run has looked up, and these components."""
    return [(library, ", ".join(listed)) for library, listed in _origins.items()]


def init_default_scope(scope: str | None) -> None:
    """Set the default scope of this process, as a Runner does; ``None`` unsets it."""
    _origins.clear()
    DefaultScope.current = None if scope is None else DefaultScope(scope)
