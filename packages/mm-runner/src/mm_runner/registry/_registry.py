"""A registry: the components of one kind, by name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from mm_runner.errors import ComponentNotFoundError, ConfigError, did_you_mean, with_place

from ._bridges import bridges, find_entry_points, is_bridged
from ._build import build_from_cfg
from ._scope import DefaultScope, in_default_scope, note_origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

Component = TypeVar("Component", bound="Callable[..., Any]")


class Registry:
    """The components of one kind, found by name.

    A name is looked for among those registered in this process, then torch's own, then the entry
    points of installed distributions. Looking one name up imports that one component only.

    Registries of one kind form a family: a library makes its own with ``parent=`` one of ours.
    :meth:`get` looks in the registry of the default scope first, or else in this one, then in its
    parents. ``"scope.Name"`` looks in the registry of that scope and its parents.

    Args:
        name: What the registry holds, in the singular, for messages: ``"optimizer"``.
        build_func: Called with ``cfg``, ``registry=`` and, if given, ``default_args=``. Defaults to
            that of the parent, or :func:`build_from_cfg`.
        parent: Registry that is searched after this one.
        scope: Name of the library. Defaults to the package of the calling module.
        locations: Modules that register components when imported, which happens when a name is
            first looked up here.
        entry_point_group: Group under which distributions advertise such components, or ``None``.
        torch_components: Returns torch's own components of this kind by name.

    Raises:
        ConfigError: If the parent has a child of the same scope.

    Example:
        >>> METRICS = Registry("metric")
        >>> @METRICS.register_module()
        ... class Accuracy: ...
        >>> METRICS.get("Accuracy") is Accuracy
        True
        >>> child = Registry("metric", parent=METRICS, scope="birds")
        >>> child.get("Accuracy") is METRICS.get("Accuracy")
        True
    """

    def __init__(
        self,
        name: str,
        build_func: Callable[..., Any] | None = None,
        parent: Registry | None = None,
        scope: str | None = None,
        locations: Iterable[str] = (),
        *,
        entry_point_group: str | None = None,
        torch_components: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self.name = name
        self.parent = parent
        self.scope = _caller_scope() if scope is None else scope
        self.children: dict[str, Registry] = {}
        inherited = build_from_cfg if parent is None else parent.build_func
        self.build_func: Callable[..., Any] = build_func or inherited
        self.entry_point_group = entry_point_group
        self._locations = list(locations)
        self._torch = torch_components
        self._registered: dict[str, Callable[..., Any]] = {}
        if parent is not None and parent.children.setdefault(self.scope, self) is not self:
            raise ConfigError(
                f"Registry({name!r}): its parent has a child of the scope {self.scope!r} already. "
                "Use that one, or give another scope."
            )

    def __repr__(self) -> str:
        return f"Registry({self.name!r}: {', '.join(self.names()) or 'nothing'})"

    def __contains__(self, name: str) -> bool:
        return name in self.names()

    def __len__(self) -> int:
        return len(self.names())

    @property
    def module_dict(self) -> dict[str, Callable[..., Any]]:
        """Components registered in this process, by name (a copy)."""
        return dict(self._registered)

    def names(self) -> list[str]:
        """List all names; imports nothing but torch."""
        advertised = find_entry_points(self.entry_point_group)
        return sorted({*self._registered, *self._torch(), *(one.name for one in advertised)})

    def register_module(
        self,
        name: str | Iterable[str] | None = None,
        force: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
        module: Callable[..., Any] | None = None,
    ) -> Any:
        """Register a class or function, as a decorator or by ``module=``.

        Args:
            name: Name or names to register under. Defaults to the component's ``__name__``.
            force: Replace what is registered under that name.
            module: The component; without it a decorator is returned.

        Raises:
            KeyError: If the name is taken in this process and ``force`` is false.
            TypeError: If ``name`` is no string, or ``module`` cannot be called. Both also when
                the decorator is used without parentheses.
        """
        if callable(name):
            raise TypeError(
                f"register_module got {name!r} as name; write @register_module() with "
                "parentheses, or register_module(module=...)."
            )
        names = [name] if isinstance(name, str) or name is None else list(name)

        def register(component: Component) -> Component:
            if not callable(component):
                raise TypeError(f"A {self.name} must be a class or function, got {component!r}.")
            for one in names:
                own = component.__name__ if one is None else one
                if own in self._registered and not force:
                    raise KeyError(
                        f"{self.name} {own!r} is registered already, as "
                        f"{self._registered[own]!r}; pass force=True to replace it, or another "
                        "name."
                    )
                self._registered[own] = component
            return component

        return register if module is None else register(module)

    def get(self, name: str, *, others: Iterable[str] = ()) -> Callable[..., Any]:
        """Return the component called ``name``, importing it if needed.

        Args:
            name: A registered name, with or without a scope, or an import path ``pkg.mod:Name``,
                ``pkg.mod:Class.method`` or ``pkg.mod.Name``.
            others: Names that the caller knows besides, for the message. Defaults to none.

        Raises:
            ComponentNotFoundError: If there is none; the message lists what there is.
            ConfigError: If two distributions advertise the name.
        """
        registry, bare, library = self._begin(name)
        # Bridges import their libraries: only for runs that ask for one.
        is_asked = DefaultScope.get_current_instance() or name.startswith("mmengine.")
        found = None
        if is_asked and library:
            found = self._ask_bridges(name.rpartition(".")[2], library)
        for one in registry.lineage:
            found = one.find(bare) if found is None else found
        if found is None and is_asked and ":" not in bare and "." not in bare:
            found = self._ask_bridges(bare, None)
        if found is not None:
            return found
        if ":" in name or "." in name:
            remedy = "Write it as 'package.module:Name' of something that can be imported."
            last = name.replace(":", ".").rpartition(".")[2]
            if last in self.names():
                remedy = f"{last!r} is registered here without a scope: write type={last!r}."
            if library and is_asked:
                remedy += f" The registries of {library} have no such name."
            elif library and importlib.util.find_spec("mmengine") is not None:
                remedy += f" A name in the registries of {library} needs default_scope={library!r}."
            return _load(name, f"The {self.name} {name!r} was asked for by import path", remedy)
        names = sorted({*others, *(known for one in registry.lineage for known in one.names())})
        raise ComponentNotFoundError(
            f"No {self.name} named {name!r}; there are: {', '.join(names) or 'none'}."
            f"{did_you_mean(name, names)} Register yours with @register_module(), or give its "
            "import path 'package.module:Name'."
        )

    def resolve(self, kind: Any) -> Any:
        """Return the component of a ``type``: a name, or a class or function.

        A configuration may import MMEngine's classes. Where there is one of the same name here,
        that is used; any other component is returned unchanged.

        Raises:
            ComponentNotFoundError: As in :meth:`get`.
            ConfigError: As there.
        """
        component = self.get(kind) if isinstance(kind, str) else kind
        if not is_bridged(component):
            if component is kind and in_default_scope(component):
                note_origin(self.name, component)
            return component
        found = (one.find(getattr(component, "__name__", "")) for one in self.lineage)
        return next((one for one in found if one is not None), component)

    def build(
        self, cfg: Mapping[str, Any] | object, default_args: Mapping[str, Any] | None = None
    ) -> Any:
        """Build the component that ``cfg['type']`` names, with the other keys as arguments.

        ``default_args`` are arguments that ``cfg`` may override; see :func:`build_from_cfg`.
        """
        given = {} if default_args is None else {"default_args": default_args}
        return self.build_func(cfg, registry=self, **given)

    @property
    def lineage(self) -> list[Registry]:
        """This registry, its parent, and so on to the root."""
        return [self, *(self.parent.lineage if self.parent else [])]

    def _begin(self, name: str) -> tuple[Registry, str, str | None]:
        """Return the registry to look in first, the name without scope, and a foreign scope."""
        family = [self.lineage[-1]]
        for one in family:
            family += one.children.values()
        by_scope = {one.scope: one for one in reversed(family)}
        by_scope.setdefault("mmengine", family[0])  # OpenMMLab's configs name our components so
        default = DefaultScope.get_current_instance()
        scope, _, bare = name.rpartition(".")
        if not scope and default is not None:
            scope = default.scope_name
        if scope in by_scope:
            return by_scope[scope], bare, None
        is_library = scope and "." not in scope and ":" not in name
        return self, name, scope if is_library else None

    def _ask_bridges(self, name: str, scope: str | None) -> Callable[..., Any] | None:
        for _, bridge in bridges():
            found: Callable[..., Any] | None = bridge.find(self.name, name, scope)
            if found is not None:
                note_origin(self.name, found)
                return found
        return None

    def find(self, name: str) -> Callable[..., Any] | None:
        """Return the component ``name`` of this registry alone, ``None`` if it has none."""
        if name not in self._registered:
            while self._locations:
                importlib.import_module(self._locations[0])
                del self._locations[:1]
        if name in self._registered:
            return self._registered[name]
        found = find_entry_points(self.entry_point_group)
        advertised = {one.value: one for one in found if one.name == name}
        torchs: Callable[..., Any] | None = self._torch().get(name)
        if torchs is not None:
            if advertised:
                warnings.warn(
                    f"{self.name} {name!r} is torch's own and also provided by an installed "
                    f"plugin; torch's is used. Give the import path {' or '.join(advertised)} to "
                    "use the plugin's.",
                    stacklevel=4,
                )
            return torchs
        if len(advertised) > 1:
            packages = [
                f"{one.dist and one.dist.name} ({one.value})" for one in advertised.values()
            ]
            raise ConfigError(
                f"{name!r} was asked for in {self.entry_point_group!r}, and "
                f"{', '.join(sorted(packages))} provide it; uninstall all but one, or give the "
                "import path 'package.module:Name' as type."
            )
        for entry in advertised.values():
            package = entry.dist and entry.dist.name
            asked = f"The {self.name} {name!r} was found as {entry.value} of the package {package}"
            return _load(entry.value, asked, "Repair or reinstall that package.")
        return None


def _load(path: str, asked: str, remedy: str) -> Callable[..., Any]:
    """Return what an import path leads to; messages begin with ``asked``."""
    module_name, _, attribute = path.rpartition(":" if ":" in path else ".")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise ComponentNotFoundError(f"{asked}, which gave {error}. {remedy}") from error
        raise ComponentNotFoundError(
            f"{asked}; importing {module_name!r} failed: {with_place(error)}."
        ) from error
    found: Any = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            holder = f"the module {module_name!r}" if found is module else repr(found)
            raise ComponentNotFoundError(
                f"{asked}; {holder} has no {name!r}."
                f"{did_you_mean(name, getattr(found, '__dict__', ()))} {remedy}"
            )
        found = getattr(found, name)
    return found  # type: ignore[no-any-return]


def _caller_scope() -> str:
    """Return the package of the module that creates a registry."""
    frame = inspect.currentframe()
    caller = frame and frame.f_back and frame.f_back.f_back
    return str(caller.f_globals.get("__name__", "") if caller else "").partition(".")[0]
