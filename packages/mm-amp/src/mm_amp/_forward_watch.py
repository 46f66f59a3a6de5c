"""Look which module of a forward is the first to give values that are not finite."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ._nested import tensors_in
from ._plain_names import child_name

_MANY_OUTPUTS = 8  # per module and forward


class ForwardWatch:
    """Watches some forwards of a model, on the device; only ``first_bad`` waits for it.

    What a compiled module does inside cannot be seen.
    """

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._seen: list[tuple[str, Tensor]] = []
        self._num_forwards_left = 0
        self._max_seen = 0

    def start(self, model: nn.Module, num_forwards: int) -> None:
        """Watch the next ``num_forwards`` forwards of ``model``."""
        self.stop()
        self._seen = []
        self._num_forwards_left = num_forwards
        self._max_seen = _MANY_OUTPUTS * num_forwards * sum(1 for _ in model.modules())
        for name, module in _eager_modules(model, ""):
            look = partial(self._look, name)
            self._handles.append(module.register_forward_hook(look))
            if module is model:
                self._handles.append(module.register_forward_hook(self._end_forward))

    def stop(self) -> None:
        """Take the hooks off the model; what was seen is kept."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def first_bad(self) -> str | None:
        """Describe the first module that gave a non-finite value; ``None`` if none did."""
        if not self._seen:
            return None
        flags = torch.stack([flag.to("cpu") for _, flag in self._seen]).tolist()
        return next((what for (what, _), flag in zip(self._seen, flags, strict=True) if flag), None)

    def _look(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        del inputs
        if len(self._seen) > self._max_seen:  # a part is called again and again, never the model
            self.stop()
            return
        with torch.no_grad():
            for tensor in tensors_in(output):
                if tensor.is_floating_point():
                    what = f"{name or 'the model'} ({type(module).__name__}), {tensor.dtype}"
                    self._seen.append((what, ~tensor.detach().isfinite().all()))

    def _end_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        del module, inputs, output
        self._num_forwards_left -= 1
        if self._num_forwards_left <= 0:
            self.stop()


def _eager_modules(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield plain names and modules whose hooks no compiler sees, where they would break graphs."""
    if getattr(module, "_compiled_call_impl", None) is not None:  # by module.compile()
        return
    yield name, module
    if type(module).__name__ == "OptimizedModule":  # by torch.compile(module)
        return
    for own_name, child in module.named_children():
        yield from _eager_modules(child, child_name(module, name, own_name))
