"""The hooks of a run, in order of priority."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import mm_dist
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.registry import HOOKS, build_from_cfg

from ._hook import STAGES, Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["HookList", "build_hooks", "priority_name", "priority_of"]

_LEVELS = {
    "HIGHEST": 0,
    "VERY_HIGH": 10,
    "HIGH": 30,
    "ABOVE_NORMAL": 40,
    "NORMAL": 50,
    "BELOW_NORMAL": 60,
    "LOW": 70,
    "VERY_LOW": 90,
    "LOWEST": 100,
}
_DEFAULT_HOOKS: dict[str, tuple[str, int]] = {
    "runtime_info": ("RuntimeInfoHook", 10),
    "timer": ("IterTimerHook", 50),
    "sampler_seed": ("DistSamplerSeedHook", 50),
    "logger": ("LoggerHook", 60),
    "param_scheduler": ("ParamSchedulerHook", 70),
    "checkpoint": ("CheckpointHook", 90),
    "crash_bundle": ("CrashBundleHook", 100),
}
# Returns what is called in the place of a hook's method, given the hook, the stage, the method.
Wrapper = Callable[[Hook, str, Callable[..., Any]], Callable[..., Any]]
# How alike the name of a method must be to a stage's to be taken for a slip.
_SLIP = 0.81
_STEP_ARGUMENTS = {
    "before_train_iter": ("batch_idx", "data_batch"),
    "after_train_iter": ("batch_idx", "data_batch", "outputs"),
}
_DEFAULT_ARGUMENTS: dict[str, dict[str, Any]] = {"checkpoint": {"interval": 1}}


class HookList:
    """Hooks in order of priority; those of equal priority in the order they were added.

    Attributes:
        methods: Methods to call at each stage, in this order. :meth:`add` makes new lists.
    """

    def __init__(self) -> None:
        self._hooks: list[tuple[int, Hook]] = []
        # Only what acts is called: a stage that nobody uses costs a step nothing.
        self.methods: dict[str, list[Any]] = {stage: [] for stage in STAGES}
        self._wrappers: list[Wrapper] = []

    @property
    def hooks(self) -> list[Hook]:
        """The hooks, in the order they act."""
        return [hook for _, hook in self._hooks]

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
            ConfigError: If it is no hook, its arguments do not fit, or there is no such priority.
        """
        if isinstance(hook, Mapping):
            arguments = dict(hook)
            own = arguments.pop("priority", None)
            priority = own if priority is None else priority
            hook = build_from_cfg(arguments, HOOKS, where=where)
        if not isinstance(hook, Hook):
            raise ConfigError(
                f"{where}: a mm_runner.hooks.Hook or a dict with 'type' is needed, got {hook!r}."
            )
        _warn_near_stages(hook)
        level = priority_of(hook.priority if priority is None else priority)
        hook.priority = level
        self._hooks.append((level, hook))
        self._put_in_order()

    def remove(self, hook: Hook) -> None:
        """Remove a hook; nothing, if it is not there."""
        self._hooks = [pair for pair in self._hooks if pair[1] is not hook]
        self._put_in_order()

    def wrap(self, wrapper: Wrapper) -> None:
        """Call what ``wrapper(hook, stage, method)`` returns in the place of each hook's method.

        It holds from the next call of a stage on, until :meth:`unwrap`; what was wrapped first
        stands innermost.
        """
        self._wrappers.append(wrapper)
        self._put_in_order()

    def unwrap(self, wrapper: Wrapper) -> None:
        """Undo :meth:`wrap`; nothing, if it was not called."""
        if wrapper in self._wrappers:
            self._wrappers.remove(wrapper)
            self._put_in_order()

    def call(self, runner: RunView, stage: str, arguments: Mapping[str, Any]) -> None:
        """Call every hook that has the method ``stage``."""
        methods = self.methods.get(stage)
        if methods is None:
            methods = [getattr(hook, stage) for hook in self.hooks if hasattr(hook, stage)]
        for act in methods:
            act(runner, **arguments)

    def info(self) -> str:
        """Return which hooks act at each stage, in their order and with priorities."""
        parts = []
        for stage in STAGES:
            acting = [hook for hook in self.hooks if type(hook).acts_at(stage)]
            lines = [f"({priority_name(one.priority):<12}) {type(one).__name__}" for one in acting]
            parts += ["\n".join([f"{stage}:", *lines])] if lines else []
        return "\n\n".join(parts)

    def _put_in_order(self) -> None:
        self._hooks.sort(key=lambda pair: pair[0])
        # New lists: a hook that adds another one is called from the old list just now.
        for stage in self.methods:
            self.methods[stage] = self._methods_at(stage)

    def _methods_at(self, stage: str) -> list[Callable[..., None]]:
        methods = []
        for hook in self.hooks:
            if type(hook).acts_at(stage):
                method = getattr(hook, stage)
                for wrapper in self._wrappers:
                    method = wrapper(hook, stage, method)
                methods.append(method)
        return methods

    def of_steps(
        self, stage: str, call_hook: Callable[..., None] | None = None
    ) -> list[Callable[..., None]]:
        """Return what to call at a stage of each training step, by position.

        Args:
            stage: ``"before_train_iter"`` or ``"after_train_iter"``.
            call_hook: Of a subclass of the Runner, to be called instead of the hooks.

        Returns:
            A new list, which does not follow :meth:`add` and :meth:`wrap`.
        """
        names = _STEP_ARGUMENTS[stage]
        if call_hook is None:
            return [_by_position(method, names) for method in self._methods_at(stage)]
        return [lambda _, *values: call_hook(stage, **dict(zip(names, values, strict=True)))]


def _warn_near_stages(hook: Hook) -> None:
    """Warn of methods that are never called and are named nearly like a stage."""
    for name in dir(type(hook)):
        is_own = not name.startswith("_") and not hasattr(Hook, name)
        if is_own and inspect.isfunction(getattr(type(hook), name)) and mm_dist.is_main_process():
            hint = did_you_mean(name, STAGES, cutoff=_SLIP)
            if hint:
                warnings.warn(
                    f"{type(hook).__name__}.{name} is no stage of a run, and only "
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
    replaced = dict(default_hooks or {})
    for name, cfg in replaced.items():
        # A name of the user's own is fine for something that says what it is.
        says_what_it_is = "type" in cfg if isinstance(cfg, Mapping) else cfg is not None
        if name not in _DEFAULT_HOOKS and not says_what_it_is:
            raise ConfigError(
                f"default_hooks.{name}: there is no such default hook; there are "
                f"{', '.join(_DEFAULT_HOOKS)}.{did_you_mean(name, _DEFAULT_HOOKS)} One of your own "
                "needs a 'type', here or in custom_hooks."
            )
    hooks = HookList()
    for name, (kind, level) in _DEFAULT_HOOKS.items():
        cfg = replaced.get(name, {})
        if isinstance(cfg, Mapping) and "type" not in cfg:
            cfg = {"type": kind, **_DEFAULT_ARGUMENTS.get(name, {}), **cfg}
        if cfg is not None:
            where = f"default_hooks.{name}"
            if isinstance(cfg, Mapping):
                hooks.add({"priority": level, **cfg}, where=where)
            else:
                hooks.add(cfg, level, where=where)
    for name, cfg in replaced.items():
        if name not in _DEFAULT_HOOKS and cfg is not None:
            hooks.add(cfg, where=f"default_hooks.{name}")
    for index, cfg in enumerate(custom_hooks or ()):
        hooks.add(cfg, where=f"custom_hooks[{index}]")
    return hooks


def priority_name(priority: int | str) -> str:
    """Return the name of a priority; of one between the names, the number as text.

    Raises:
        ConfigError: If it is no priority.

    Example:
        >>> priority_name(90), priority_name(45)
        ('VERY_LOW', '45')
    """
    level = priority_of(priority)
    return next((name for name, one in _LEVELS.items() if one == level), str(level))


def priority_of(priority: int | str) -> int:
    """Return a priority as a number from 0 (acts first) to 100.

    Args:
        priority: Such a number, or a name such as ``"NORMAL"`` (50), in any case.

    Raises:
        ConfigError: If it is neither.

    Example:
        >>> priority_of("very_low")
        90
    """
    if isinstance(priority, str) and priority.upper() in _LEVELS:
        return _LEVELS[priority.upper()]
    if isinstance(priority, int) and 0 <= priority <= 100:
        return priority
    hint = did_you_mean(priority, _LEVELS) if isinstance(priority, str) else ""
    raise ConfigError(
        f"A hook's priority {priority!r} was given; it is a number from 0 to 100 or one of "
        f"{', '.join(_LEVELS)}.{hint}"
    )


def _by_position(method: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Return ``method`` in a form that takes the runner, and then ``names``, by position.

    Args:
        method: To be called as ``method(runner, **arguments)``: a user's hook may have its
            arguments in another order, or take them all as ``**kwargs``.
        names: Names of the arguments after the runner.
    """
    try:
        # What a decorator wraps is not what is called.
        parameters = list(inspect.signature(method, follow_wrapped=False).parameters.values())[1:]
    except (TypeError, ValueError):  # written in C, or wrapped beyond recognition
        parameters = []
    if [one.name for one in parameters] == list(names) and all(
        one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in parameters
    ):
        return method
    return lambda runner, *values: method(runner, **dict(zip(names, values, strict=True)))
