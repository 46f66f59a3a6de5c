"""Putting something around what the hooks of a run do, for a while."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ._hook import STAGES, Hook
from ._hook_list import _is_idle

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["HookCalls", "Surround"]

# Called as ``surround(hook, stage, act, arguments, named)``; it calls ``act`` with the arguments.
Surround = Callable[[Hook, str, Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]


class HookCalls:
    """What the hooks of a run do at their stages, with something around it, until :meth:`end`.

    Before and after that nothing costs anything. Several may be open at a time, and end in any
    order. Hooks that are added meanwhile are left alone, and so are those that are idle.

    Args:
        runner: The run.
        surround: Does what is to be done, and calls the hook.
        besides: A hook that is left alone.
    """

    def __init__(self, runner: RunView, surround: Surround, *, besides: Hook | None = None) -> None:
        self._runner = runner
        self._calls: list[_Call] = []
        for hook in runner.hooks:
            for stage in STAGES if hook is not besides else ():
                if type(hook).acts_at(stage) and not _is_idle(hook, stage):
                    self._put(hook, stage, surround)
        _renew(runner)

    def end(self) -> None:
        """Let the hooks act by themselves again."""
        for call in self._calls:
            call.take_out()
        self._calls.clear()
        _renew(self._runner)

    def _put(self, hook: Hook, stage: str, surround: Surround) -> None:
        call = _Call(hook, stage, surround)
        try:
            setattr(hook, stage, call)
        except AttributeError:  # it has slots
            return
        self._calls.append(call)


class _Call:
    """Stands for one method of a hook, on that hook."""

    def __init__(self, hook: Hook, stage: str, surround: Surround) -> None:
        self.hook, self.stage, self.surround = hook, stage, surround
        # A hook may have been given a function of its own, or stand within another one of these.
        self.is_own = stage in vars(hook) if hasattr(hook, "__dict__") else False
        self.act: Any = getattr(hook, stage)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.surround(self.hook, self.stage, self.act, arguments, named)

    def take_out(self) -> None:
        outer = vars(self.hook).get(self.stage)
        if outer is self:
            if self.is_own:
                setattr(self.hook, self.stage, self.act)
            else:
                delattr(self.hook, self.stage)
        while isinstance(outer, _Call):
            if outer.act is self:
                outer.act, outer.is_own = self.act, self.is_own
            outer = outer.act


def _renew(runner: RunView) -> None:
    """Let the run look up anew what it calls."""
    methods = runner.hooks_list.methods
    for stage in methods:
        acting = [hook for hook in runner.hooks if type(hook).acts_at(stage)]
        methods[stage] = [getattr(hook, stage) for hook in acting]
    renew = getattr(vars(runner).get("train_loop"), "renew_hooks", None)
    if renew is not None:
        renew()
