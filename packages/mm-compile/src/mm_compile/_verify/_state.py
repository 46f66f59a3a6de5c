"""What a call of a module changes besides its outputs, put back so that it can be called again."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
from torch import nn

from ._attributes import SavedAttributes, keep_version


class SavedState:
    """Random numbers, buffers and plain attributes as they are when this is made.

    Args:
        module: The module that is about to be called.
    """

    def __init__(self, module: nn.Module) -> None:
        tensors = (*module.parameters(), *module.buffers())
        self._devices = sorted(
            {
                tensor.device
                for tensor in tensors
                if hasattr(_module_of(tensor.device), "get_rng_state")
            },
            key=str,
        )
        self._random = self._read_random()
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
        self._attributes = SavedAttributes(module.modules())
        self._holdings = [(part, dict(part._buffers)) for part in module.modules()]  # noqa: SLF001

    def random_changed(self, later: list[torch.Tensor]) -> bool:
        """Whether torch's generators had drawn numbers when ``later`` was read."""
        return not all(map(torch.equal, self._random[0], later))

    def torch_random(self) -> list[torch.Tensor]:
        """Return the state of torch's generators as it is now."""
        return [
            torch.get_rng_state(),
            *(_module_of(device).get_rng_state(*_index(device)) for device in self._devices),
        ]

    def restore(self) -> None:
        """Put everything back."""
        self._write_random()
        for part, holding in self._holdings:
            if any(part._buffers.get(name) is not buffer for name, buffer in holding.items()):  # noqa: SLF001
                part._buffers.update(holding)  # noqa: SLF001
        with torch.no_grad():
            for buffer, value in self._buffers:
                with keep_version(buffer):
                    buffer.copy_(value)
        self._attributes.restore()

    def _read_random(self) -> tuple[list[torch.Tensor], Any, Any]:
        numpy = sys.modules.get("numpy")
        numpys = None if numpy is None else numpy.random.get_state()
        return self.torch_random(), random.getstate(), numpys

    def _write_random(self) -> None:
        states, pythons, numpys = self._random
        torch.set_rng_state(states[0])
        for device, state in zip(self._devices, states[1:], strict=True):
            _module_of(device).set_rng_state(state, *_index(device))
        random.setstate(pythons)
        if numpys is not None:
            sys.modules["numpy"].random.set_state(numpys)


def _module_of(device: torch.device) -> Any:
    # The CPU's generator is torch's own, and read anyway.
    return None if device.type == "cpu" else getattr(torch, device.type, None)


def _index(device: torch.device) -> tuple[torch.device, ...]:
    # Of Apple's there is one, and its functions do not ask which.
    return () if device.type == "mps" else (device,)
