"""The hooks' own state in a checkpoint, by the names of their classes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mm_runner.hooks import Hook
    from mm_runner.runner import Runner

__all__ = ["hook_states", "restore_hooks"]


def hook_states(runner: Runner) -> dict[str, Any]:
    """Return what the hooks keep; of several of one class the second is ``<name>#2``.

    Every process must call this, as a hook may gather.
    """
    states = {name: hook.state_dict() for name, hook in _named(runner.hooks)}
    return {name: state for name, state in states.items() if state}


def restore_hooks(runner: Runner, states: Mapping[str, Any]) -> None:
    """Give the hooks back what :func:`hook_states` returned."""
    for name, hook in _named(runner.hooks):
        if name in states:
            hook.load_state_dict(states[name])


def _named(hooks: list[Hook]) -> Iterator[tuple[str, Hook]]:
    counts: Counter[str] = Counter()
    for hook in hooks:
        name = type(hook).__name__
        counts[name] += 1
        yield (f"{name}#{counts[name]}" if counts[name] > 1 else name), hook
