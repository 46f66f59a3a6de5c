"""Build components from ``dict(type=..., **arguments)``, with errors that name the key.

Names of arguments are checked, and plain values against simple annotations: int, float, bool, str,
Literal, or a union of these. Other annotations take anything.
"""

from __future__ import annotations

import inspect
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from torch import Tensor

from mm_runner.errors import ComponentNotFoundError, ConfigError, did_you_mean, with_place

from ._scope import DefaultScope, in_default_scope

if TYPE_CHECKING:
    from ._registry import Registry

_LONGEST_REPR = 120
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
# How alike a name must be to a known one to be offered in its place; and, where a component takes
# any name, to be taken for a slip.
_NEAR, _SLIP = 0.6, 0.8
# What a configuration file can hold. Objects are taken as they are.
_PLAIN = (bool, int, float, str, bytes, type(None), list, tuple, set, Mapping)
_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "text",
    type(None): "None",
}
# torch's objects, which no file holds, and the plain type that stands for each in a union.
_PLAIN_FORMS = {"Tensor": float, "dtype": str}
# Errors of constructors that do not check their arguments.
_PYTHONS_OWN = (TypeError, ValueError, AttributeError, IndexError, KeyError)
_OUR_PACKAGES = ("mm_amp", "mm_compile", "mm_dist", "mm_npu", "mm_runner")
# Path and arguments of the component under construction.
_under_construction: ContextVar[tuple[str, Any]] = ContextVar("mm_runner_under_construction")


def build_from_cfg(
    cfg: object,
    registry: Registry,
    default_args: Mapping[str, Any] | None = None,
    *,
    where: str | None = None,
) -> Any:
    """Call the component that ``cfg`` names with its arguments, and return the result.

    Args:
        cfg: ``dict(type=..., **arguments)``. It is not changed. The default scope within it is
            ``_scope_``, if it has that key. Where ``type`` is ``package.module:Name``, configs of
            this kind among the arguments are built first, unless the component derives from a class
            of ours or MMEngine's, or is registered: these build their parts themselves.
        registry: Where a ``type`` given as text is looked up.
        default_args: Arguments that ``cfg`` may override; a ``type`` among them is the default.
        where: Path of ``cfg`` in the whole configuration, for messages.

    Raises:
        ComponentNotFoundError: If ``type`` names nothing.
        ConfigError: If ``cfg`` is no dict, has no ``type``, or its arguments do not fit.
    """
    where = where or path_within(cfg) or registry.name
    scope = cfg.get("_scope_") if isinstance(cfg, Mapping) else None
    with DefaultScope.overwrite_default_scope(scope):
        component, arguments = check_cfg(cfg, registry, default_args, where=where)
        if _takes_objects(component, cfg, registry):

            def build(inner: Mapping[str, Any], place: str) -> Any:
                return build_from_cfg(inner, registry, where=place)

            arguments = {k: _map_configs(v, build, f"{where}.{k}") for k, v in arguments.items()}
        return _call(component, arguments, where)


def _takes_objects(component: Any, cfg: object, registry: Registry) -> bool:
    """Return whether configs by import path among a component's arguments are built for it.

    That is for components by import path which know nothing of registries; others build them.
    """
    bases = {base.__module__.partition(".")[0] for base in getattr(component, "__mro__", ())}
    is_known = bool(bases & {"mm_runner", "mmengine"})
    return _is_by_path(cfg) and not is_known and component not in registry.module_dict.values()


def _is_by_path(cfg: object) -> bool:
    """Return whether the ``type`` of a config is ``package.module:Name``."""
    kind = cfg.get("type") if isinstance(cfg, Mapping) else None
    return isinstance(kind, str) and ":" in kind


def _map_configs(value: Any, function: Callable[[Mapping[str, Any], str], Any], where: str) -> Any:
    """Return ``value`` with ``function`` applied to the configs by import path within it."""
    if _is_by_path(value):
        return function(value, where)
    if isinstance(value, dict):
        mapped = {k: _map_configs(one, function, f"{where}.{k}") for k, one in value.items()}
        return value if all(mapped[key] is value[key] for key in value) else type(value)(mapped)
    if type(value) in (list, tuple):
        items = [_map_configs(one, function, f"{where}[{i}]") for i, one in enumerate(value)]
        return value if all(map(operator.is_, items, value)) else type(value)(items)
    return value


def _call(component: Callable[..., Any], arguments: dict[str, Any], where: str) -> Any:
    token = _under_construction.set((where, arguments))
    try:
        return component(**arguments)
    except Exception as error:
        if type(error) in _PYTHONS_OWN:
            name = getattr(component, "__name__", repr(component))
            raise ConfigError(
                f"{where}: {name} refused its arguments: {with_place(error)}"
            ) from error
        text, package = str(error), type(error).__module__.partition(".")[0]
        is_ours = package in _OUR_PACKAGES and not isinstance(error, Warning)
        if is_ours and len(error.args) == 1 and not text.startswith(where):
            begins_with_key = re.split(r"[ .=:\[]", text, maxsplit=1)[0] in arguments
            raise type(error)(f"{where}{'.' if begins_with_key else ': '}{text}") from error
        raise  # an error of somebody's own says more than we could
    finally:
        _under_construction.reset(token)


def check_cfg(
    cfg: object,
    registry: Registry,
    default_args: Mapping[str, Any] | None = None,
    *,
    where: str | None = None,
    is_partial: bool = False,
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Check what ``cfg`` describes, without building it.

    Arguments and errors are those of :func:`build_from_cfg`; ``is_partial`` is as in
    :func:`check_arguments`.

    Returns:
        The component and the arguments to call it with.
    """
    where = where or path_within(cfg) or registry.name
    cfg = need_mapping(cfg, where, "a dict with the key 'type'")
    arguments = {**(default_args or {}), **cfg}
    component, _ = arguments.pop("type", None), arguments.pop("_scope_", None)
    if component is None:
        raise ConfigError(
            f"{where}: the key 'type' is missing; given: {', '.join(map(repr, cfg)) or 'nothing'}. "
            f"It names a {registry.name}: {', '.join(registry.names()[:20])}."
        )
    try:
        component = registry.resolve(component)
    except (ComponentNotFoundError, ConfigError) as error:
        raise type(error)(f"{where}.type: {error}") from error
    if not callable(component):
        raise ConfigError(
            f"{where}.type: a name, a class or a function is needed, got {component!r}."
        )
    if _takes_objects(component, cfg, registry):

        def check(inner: Mapping[str, Any], place: str) -> object:
            check_cfg(inner, registry, where=place)
            return inner

        for name, value in arguments.items():
            _map_configs(value, check, f"{where}.{name}")
    check_arguments(component, arguments, where, is_partial=is_partial)
    return component, arguments


def path_within(cfg: object) -> str | None:
    """Return the path of ``cfg`` if it is among the arguments under construction."""
    where, arguments = _under_construction.get(("", None))
    remaining = [(where, arguments)]
    while remaining:
        path, holder = remaining.pop()
        if holder is cfg:
            return path
        if isinstance(holder, Mapping):
            remaining += [(f"{path}.{key}", value) for key, value in holder.items()]
        elif isinstance(holder, (list, tuple)):
            remaining += [(f"{path}[{index}]", value) for index, value in enumerate(holder)]
    return None


def check_arguments(
    component: Callable[..., Any],
    arguments: Mapping[str, Any],
    where: str,
    *,
    name: str | None = None,
    is_partial: bool = False,
) -> None:
    """Check that ``component`` takes ``arguments``, without calling it.

    Args:
        component: A class or function.
        arguments: By name.
        where: Path of the config, for messages.
        name: What the user calls the component. Defaults to its own name.
        is_partial: Whether missing arguments are given later.

    Raises:
        ConfigError: Naming the argument that is unknown, missing or of another type by its path.
    """
    try:
        parameters = inspect.signature(component).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return
    name = name or getattr(component, "__name__", repr(component))
    known = {one.name: one for one in parameters if one.kind in _BY_NAME}
    takers = list(parameters)
    if inspect.isclass(component) and hasattr(component.__init__, "__wrapped__"):
        # The decorator, as of Hugging Face's configurations, may take more than what it decorates.
        outer = inspect.signature(component.__init__, follow_wrapped=False)
        takers += outer.parameters.values()
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takers)
    inherited = _of_bases(component) if takes_any else ()
    for argument in arguments:
        if argument in known or argument in inherited:
            continue
        hint = did_you_mean(str(argument), known, cutoff=_SLIP if takes_any else _NEAR)
        if hint or not takes_any:
            raise ConfigError(
                f"{where}.{argument}: unknown argument of {name}, which takes "
                f"{', '.join(known) or 'none'}.{hint}"
            )
    for parameter in known.values():
        if parameter.name in arguments:
            if not in_default_scope(component):  # annotations of libraries are not exact
                place = f"{where}.{parameter.name}"
                check_type(component, parameter, arguments[parameter.name], place)
        elif parameter.default is parameter.empty and not is_partial:
            raise ConfigError(
                f"{where}.{parameter.name}: {name} needs this argument; "
                f"given: {', '.join(map(repr, arguments)) or 'none'}."
            )


def _of_bases(component: Any) -> set[str]:
    """Return what the initializers of a class's bases take: it may pass its ``**kwargs`` on."""
    names: set[str] = set()
    for base in getattr(component, "__mro__", ())[1:-1]:
        with suppress(TypeError, ValueError):
            names |= inspect.signature(base.__init__).parameters.keys()
    return names


def check_type(
    component: Callable[..., Any], parameter: inspect.Parameter, value: Any, where: str
) -> None:
    """Check one value against its parameter's annotation, or else its default.

    Raises:
        ConfigError: If it is of another type.
    """
    annotation, default = parameter.annotation, parameter.default
    if annotation is parameter.empty:
        # A number by default is one, though it may also be a list of them.
        is_other = type(default) in (bool, int, float) and isinstance(value, (str, Mapping))
        annotation = type(default) if is_other else Any
    if isinstance(annotation, str):
        function = component.__init__ if inspect.isclass(component) else component
        names = {**vars(typing), **getattr(inspect.unwrap(function), "__globals__", {})}
        try:
            annotation = eval(annotation, names)  # noqa: S307 - the component's own source
        except Exception:  # noqa: BLE001 - a name that only type checkers know
            annotation = Any
    if value is not None or default is not None:  # implicitly optional, as was once usual
        _check_value(value, annotation, where)


def check_section(value: Any, where: str, known: Mapping[str, Any]) -> None:
    """Check the keys of a dict, and its values by the annotations of ``known``."""
    for key, item in need_mapping(value, where).items():
        place = f"{where}.{key}".lstrip(".")
        if key not in known:
            raise ConfigError(
                f"{place}: unknown key; known are {', '.join(dict.fromkeys(known))}."
                f"{did_you_mean(str(key), known)}"
            )
        if item is not None:
            _check_value(item, known[key], place)


def need_mapping(value: Any, where: str, what: str = "a dict") -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {what} is needed, got {short_repr(value)}.")
    return value


def need_names(value: Any, where: str) -> list[str]:
    """Return a name, or a list of names, as a list; ``None`` is an empty one."""
    names = [value] if isinstance(value, str) and value else value or []
    is_list = isinstance(names, (list, tuple))
    if not is_list or not all(isinstance(one, str) and one for one in names):
        raise ConfigError(f"{where}: a name or a list of names is needed, got {value!r}.")
    return list(names)


def check_integer(where: str, value: Any, *, least: int | None = None) -> None:
    """Raise a ConfigError unless ``value`` is an integer, of at least ``least``."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or (least is not None and value < least):
        limit = "" if least is None else f" >= {least}"
        raise ConfigError(f"{where}: an integer{limit} is needed, got {value!r}.")


def short_repr(value: object) -> str:
    """Return ``repr(value)``, shortened where it would fill the screen; of a tensor its shape."""
    text = f"Tensor{tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    return text if len(text) <= _LONGEST_REPR else f"{text[:_LONGEST_REPR]}..."


def _check_value(value: Any, annotation: Any, where: str) -> None:
    """Raise if a plain value is none of a simple annotation; objects are taken as they are."""
    kinds = _simple_kinds(annotation)
    if not kinds or not isinstance(value, _PLAIN) or any(_is_a(value, kind) for kind in kinds):
        return
    words: list[str] = []
    for kind in kinds:
        words += map(repr, get_args(kind)) if get_origin(kind) is Literal else [_WORDS[kind]]
    wanted = " or ".join(word for word in words if word != "None" or len(words) == 1)
    raise ConfigError(f"{where}: {wanted} is needed, got {short_repr(value)}.")


def _simple_kinds(annotation: Any) -> list[Any]:
    """Return the members of a union, or the annotation itself; nothing if one is not simple."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    members = get_args(annotation) if is_union else [annotation]
    kinds = [type(None) if one is None else one for one in members]
    kinds = [one for one in kinds if _PLAIN_FORMS.get(getattr(one, "__name__", "")) not in kinds]
    are_simple = (
        get_origin(one) is Literal or any(one is kind for kind in _WORDS) for one in kinds
    )
    return kinds if all(are_simple) else []


def _is_a(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return any(value == one and type(value) is type(one) for one in get_args(kind))
    if isinstance(value, bool):  # an integer to Python
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)
