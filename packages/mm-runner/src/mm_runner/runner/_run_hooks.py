"""Letting the hooks of a run act."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mm_runner.errors import ConfigError
from mm_runner.hooks import STAGES, priority_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mm_runner.hooks import Hook, HookList

__all__ = ["RunHooks"]


class RunHooks:
    """What a run asks of its hooks.

    Attributes:
        hooks_list: The hooks.
    """

    hooks_list: HookList

    @property
    def hooks(self) -> list[Hook]:
        """The hooks in the order they act."""
        return self.hooks_list.hooks

    def call_hook(self, stage: str, **arguments: Any) -> None:
        """Let every hook act at ``stage``.

        Args:
            stage: One of :data:`mm_runner.hooks.STAGES`, or a method's name of your own, which the
                hooks that have it act at.
            **arguments: What they get besides the run.
        """
        methods = self.hooks_list.methods.get(stage)
        if methods is None:
            methods = [getattr(hook, stage) for hook in self.hooks if hasattr(hook, stage)]
        for act in methods:
            act(self, **arguments)

    def get_hooks_info(self) -> str:
        """Return, as a text, which hooks act at each stage, in their order and with priorities.

        Example:
            >>> print(runner.get_hooks_info())  # doctest: +SKIP
            before_train:
            (VERY_HIGH   ) RuntimeInfoHook
            (NORMAL      ) IterTimerHook
            ...
        """
        parts = []
        for stage in STAGES:
            acting = [hook for hook in self.hooks if type(hook).acts_at(stage)]
            lines = [f"({priority_name(one.priority):<12}) {type(one).__name__}" for one in acting]
            parts += ["\n".join([f"{stage}:", *lines])] if lines else []
        return "\n\n".join(parts)

    def step_hooks(self, stage: str) -> list[Callable[..., None]]:
        """Return what acts at a stage of each training step: fewer calls than :meth:`call_hook`.

        Args:
            stage: ``"before_train_iter"`` or ``"after_train_iter"``.

        Returns:
            To be called as ``act(runner, batch_idx, data_batch)``, after a step also with the
            ``outputs``. After :meth:`register_hook` there is another list, which loops of ours ask
            for then.
        """
        is_own = type(self).call_hook is RunHooks.call_hook and "call_hook" not in vars(self)
        return self.hooks_list.of_steps(stage, None if is_own else self.call_hook)

    def register_hook(
        self, hook: Hook | Mapping[str, Any], priority: int | str | None = None
    ) -> None:
        """Add a hook, which acts from the next call of a stage on.

        Args:
            hook: To add, or its config, as in ``custom_hooks``.
            priority: Wins over that of the config, which wins over the hook's own. Defaults to
                the one of these that is there.

        Raises:
            ComponentNotFoundError: If a ``type`` names nothing.
            ConfigError: If it is no hook, its arguments do not fit, or there is no such priority.
        """
        self.hooks_list.add(hook, priority, where="register_hook")
        # A training under way holds what it calls in its steps.
        renew = getattr(self.__dict__.get("train_loop"), "renew_hooks", None)
        if renew is not None:
            renew()

    def register_custom_hooks(self, hooks: Sequence[Hook | Mapping[str, Any]]) -> None:
        """Add hooks as ``register_hook`` does, each at the priority of its config or its own.

        Args:
            hooks: To add, or their configs, as in ``custom_hooks``.

        Raises:
            ComponentNotFoundError: If a ``type`` names nothing.
            ConfigError: If these are no list, or one of them is no hook or its arguments do not
                fit. Those before it are added.
        """
        if not isinstance(hooks, (list, tuple)):
            raise ConfigError(
                f"register_custom_hooks: expected a list of hooks or of their configs, not "
                f"{hooks!r}. Add one alone by register_hook(hook)."
            )
        for hook in hooks:
            self.register_hook(hook)
