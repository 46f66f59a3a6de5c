"""Activation checkpointing: what modules compute between is computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from mm_runner.errors import ConfigError

from ._compiled_buffers import expect_constant_buffers, note_buffers
from ._kept_buffers import ForwardState, KnownChanges, version_of
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
        ConfigError: If the module is called in a way of its own, which leads past a changed class.
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
        run = _Run(self, tuple(kwargs))
        if _is_compiling():  # the compiler knows by itself what of a repetition counts
            note_buffers(self)
            outputs = checkpoint(run.compute, None, *args, *kwargs.values(), use_reentrant=False)
            expect_constant_buffers(self)
            return outputs
        # torch looks for the device, whose random numbers it keeps, among these arguments only.
        parameter = next(self.parameters(), None)
        on_device = None if parameter is None else torch.empty(0, device=parameter.device)
        return checkpoint(run.compute, on_device, *args, *kwargs.values(), use_reentrant=False)


class _Run:
    """Runs a module, and repeats that.

    Args:
        module: Checkpointed.
        names: Of the last arguments that it is called with.
    """

    def __init__(self, module: _Checkpointed, names: tuple[str, ...]) -> None:
        self._module, self._names = module, names
        self._state: ForwardState | None = None

    def compute(self, _: Any, *values: Any) -> Any:
        """Call the module's own forward.

        Raises:
            ConfigError: If that did what cannot be repeated.
        """
        num_positional = len(values) - len(self._names)
        args = values[:num_positional]
        kwargs = dict(zip(self._names, values[num_positional:]))  # noqa: B905 - compiled, too
        forward = super(_Checkpointed, self._module).forward
        if _is_compiling():
            return forward(*args, **kwargs)
        is_repetition = self._state is not None
        if self._state is None:
            known = self._module.__dict__.setdefault("_known_changes", KnownChanges(""))
            self._state = ForwardState(self._module, known)
        # A forward that begins in a backward pass is part of the repetition of another one.
        if is_repetition or _backward_id() != -1:
            with self._state.restored():
                return forward(*args, **kwargs)
        inputs = [(tensor, version_of(tensor)) for tensor in _tensors(values)]
        outputs = forward(*args, **kwargs)
        self._state.note_changes()
        if any(version_of(tensor) != version for tensor, version in inputs):
            self._state.refuse(
                "changes one of its inputs in place, which it would be repeated with. Let its "
                "first operation be one with inplace=False"
            )
        return outputs


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))
