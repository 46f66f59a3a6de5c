"""What a repeated forward begins with: all as it was, and what it does to buffers is lost."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from mm_runner.errors import ConfigError

__all__ = ["ForwardState", "KnownChanges", "version_of"]

# Of that many numbers, a copy costs next to nothing.
_SMALL = 1 << 16


class KnownChanges:
    """What is known of a module from its forwards so far.

    Args:
        name: Of the module in its model, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        # The modes, of all modules in it, that it ran in; and names of buffers that it changes.
        self.modes: set[tuple[bool, ...]] = set()
        self.buffers: set[str] = set()


def version_of(tensor: Tensor) -> int:
    """Return torch's count of changes to a tensor; those of inference mode have none."""
    return -1 if tensor.is_inference() else tensor._version  # noqa: SLF001


class _Part(NamedTuple):
    name: str
    module: nn.Module
    training: bool
    buffers: dict[str, Tensor | None]
    parameters: dict[str, nn.Parameter | None]


class _Noted(NamedTuple):
    """A tensor before a forward, and a copy of its values, where one was made."""

    tensor: Tensor
    version: int
    values: Tensor | None


class ForwardState:
    """A module as it is now, before its forward.

    Args:
        module: About to run.
        known: What is known of it, and is added to.
    """

    def __init__(self, module: nn.Module, known: KnownChanges) -> None:
        self._known = known
        self._parts = [
            _Part(name, part, part.training, dict(part._buffers), dict(part._parameters))  # noqa: SLF001
            for name, part in module.named_modules()
        ]
        self._modes = tuple(part.training for part in self._parts)
        self._random = _random_state()
        self._buffers: dict[int, _Noted] = {}
        for name, buffer in self._named_buffers():
            if id(buffer) not in self._buffers:  # one may be in several modules
                values = _copy(buffer) if self._is_copied(name, buffer) else None
                self._buffers[id(buffer)] = _Noted(buffer, version_of(buffer), values)
        # Counts of changes, none for those that the forward changes itself; requires_grad.
        self._parameters: dict[int, tuple[int | None, bool]] = {
            id(parameter): (version_of(parameter), parameter.requires_grad)
            for _, parameter in self._named_parameters()
        }

    def note_changes(self) -> None:
        """Learn from what the forward did.

        Raises:
            ConfigError: If it changed what it cannot be repeated without.
        """
        for name, buffer in self._named_buffers():
            _, version, values = self._buffers[id(buffer)]
            is_counted = version != version_of(buffer)
            if values is None:
                if is_counted:
                    self.refuse(
                        f"changed its buffer {name!r}, which it had not changed before and which "
                        "is too large to be copied in each step. Let it change that from its "
                        "first step on"
                    )
                continue
            is_told = buffer.numel() <= _SMALL or name in self._known.buffers
            # What some kernels and ``buffer.data`` change is not counted.
            if not is_told and (is_counted or not torch.equal(values, buffer)):
                self._known.buffers.add(name)
        for name, parameter in self._named_parameters():
            before, requires_grad = self._parameters[id(parameter)]
            if before == version_of(parameter):
                continue
            if not requires_grad:
                self.refuse(
                    f"changes {name!r}, a parameter without gradients, in its forward. Let that be "
                    "a buffer (register_buffer), which is repeated from what it was"
                )
            self._parameters[id(parameter)] = (None, requires_grad)
        self._known.modes.add(self._modes)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Let the module be as it was, with stand-ins for its buffers.

        Raises:
            ConfigError: If it cannot be, because its parameters are others or were changed.
        """
        self._expect_parameters()
        stand_ins = {number: _stand_in(noted) for number, noted in self._buffers.items()}
        now = [(part, part.module.training, dict(part.module._buffers)) for part in self._parts]  # noqa: SLF001
        switched = [
            (parameter, parameter.requires_grad)
            for _, parameter in self._named_parameters()
            if parameter.requires_grad != self._parameters[id(parameter)][1]
        ]
        random_state = _random_state()
        try:
            _set_random_state(self._random)
            for parameter, requires_grad in switched:
                parameter.requires_grad_(not requires_grad)
            for part in self._parts:
                # Replaced, not changed in place: autograd may hold them.
                buffers = {
                    name: None if buffer is None else stand_ins[id(buffer)]
                    for name, buffer in part.buffers.items()
                }
                _set(part.module, part.training, buffers)
            yield
        finally:  # torch ends a repetition by an exception, once it has what it needs
            for part, training, before in now:
                _set(part.module, training, before)
            for parameter, requires_grad in switched:
                parameter.requires_grad_(requires_grad)
            _set_random_state(random_state)

    def refuse(self, what: str) -> NoReturn:
        """Raise the error that the module does what cannot be repeated."""
        raise ConfigError(
            f"activation_checkpointing: {self._known.name!r} {what}, or leave the "
            "module out of activation_checkpointing."
        )

    def _is_copied(self, name: str, buffer: Tensor) -> bool:
        is_new = self._modes not in self._known.modes
        return is_new or buffer.numel() <= _SMALL or name in self._known.buffers

    def _expect_parameters(self) -> None:
        for part in self._parts:
            for name, parameter in part.parameters.items():
                if parameter is None:
                    continue
                now = part.module._parameters.get(name)  # noqa: SLF001
                if now is not parameter and not _is_same_sharded(now, parameter):
                    self.refuse(
                        f"has another {_joined(part.name, name)!r} in the backward pass than in "
                        "the forward, as after torch.func.functional_call. Call the model itself"
                    )
                version, _ = self._parameters[id(parameter)]
                if now is parameter and version not in (None, version_of(parameter)):
                    self.refuse(
                        f"has a parameter, {_joined(part.name, name)!r}, that was changed between "
                        "the forward and the backward pass. Change it after the backward pass"
                    )

    def _named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        for part in self._parts:
            for name, buffer in part.buffers.items():
                if buffer is not None:
                    yield _joined(part.name, name), buffer

    def _named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for part in self._parts:
            for name, parameter in part.parameters.items():
                if parameter is not None:
                    yield _joined(part.name, name), parameter


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _set(module: nn.Module, training: bool, buffers: dict[str, Tensor | None]) -> None:  # noqa: FBT001
    if module.training != training:
        module.training = training
    if module._buffers or buffers:  # noqa: SLF001
        module._buffers.clear()  # noqa: SLF001
        module._buffers.update(buffers)  # noqa: SLF001


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _stand_in(noted: _Noted) -> Tensor:
    if noted.values is None:  # the forward does not change it
        return noted.tensor
    if not noted.tensor.requires_grad:
        return noted.values.clone()
    # As what was computed: a leaf of autograd's could not be changed in place.
    with torch.enable_grad():
        return noted.values.detach().requires_grad_().clone()


def _is_same_sharded(one: Tensor | None, other: Tensor) -> bool:
    # Sharded parameters are gathered, and that is another object, for the time they are needed.
    return one is not None and hasattr(one, "full_tensor") != hasattr(other, "full_tensor")


def _random_state() -> tuple[Any, Any]:
    """Return the state of the random numbers that torch does not keep: Python's and NumPy's."""
    numpy_random = sys.modules.get("numpy.random")
    return random.getstate(), None if numpy_random is None else numpy_random.get_state()


def _set_random_state(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    if state[1] is not None:
        sys.modules["numpy.random"].set_state(state[1])
