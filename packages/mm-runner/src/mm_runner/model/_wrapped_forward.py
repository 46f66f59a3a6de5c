"""Replace and restore the forward of single modules."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["WrappedForward", "forward_wrapper", "restore_forwards"]


class WrappedForward:
    """Stands on a module in place of its forward; the module stays the same object and class."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.replaced = vars(module).get("forward")
        vars(module)["forward"] = self

    def call_replaced(self, *args: Any, **kwargs: Any) -> Any:
        """Call what this stands for: an earlier replacement, or the forward of the class."""
        if self.replaced is not None:
            return self.replaced(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def restore(self) -> None:
        """Put back what this replaced."""
        if self.replaced is None:
            del vars(self.module)["forward"]
        else:
            vars(self.module)["forward"] = self.replaced


def forward_wrapper(module: nn.Module, kind: type[WrappedForward]) -> Any:
    """Return the wrapper of a kind that ``module`` has, or ``None``."""
    forward = vars(module).get("forward")
    while isinstance(forward, WrappedForward) and not isinstance(forward, kind):
        forward = forward.replaced
    return forward if isinstance(forward, kind) else None


def restore_forwards(model: nn.Module) -> None:
    """Remove all wrappers from ``model`` and the modules in it."""
    for module in model.modules():
        while isinstance(forward := vars(module).get("forward"), WrappedForward):
            forward.restore()
