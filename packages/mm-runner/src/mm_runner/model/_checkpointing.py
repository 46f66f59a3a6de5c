"""Activation checkpointing: what modules compute between is computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from mm_runner.errors import ConfigError

from ._compiled_buffers import expect_constant_buffers, note_buffers
from ._kept_buffers import ForwardState, KnownChanges
from ._kept_inputs import InputVersions, with_copied_containers
from ._variants import Variant, make_variant, own_class

__all__ = ["check_can_checkpoint", "checkpoint_module", "checkpointed_names"]

_is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False
)
# Since torch 2.0.
_backward_id: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)  # noqa: SLF001


def check_can_checkpoint(module: nn.Module, name: str, where: str) -> None:
    """Check that what ``module`` computes is in the forward of its class.

    Args:
        module: To be checkpointed.
        name: Of the module in its model.
        where: The key that names it, for messages.

    Raises:
        ConfigError: If the module is called in a way of its own, which leads past a changed class,
            or has a part whose buffers cannot be replaced.
    """
    own_call = own_class(module).__call__ is not nn.Module.__call__
    # The one of torch.fx only writes better messages.
    if own_call and not isinstance(module, torch.fx.GraphModule):
        found = f"its class {own_class(module).__name__} has a __call__ of its own"
        remedy = "Let it have a forward instead, or name modules within it."
    elif "forward" in vars(module):
        found = "its forward was replaced on the object, as torch.compile and some libraries do"
        remedy = "Give the model without that (cfg['compile'] compiles it later), or name others."
    else:
        for part_name, part in module.named_modules():
            if isinstance(part, torch.jit.ScriptModule):
                found = f"its part {part_name!r} was scripted or traced by torch.jit"
                remedy = "Name modules outside of that, or give it as it was before torch.jit."
                break
        else:
            return
    raise ConfigError(f"{where}: {name!r} cannot be checkpointed, for {found}. {remedy}")


def checkpoint_module(module: nn.Module, name: str = "") -> None:
    """Let ``module`` keep only its inputs for the backward pass, in place.

    Where gradients are recorded, what it computes between its inputs and its outputs is dropped,
    and computed again in the backward pass: with the same random numbers, autocast and modes, and
    with its buffers as they were, of which the repetition changes none.

    Args:
        module: Has a forward of its own. Its hooks are called once, around the forward.
        name: Of the module in its model, for messages.
    """
    make_variant(module, _Checkpointed)
    module.__dict__["_known_changes"] = KnownChanges(name)


def checkpointed_names(model: nn.Module) -> list[str]:
    """Return the names of the modules in ``model`` that are checkpointed."""
    return [name for name, module in model.named_modules() if isinstance(module, _Checkpointed)]


class _Checkpointed(Variant):
    variant_state = ("_known_changes",)

    @override
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return super().forward(*args, **kwargs)
        values = (*args, *kwargs.values())
        run = _Run(self, tuple(kwargs), values)
        if _is_compiling():  # the compiler knows by itself what of a repetition counts
            note_buffers(self)
            outputs = checkpoint(run.compute, None, *values, use_reentrant=False)
            expect_constant_buffers(self)
            return outputs
        # torch looks for the device, whose random numbers it keeps, among these arguments only.
        parameter = next(self.parameters(), None)
        on_device = None if parameter is None else torch.empty(0, device=parameter.device)
        # It keeps these, too, and the forward may change its own.
        kept = with_copied_containers(values)
        outputs = checkpoint(run.compute, on_device, *kept, use_reentrant=False)
        run.raise_error()
        return outputs


class _Run:
    """Runs a module, and repeats that.

    Args:
        module: Checkpointed.
        names: Of the last arguments that it is called with.
        values: What it is called with.
    """

    def __init__(
        self, module: _Checkpointed, names: tuple[str, ...], values: tuple[Any, ...]
    ) -> None:
        self._module, self._names = module, names
        self._values: tuple[Any, ...] | None = values
        self._error: Exception | None = None

    def compute(self, _: Any, *values: Any) -> Any:
        """Call the module's own forward.

        Raises:
            ConfigError: If that did what cannot be repeated.
        """
        if _is_compiling():
            return self._call(values)
        given, self._values = self._values, None
        if given is None:
            return self._repeat(values)
        try:
            return self._compute_first(given, values)
        except Exception as error:  # noqa: BLE001 - raised below
            self._error = error
            return None

    def raise_error(self) -> None:
        """Raise what the module raised in its first run, if anything.

        Raised through an earlier torch's checkpoint, it would leave that open for as long as anyone
        keeps the error, and take in all that is computed afterwards.
        """
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # would keep itself, and what it has seen, alive

    def _compute_first(self, given: Sequence[Any], values: Sequence[Any]) -> Any:
        known = self._module.__dict__.setdefault("_known_changes", KnownChanges(""))
        self._known, self._inputs = known, InputVersions(values)
        self._state = ForwardState(self._module, known)
        # A forward that begins in a backward pass is part of the repetition of another one.
        if _backward_id() != -1:
            with self._state.restored():
                outputs = self._call(given)
                self._state.expect_constant_parameters()
                return outputs
        outputs = self._call(given)
        self._state.note_changes()
        if self._inputs.differ(values):
            self._known.refuse(
                "changes one of its inputs in place, which it would be repeated with. Let its "
                "first operation be one with inplace=False"
            )
        return outputs

    def _repeat(self, values: Sequence[Any]) -> Any:
        if self._inputs.differ(values):
            self._known.refuse(
                "has an input that was changed in place between the forward and the backward "
                "pass. Change it after the backward pass, or a copy of it"
            )
        with self._state.restored():
            return self._call(with_copied_containers(values))

    def _call(self, values: Sequence[Any]) -> Any:
        num_positional = len(values) - len(self._names)
        kwargs = dict(zip(self._names, values[num_positional:]))  # noqa: B905 - compiled, too
        return super(_Checkpointed, self._module).forward(*values[:num_positional], **kwargs)
