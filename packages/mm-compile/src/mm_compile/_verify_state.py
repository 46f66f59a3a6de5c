"""What a call of a module changes besides its outputs, put back so that it can be called again."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
from torch import nn

_Attributes = dict[str, Any]


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
        self._attributes = [(part, _attributes(part)) for part in module.modules()]
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
        keep_version: Any = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]  # noqa: SLF001
        with torch.no_grad():
            for buffer, value in self._buffers:
                # An earlier forward of this step may have saved the buffer for its backward; the
                # values that it saw are those written here.
                with keep_version(buffer):
                    buffer.copy_(value)
        for part, attributes in self._attributes:
            _write_attributes(part, attributes)

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


def _attributes(part: nn.Module) -> _Attributes:
    # Counters, caches and lists of a user's own; a list is kept with what it holds.
    return {
        name: (value, value.copy() if isinstance(value, (list, dict, set)) else None)
        for name, value in vars(part).items()
        if not name.startswith("_") and not isinstance(value, nn.Module)
    }


def _write_attributes(part: nn.Module, saved: _Attributes) -> None:
    present = vars(part)
    for name in [name for name in present if not name.startswith("_") and name not in saved]:
        del present[name]
    for name, (value, content) in saved.items():
        if present.get(name) is not value:
            present[name] = value
        if content is not None and value != content:
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(content)
