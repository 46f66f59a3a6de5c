"""An autocast whose cached weight casts, made without gradients, never serve a forward with them.

Within autocast torch keeps the cast of a weight. Older versions (2.6 does, 2.13 does not) also keep
one made under ``no_grad``, which has no way back to the weight: a later forward in the same
autocast uses it, and the weight gets no gradient. Nothing is said.
"""

from collections.abc import Callable
from functools import cache, wraps
from threading import Lock
from typing import Any

import torch
from typing_extensions import override

from ._compiling import is_compiling

# Everything by which Python code turns gradients back on.
_SWITCHES: tuple[tuple[type, str], ...] = (
    (torch.no_grad, "__exit__"),
    (torch.inference_mode, "__exit__"),
    (torch.enable_grad, "__enter__"),
    (torch.set_grad_enabled, "__init__"),
    (torch.set_grad_enabled, "__enter__"),
    (torch.set_grad_enabled, "__exit__"),
)


def new_autocast(device_type: str, **options: Any) -> torch.autocast:
    """Build ``torch.autocast``, or where that drops gradients, one that does not.

    Args:
        device_type: Such as ``'cuda'``.
        **options: Arguments of ``torch.autocast``.
    """
    # Compiled code keeps no casts, and the compiler knows torch's autocast only.
    if is_compiling() or not drops_gradients():
        return torch.autocast(device_type, **options)
    return ClearingAutocast(device_type, **options)


def autocast_builder() -> Callable[..., torch.autocast]:
    """Return ``new_autocast``, or torch's class itself where the two come to the same."""
    return new_autocast if drops_gradients() else torch.autocast


@cache  # asked of the torch at hand, as the fix may be in any build
def drops_gradients() -> bool:
    """Whether this torch reuses casts that were made under ``no_grad`` where gradients are on."""
    weight = torch.ones(1, 1, requires_grad=True)
    with torch.enable_grad(), torch.autocast("cpu", torch.bfloat16, cache_enabled=True):
        with torch.no_grad():
            weight @ weight
        return not (weight @ weight).requires_grad


class ClearingAutocast(torch.autocast):
    """``torch.autocast`` that forgets its casts whenever gradients are turned back on."""

    @override
    def __enter__(self) -> Any:
        entered = super().__enter__()  # type: ignore[no-untyped-call]
        _watch.start()
        return entered

    @override
    def __exit__(self, *error: Any) -> Any:  # noqa: PYI036 - as torch types them
        _watch.stop()
        return super().__exit__(*error)


class _GradModeWatch:
    """Clears the cache when gradients come back on, from the first ``start`` to the last ``stop``.

    torch tells nobody when that happens, so the methods that do it are replaced meanwhile. The
    cache belongs to the process, and so does this, whichever thread started it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_users = 0
        self._originals: list[tuple[type, str, Callable[..., Any]]] = []

    def start(self) -> None:
        with self._lock:
            self._num_users += 1
            if self._num_users == 1:
                self._replace()

    def stop(self) -> None:
        with self._lock:
            self._num_users -= 1
            if self._num_users == 0:
                self._restore()

    def _replace(self) -> None:
        for owner, name in _SWITCHES:
            original = vars(owner).get(name)
            if original is not None:  # torch 1.13's set_grad_enabled inherits an empty __enter__
                self._originals.append((owner, name, original))
                setattr(owner, name, _clearing(original))

    def _restore(self) -> None:
        while self._originals:
            setattr(*self._originals.pop())


_watch = _GradModeWatch()


@cache  # one per method, as these are put in place in every step
def _clearing(switch: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(switch)
    def switch_and_clear(*args: Any, **kwargs: Any) -> Any:
        was_on = torch.is_grad_enabled()
        result = switch(*args, **kwargs)
        if torch.is_grad_enabled() and not was_on:
            torch.clear_autocast_cache()
        return result

    return switch_and_clear
