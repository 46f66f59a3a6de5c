"""Functions of the user's own that see the gradients before they are clipped."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from ._clipper import AbstractClipper

GradientHook = Callable[[torch.optim.Optimizer], object]


class HookedClipper(AbstractClipper):
    """Calls hooks, and lets another one clip after them.

    Args:
        clipper: The other one; ``None`` clips nothing.
        optimizer: Given to the hooks.
    """

    def __init__(self, clipper: AbstractClipper | None, optimizer: torch.optim.Optimizer) -> None:
        self._clipper, self._optimizer = clipper, optimizer
        self._hooks: OrderedDict[int, GradientHook] = OrderedDict()

    def register(self, hook: GradientHook) -> RemovableHandle:
        """Call ``hook`` from now on, after those that are registered already."""
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    @override
    def clip(self, parameters: list[Tensor], model: Any) -> Tensor | None:
        for hook in tuple(self._hooks.values()):
            hook(self._optimizer)
        return None if self._clipper is None else self._clipper.clip(parameters, model)
