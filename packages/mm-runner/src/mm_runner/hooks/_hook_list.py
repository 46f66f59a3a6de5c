"""The hooks of a run, in order of priority."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import mm_dist
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.registry import HOOKS, adopt, build_from_cfg, need_mapping

from ._hook import STAGES, Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView


class Priority(IntEnum):
    """Names of priorities; the lowest number acts first."""

    HIGHEST = 0
    VERY_HIGH = 10
    HIGH = 30
    ABOVE_NORMAL = 40
    NORMAL = 50
    BELOW_NORMAL = 60
    LOW = 70
    VERY_LOW = 90
    LOWEST = 100


# Configs by the name that ``default_hooks`` changes them by.
DEFAULT_HOOKS: dict[str, dict[str, Any]] = {
    "runtime_info": {"type": "RuntimeInfoHook", "priority": 10},
    "timer": {"type": "IterTimerHook", "priority": 50},
    "sampler_seed": {"type": "DistSamplerSeedHook", "priority": 50},
    "logger": {"type": "LoggerHook", "priority": 60},
    "param_scheduler": {"type": "ParamSchedulerHook", "priority": 70},
    "checkpoint": {"type": "CheckpointHook", "interval": 1, "priority": 90},
    "crash_bundle": {"type": "CrashBundleHook", "priority": 100},
}
# Returns what is called in the place of a hook's method, given the hook, the stage, the method.
Wrapper = Callable[[Hook, str, Callable[..., Any]], Callable[..., Any]]
# How alike the name of a method must be to a stage's to be taken for a slip.
_SLIP = 0.81


class HookList:
    """Hooks in order of priority; those of equal priority in the order they were added.

    Attributes:
        hooks: The hooks, in the order they act.
        methods: Methods to call at each stage, in this order: only overridden ones, as others would
            cost each step time.
    """

    def __init__(self) -> None:
        self.hooks: list[Hook] = []
        self.methods: dict[str, list[Any]] = {stage: [] for stage in STAGES}
        self._wrapper: Wrapper | None = None

    def add(
        self,
        hook: Hook | Mapping[str, Any],
        priority: int | str | None = None,
        *,
        where: str = "hook",
    ) -> None:
        """Add a hook.

        Args:
            hook: To add, or its config, which may hold a ``priority`` as well.
            priority: Wins over that of the config, which wins over the hook's own ``priority``
                attribute.
            where: Path of the configuration, for messages.

        Raises:
            ComponentNotFoundError: If a ``type`` names nothing.
            ConfigError: If it is no hook, its arguments do not fit, or there is no such priority;
                or if it is the second of a kind of which a run has only one.
        """
        if isinstance(hook, Mapping):
            arguments = dict(hook)
            own = arguments.pop("priority", None)
            priority = own if priority is None else priority
            hook = build_from_cfg(arguments, HOOKS, where=where)
        hook = adopt("hook", hook) if not isinstance(hook, Hook) else hook
        if not isinstance(hook, Hook):
            raise ConfigError(
                f"{where}: a mm_runner.hooks.Hook or a dict with 'type' is needed, got {hook!r}."
            )
        for kind in type(hook).__mro__:
            if vars(kind).get("only_one") and any(isinstance(one, kind) for one in self.hooks):
                raise ConfigError(
                    f"{where}: a second {kind.__name__} was given, and a run has only one. Leave "
                    "one out; default_hooks changes those that every run has."
                )
        _warn_near_stages(type(hook))
        hook.priority = priority_of(hook.priority if priority is None else priority)
        self.hooks = sorted([*self.hooks, hook], key=attrgetter("priority"))
        self.wrap(self._wrapper)

    def add_all(self, hooks: Any, *, where: str) -> None:
        """Add a list of hooks or their configs."""
        if not isinstance(hooks, (list, tuple)):
            raise ConfigError(f"{where}: a list of hooks is needed, got {hooks!r}.")
        for index, hook in enumerate(hooks):
            self.add(hook, where=f"{where}[{index}]")

    def remove(self, hook: Hook) -> None:
        """Remove a hook; nothing, if it is not there."""
        self.hooks = [one for one in self.hooks if one is not hook]
        self.wrap(self._wrapper)

    def wrap(self, wrapper: Wrapper | None) -> None:
        """Call what ``wrapper(hook, stage, method)`` returns in the place of each hook's method.

        It holds from the next call of a stage on, until ``None`` is given.
        """
        self._wrapper = wrapper
        for stage in STAGES:
            acting = [hook for hook in self.hooks if hook.acts_at(stage)]
            methods = [getattr(hook, stage) for hook in acting]
            if wrapper is not None:
                pairs = zip(acting, methods, strict=True)
                methods = [wrapper(hook, stage, method) for hook, method in pairs]
            # A new list: a hook that adds another one is called from the old list just now.
            self.methods[stage] = methods

    def call(self, runner: RunView, stage: str, /, **arguments: Any) -> None:
        """Call every hook that has the method ``stage``."""
        methods = self.methods.get(stage)
        if methods is None:
            methods = [getattr(hook, stage) for hook in self.hooks if hasattr(hook, stage)]
        for act in methods:
            act(runner, **arguments)

    def info(self) -> str:
        """Return which hooks act at each stage, in their order and with priorities."""
        names: dict[Any, str] = {level.value: level.name for level in Priority}
        parts = []
        for stage in STAGES:
            lines = [
                f"({names.get(one.priority, str(one.priority)):<12}) {type(one).__name__}"
                for one in self.hooks
                if one.acts_at(stage)
            ]
            parts += ["\n".join([f"{stage}:", *lines])] if lines else []
        return "\n\n".join(parts)


def _warn_near_stages(kind: type[Hook]) -> None:
    """Warn of methods that are never called and are named nearly like a stage."""
    for name in dir(kind) if mm_dist.is_main_process() else ():
        is_own = not name.startswith("_") and not hasattr(Hook, name)
        hint = did_you_mean(name, STAGES, cutoff=_SLIP) if is_own else ""
        if hint and inspect.isfunction(getattr(kind, name)):
            warnings.warn(
                f"{kind.__name__}.{name} is no stage of a run, and only "
                f"runner.call_hook({name!r}) would call it.{hint}",
                stacklevel=3,
            )


def build_hooks(
    default_hooks: Mapping[str, Any] | None, custom_hooks: Iterable[Any] | None
) -> HookList:
    """Build the default hooks, as changed by ``default_hooks``, and the custom ones.

    Args:
        default_hooks: By the default hook's name: a hook or config that replaces it, or ``None``,
            which removes it; hooks under other names are added. A config without ``type`` changes
            only the arguments that it names.
        custom_hooks: Further hooks or configs.

    Raises:
        ConfigError: If a name or a hook is not one.
    """
    hooks = HookList()
    changed = {} if default_hooks is None else need_mapping(default_hooks, "default_hooks")
    for name, cfg in {**DEFAULT_HOOKS, **changed}.items():
        default = DEFAULT_HOOKS.get(name)
        is_complete = isinstance(cfg, Hook) or (isinstance(cfg, Mapping) and "type" in cfg)
        is_slip = did_you_mean(str(name), DEFAULT_HOOKS, cutoff=0.8)
        if default is None and (is_slip or not is_complete):
            raise ConfigError(
                f"default_hooks.{name}: there is no such default hook; there are "
                f"{', '.join(DEFAULT_HOOKS)}.{did_you_mean(str(name), DEFAULT_HOOKS)} One of your "
                "own needs a 'type', here or in custom_hooks."
            )
        level = default["priority"] if default else None
        if isinstance(cfg, Mapping):
            base = {"priority": level} if is_complete else DEFAULT_HOOKS[name]
            cfg, level = {**base, **cfg}, None  # noqa: PLW2901
        if cfg is not None:
            hooks.add(cfg, level, where=f"default_hooks.{name}")
    hooks.add_all([] if custom_hooks is None else custom_hooks, where="custom_hooks")
    return hooks


def priority_of(priority: int | str) -> int:
    """Return a priority as a number from 0 (acts first) to 100.

    Args:
        priority: Such a number, a :class:`Priority`, or the name of one, in any case.

    Raises:
        ConfigError: If it is neither.

    Example:
        >>> priority_of("very_low")
        90
    """
    names = [level.name for level in Priority]
    if isinstance(priority, str) and priority.upper() in names:
        return Priority[priority.upper()].value
    if isinstance(priority, int) and 0 <= priority <= 100:
        return int(priority)
    hint = did_you_mean(priority, names) if isinstance(priority, str) else ""
    raise ConfigError(
        f"A hook's priority {priority!r} was given; it is a number from 0 to 100 or one of "
        f"{', '.join(names)}.{hint}"
    )


get_priority = priority_of
