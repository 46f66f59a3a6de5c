"""Names for captured graphs: equal in every process that compiles the same."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mm_compile._torch import torch_version


def mark_of(graph_module: nn.Module, inputs: Sequence[Any]) -> str:
    """Name a graph by its code, its inputs, and the modes it is compiled under.

    Graphs of one mark compile to the same code, as far as may be told without compiling. Where
    two of one mark differ after all, the second one is compiled as if there were no mark.

    Args:
        graph_module: What dynamo captured.
        inputs: Its example inputs.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for part in _parts(graph_module, inputs):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def device_types_of(graph_module: nn.Module, inputs: Iterable[Any]) -> frozenset[str]:
    """Name the kinds of devices that a graph computes on."""
    tensors = [*graph_module.parameters(), *graph_module.buffers(), *inputs]
    types = frozenset(each.device.type for each in tensors if isinstance(each, Tensor))
    return types or frozenset({"cpu"})


def has_collectives(graph_module: nn.Module) -> bool:
    """Whether a graph communicates; torch may then communicate while it compiles it, too."""
    nodes = [
        node
        for module in graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    ]
    return any(
        "c10d" in str(node.target)
        or str(getattr(node.target, "__module__", "")).startswith("torch.distributed")
        for node in nodes
        if node.op == "call_function"
    )


def _parts(graph_module: nn.Module, inputs: Sequence[Any]) -> Iterable[str]:
    for name, module in graph_module.named_modules():
        yield f"{name}: {getattr(module, 'code', module)}"
    for each in (*graph_module.parameters(), *graph_module.buffers(), *inputs):
        yield _describe(each)
    yield repr(
        (
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            _autocast_state(),
        )
    )


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    strides = tuple(map(str, value.stride())) if value.layout == torch.strided else ()
    return repr(
        (
            type(value).__name__,
            str(value.dtype),
            tuple(map(str, value.shape)),  # sizes may be symbols
            strides,
            str(value.device),  # with the number: code of one GPU is of no use to another
            value.requires_grad,
        )
    )


def _autocast_state() -> tuple[Any, ...]:
    if torch_version() < (2, 4):
        return (torch.is_autocast_enabled(), torch.is_autocast_cpu_enabled())
    return tuple(
        (kind, str(torch.get_autocast_dtype(kind)))
        for kind in ("cpu", "cuda")
        if torch.is_autocast_enabled(kind)
    )
