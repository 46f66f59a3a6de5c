"""Letting the hooks of a run act."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
        """Let every hook act at ``stage``."""
        for act in self.hooks_list.methods[stage]:
            act(self, **arguments)

    def step_hooks(self, stage: str) -> list[Callable[..., None]]:
        """Return what acts at a stage of each training step: fewer calls than :meth:`call_hook`.

        Args:
            stage: ``"before_train_iter"`` or ``"after_train_iter"``.

        Returns:
            To be called as ``act(runner, batch_idx, data_batch)``, after a step also with the
            ``outputs``. The list follows :meth:`register_hook`.
        """
        is_own = type(self).call_hook is RunHooks.call_hook and "call_hook" not in vars(self)
        return self.hooks_list.of_steps(stage, None if is_own else self.call_hook)

    def register_hook(
        self, hook: Hook | Mapping[str, Any], priority: int | str | None = None
    ) -> None:
        """Add a hook.

        Args:
            hook: To add, or its config, as in ``custom_hooks``.
            priority: Wins over that of the config, which wins over the hook's own. Defaults to
                the one of these that is there.

        Raises:
            ComponentNotFoundError: If a ``type`` names nothing.
            ConfigError: If it is no hook, its arguments do not fit, or there is no such priority.
        """
        self.hooks_list.add(hook, priority, where="register_hook")
