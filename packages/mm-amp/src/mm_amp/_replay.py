"""Go back to where a batch began: random generators, buffers, gradients."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn


class RandomState:
    """The state of torch's generators, of the CPU and of ``devices``, as it was."""

    def __init__(self, devices: set[torch.device]) -> None:
        self._cpu = torch.get_rng_state()
        self._others = [(one, _call(one, "get_rng_state")) for one in devices if one.type != "cpu"]

    def restore(self) -> None:
        """Let the same random numbers come once more."""
        torch.set_rng_state(self._cpu)
        for device, state in self._others:
            _call(device, "set_rng_state", state)


def _call(device: torch.device, name: str, *args: Any) -> Any:
    function = getattr(getattr(torch, device.type), name)
    takes_device = "device" in inspect.signature(function).parameters  # that of MPS does not
    return function(*args, device=device) if takes_device else function(*args)


class BufferSnapshots:
    """Copies of those buffers that a forward changes, such as a batch norm's statistics.

    Which ones that are is learnt from the first forwards, and again when modules have been put
    into or out of training mode: masks and tables, which can be large, are not copied for ever.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._num_training = -1
        self._constant: set[tuple[int, str]] | None = None
        self._taken: list[tuple[nn.Module, str, Tensor, Tensor | None]] = []

    def take(self) -> None:
        """Remember the buffers as they are now."""
        num_training = sum(module.training for module in self._model.modules())
        if num_training != self._num_training:
            self._num_training, self._constant = num_training, None
        constant = self._constant or set()
        with torch.no_grad():
            self._taken = [
                (module, name, buffer, None if (id(module), name) in constant else buffer.clone())
                for module in self._model.modules()
                for name, buffer in module._buffers.items()  # noqa: SLF001 - replaced ones go back too
                if buffer is not None
            ]

    def restore(self) -> None:
        """Put the buffers back."""
        with torch.no_grad():
            for module, name, buffer, copy in self._taken:
                module._buffers[name] = buffer  # noqa: SLF001
                if copy is not None:
                    buffer.copy_(copy)

    def release(self) -> None:
        """Let the copies go, after a forward that is kept."""
        if self._constant is None:
            self._constant = {
                (id(module), name)
                for module, name, buffer, copy in self._taken
                if copy is not None and buffer is module._buffers.get(name)  # noqa: SLF001
                and torch.equal(buffer, copy)
            }  # fmt: skip
        self._taken = []


class SetAsideGradients:
    """Gradients of earlier micro-batches, out of the way of a backward that may have to be undone.

    Args:
        parameters: Their ``grad`` is ``None`` from now on.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        self._earlier = [(parameter, parameter.grad) for parameter in parameters]
        self.drop_new()

    def drop_new(self) -> None:
        """Discard the gradients that came since."""
        for parameter, _ in self._earlier:
            parameter.grad = None

    def restore(self) -> None:
        """Put the earlier gradients back; those that came since are lost."""
        for parameter, earlier in self._earlier:
            parameter.grad = earlier

    def add_new(self) -> None:
        """Add the gradients that came since to the earlier ones, in place."""
        with torch.no_grad():
            for parameter, earlier in self._earlier:
                if earlier is None:
                    continue
                if parameter.grad is not None:
                    earlier.add_(parameter.grad)
                parameter.grad = earlier
