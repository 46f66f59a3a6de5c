"""What a repeated forward begins with: all as it was, and what it does to that is lost."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.spectral_norm import SpectralNorm

from mm_runner.errors import ConfigError

from ._kept_attributes import PlainAttributes, noted_kinds
from ._kept_containers import KeptContainers
from ._kept_generators import KeptGenerators
from ._kept_parameters import KeptParameters
from ._kept_tensors import KeptTensors
from ._noted_tensors import SMALL, Noted, overlaps

__all__ = ["ForwardState", "KnownChanges"]


class KnownChanges:
    """What is known of a module from its forwards so far.

    Args:
        name: Of the module in its model, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        # The modes, of all modules in it, that it ran in.
        self.modes: set[tuple[bool, ...]] = set()
        # Of those, in which its parameters were compared.
        self.compared: set[tuple[bool, ...]] = set()
        # Names of the large buffers, of the tensors in attributes and of the parameters that its
        # forwards change.
        self.buffers: set[str] = set()
        self.parameters: set[str] = set()
        self.shares_memory = False

    def refuse(self, what: str) -> NoReturn:
        """Raise the error that the module does what cannot be repeated."""
        raise ConfigError(
            f"activation_checkpointing: {self.name!r} {what}, or leave the "
            "module out of activation_checkpointing."
        )


class _Part(NamedTuple):
    module: nn.Module
    training: bool
    buffers: dict[str, Noted | None]
    attributes: PlainAttributes


class ForwardState:
    """A module as it is now, before its forward.

    Args:
        module: About to run.
        known: What is known of it, and is added to.
    """

    def __init__(self, module: nn.Module, known: KnownChanges) -> None:
        self._known = known
        modules = list(module.named_modules())
        self._modes = tuple([part.training for _, part in modules])
        self._is_new = self._modes not in known.modes
        if self._is_new:
            _expect_repeatable(modules, known)
        self._is_sharing = self._is_new or known.shares_memory
        # Those whose changes count, by name.
        self._watched: list[tuple[str, Noted]] = []
        noted: dict[int, Noted] = {}  # one may be in several modules
        kinds = noted_kinds()
        others: list[tuple[nn.Module, str, Any]] = []
        self._parts = [
            _Part(
                part,
                part.training,
                self._note_buffers(name, part, noted),
                PlainAttributes(part, kinds, others),
            )
            for name, part in modules
        ]
        self._tensors: KeptTensors | None = None
        self._generators: KeptGenerators | None = None
        if others:
            self._note_others(others, modules, noted)
        is_compared = self._modes not in known.compared
        self._parameters = KeptParameters(
            modules, known.refuse, known.parameters, is_copied=is_compared
        )
        self._random = _random_state()
        # What was computed before the forward is no part of it.
        self._computed = _computed_before(module) if module._forward_pre_hooks else {}  # noqa: SLF001

    def note_changes(self) -> None:
        """Learn from what the forward did.

        Raises:
            ConfigError: If it changed what it cannot be repeated without.
        """
        if self._is_sharing:
            self._expect_no_shared_changes()
        watched = []
        for name, noted in self._watched:
            if noted.values is None:
                if noted.is_changed():
                    self._known.refuse(
                        f"changed its buffer {name!r}, which it had not changed before and which "
                        "is too large to be copied in each step. Let it change that from its "
                        "first step on"
                    )
                watched.append((name, noted))
            elif noted.values.numel() <= SMALL or name in self._known.buffers:
                noted.tensor = None
            elif noted.is_changed():
                self._known.buffers.add(name)
                noted.tensor = None
            else:
                watched.append((name, noted))
        self._watched = watched
        if self._tensors is not None:
            self._tensors.note_changes()
        self._parameters.note_changes()
        self._known.compared.add(self._modes)
        self._known.modes.add(self._modes)

    def expect_constant_parameters(self) -> None:
        """Expect that a forward within ``restored`` changed none that is not known to change.

        Raises:
            ConfigError: If it did.
        """
        self._parameters.note_changes(is_first=False)
        self._known.compared.add(self._modes)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Let the module be as it was, with stand-ins for its buffers.

        Raises:
            ConfigError: If it cannot be, because its parameters or large buffers are others or
                were changed.
        """
        self._parameters.expect_unchanged()
        self._expect_buffers()
        stand_ins: dict[int, Tensor] = {}
        # What undoes all, as far as it was done; torch ends a repetition by an exception, once it
        # has what it needs.
        with ExitStack() as undo:
            undo.callback(_set_random_state, _random_state())
            root = vars(self._parts[0].module)
            undo.callback(
                root.update, {name: root[name] for name in self._computed if name in root}
            )
            now = [
                (part.module, part.module.training, part.module._buffers.copy())  # noqa: SLF001
                for part in self._parts
            ]
            undo.callback(_set_all, now)
            containers: list[Any] = []
            attributes: list[Callable[[], None]] = []
            undo.callback(_call_all, attributes)
            attributes += (part.attributes.restore(containers) for part in self._parts)
            if containers:
                undo.callback(KeptContainers(containers).restore)
            undo.callback(self._parameters.restore())
            if self._generators is not None:
                undo.callback(self._generators.restore())
            _set_random_state(self._random)
            root.update(self._computed)
            for kept in self._parts:
                # Replaced, not changed in place: autograd may hold them.
                _set(kept.module, kept.training, _stand_ins(kept.buffers, stand_ins))
            if self._tensors is not None:
                self._tensors.put(stand_ins)
            yield

    def _note_buffers(
        self, prefix: str, part: nn.Module, found: dict[int, Noted]
    ) -> dict[str, Noted | None]:
        buffers: dict[str, Noted | None] = {}
        for name, buffer in part._buffers.items():  # noqa: SLF001
            noted = None if buffer is None else found.get(id(buffer))
            if noted is None and buffer is not None:
                is_large = buffer.numel() > SMALL
                is_watched = is_large or self._is_sharing
                full = _joined(prefix, name) if is_watched else ""
                is_copied = self._is_new or not is_large or full in self._known.buffers
                noted = Noted(buffer, is_copied=is_copied, is_watched=is_watched)
                found[id(buffer)] = noted
                if is_watched:
                    self._watched.append((full, noted))
            buffers[name] = noted
        return buffers

    def _note_others(
        self,
        others: list[tuple[nn.Module, str, Any]],
        modules: list[tuple[str, nn.Module]],
        buffers: dict[int, Noted],
    ) -> None:
        prefixes = {id(part): prefix for prefix, part in modules}
        with_tensors, generators = [], []
        for part, name, value in others:
            if isinstance(value, (Tensor, tuple)):
                with_tensors.append((part, name, _joined(prefixes[id(part)], name), value))
            else:
                generators.append(value)
        self._tensors = KeptTensors(
            with_tensors, buffers, self._known.buffers, is_copied=self._is_new
        )
        self._generators = KeptGenerators(generators)

    def _expect_no_shared_changes(self) -> None:
        for name, noted, other, another in overlaps(self._watched):
            self._known.shares_memory = True
            # Each step with a look at the values would wait for the device.
            if any(one.is_changed(by_value=self._is_new) for one in (noted, another)):
                self._known.refuse(
                    f"changes its buffers {name!r} and {other!r}, which share memory. Register one "
                    "of them, and let the forward take the other from it"
                )

    def _expect_buffers(self) -> None:
        for name, noted in self._watched:
            if noted.is_changed():
                if noted.values is None:
                    self._known.refuse(
                        f"has a buffer, {name!r}, of more than {SMALL:,} numbers that was changed "
                        "between the forward and the backward pass, as it had not been in the "
                        "first step. Change it after the backward pass"
                    )
                self._known.buffers.add(name)


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _expect_repeatable(modules: list[tuple[str, nn.Module]], known: KnownChanges) -> None:
    for name, module in modules:
        if isinstance(module, torch.jit.ScriptModule):
            known.refuse(
                f"has a scripted or traced part, {name!r}, whose buffers cannot be replaced for a "
                "repetition. Name modules outside of it"
            )
        if _is_lazy(module):
            known.refuse(
                "has lazy modules, which begin in a forward, and cannot begin again. Call the "
                "model once without gradients before it is trained"
            )


def _is_lazy(module: nn.Module) -> bool:
    return isinstance(module, LazyModuleMixin) and module.has_uninitialized_params()


def _computed_before(module: nn.Module) -> dict[str, Tensor]:
    # By ``nn.utils.spectral_norm``, from buffers that it changes first.
    hooks = module._forward_pre_hooks.values()  # noqa: SLF001
    names = [hook.name for hook in hooks if isinstance(hook, SpectralNorm)]
    return {name: vars(module)[name] for name in names if name in vars(module)}


def _set(module: nn.Module, training: bool, buffers: dict[str, Tensor | None]) -> None:  # noqa: FBT001
    if module.training != training:
        module.training = training
    if module._buffers or buffers:  # noqa: SLF001
        module._buffers.clear()  # noqa: SLF001
        module._buffers.update(buffers)  # noqa: SLF001


def _set_all(states: list[tuple[nn.Module, bool, dict[str, Tensor | None]]]) -> None:
    for state in states:
        _set(*state)


def _call_all(functions: list[Callable[[], None]]) -> None:
    for function in functions:
        function()


def _stand_ins(
    buffers: dict[str, Noted | None], made: dict[int, Tensor]
) -> dict[str, Tensor | None]:
    found: dict[str, Tensor | None] = {}
    for name, noted in buffers.items():
        if noted is not None and id(noted) not in made:
            made[id(noted)] = noted.stand_in()
        found[name] = None if noted is None else made[id(noted)]
    return found


def _random_state() -> tuple[Any, Any]:
    """Return the state of the random numbers that torch does not keep: Python's and NumPy's."""
    numpy_random = sys.modules.get("numpy.random")
    return random.getstate(), None if numpy_random is None else numpy_random.get_state()


def _set_random_state(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    if state[1] is not None:
        sys.modules["numpy.random"].set_state(state[1])
