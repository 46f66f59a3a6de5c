"""One call of a region on copies of its inputs: its outputs, and gradients of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mm_compile._region import Region
from mm_compile._torch import torch_version

from ._inputs import CopiedInputs, Named, Shake, tensors_in
from ._state import SavedState

# ``run(args, kwargs)``
Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True)
class Trace:
    """What a call computed.

    Attributes:
        outputs: Names and values of the tensors in its result.
        gradients: Names and values of the gradients of parameters and inputs.
        random: State of torch's generators after its forward.
    """

    outputs: list[Named]
    gradients: list[Named]
    random: list[Tensor]

    def drew_like(self, other: Trace) -> bool:
        """Whether the generators are where the other call left them."""
        return all(map(torch.equal, self.random, other.random))


def trace(
    run: Run,
    region: Region,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    state: SavedState,
    shake: float = 0.0,
) -> Trace:
    """Call a region's code on copies of the inputs, and go backward from its outputs.

    The gradients that backward begins with are ones of random sign, the same in every call: sums
    of an output may be constant, as behind a normalization, and have no gradient. With ``shake``,
    they and the inputs are moved by that part of themselves.
    """
    copies = CopiedInputs(region.__wrapped__, args, kwargs, shake)
    # Checkpointing counts what a forward saves; this one is not for it.
    with torch.autograd.graph.saved_tensors_hooks(_unchanged, _unchanged):
        outputs = list(tensors_in("the output", run(copies.args, copies.kwargs)))
        random = state.torch_random()
        targets = [
            (repr(name), parameter)
            for name, parameter in region.module.named_parameters()
            if parameter.requires_grad
        ]
        with _outside_autocast(region.module):
            gradients = _gradients(outputs, [*targets, *copies.leaves], Shake(shake))
    return Trace([(name, value.detach()) for name, value in outputs], gradients, random)


def _unchanged(value: Any) -> Any:
    return value


def _gradients(outputs: list[Named], targets: list[Named], shake: Shake) -> list[Named]:
    sources = [output for _, output in outputs if output.requires_grad]
    if not sources or not targets:
        return []
    signs = [shake.signs_like(source) for source in sources]
    found = torch.autograd.grad(
        sources,
        [target for _, target in targets],
        [shake(sign) for sign in signs],
        allow_unused=True,
    )
    return [
        (f"the gradient of {name}", torch.zeros_like(target) if gradient is None else gradient)
        for (name, target), gradient in zip(targets, found, strict=True)
    ]


def active_autocast(module: nn.Module) -> tuple[str, torch.dtype] | None:
    """Return device type and dtype of the autocast that a call of ``module`` would run under."""
    tensor = next(module.parameters(), None)
    kind = "cpu" if tensor is None else tensor.device.type
    if torch_version() >= (2, 4):
        return (kind, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None
    if kind == "cpu":
        return (kind, torch.get_autocast_cpu_dtype()) if torch.is_autocast_cpu_enabled() else None
    return (kind, torch.get_autocast_gpu_dtype()) if torch.is_autocast_enabled() else None


@contextmanager
def _outside_autocast(module: nn.Module) -> Iterator[None]:
    # As in a training step, whose backward comes after autocast has ended.
    active = active_autocast(module)
    if active is None:
        yield
        return
    with torch.autocast(active[0], enabled=False):
        yield


@contextmanager
def without_autocast_cache() -> Iterator[None]:
    """Let autocast convert weights anew, and keep none of them."""
    # Weights that autocast converts are kept for the other modules that use them, with a graph
    # that must not end in a call that is none.
    is_enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(is_enabled)


def is_uninitialized(module: nn.Module) -> bool:
    """Whether the shapes of a lazy module's tensors are not known yet."""
    return any(map(is_lazy, (*module.parameters(), *module.buffers())))


def holds_shards(module: nn.Module) -> bool:
    """Whether modules inside of it have sharded parameters of their own."""
    # Their hooks gather and scatter for every forward and backward inside, real or not. A module
    # that is sharded itself has its hooks around this one.
    parts = (part for part in module.modules() if part is not module)
    return any(
        base.__name__ in {"FSDPModule", "FullyShardedDataParallel"}
        for part in parts
        for base in type(part).__mro__
    )
