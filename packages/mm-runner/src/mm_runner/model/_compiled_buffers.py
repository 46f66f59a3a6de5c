"""Buffers of modules that are repeated in compiled code.

There a repetition begins with the buffers as they are by then. So none may change in the forward,
but for statistics that nothing is computed from. That shows while torch compiles: tensors without
values stand for them, and count what changes them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mm_runner.errors import ConfigError

__all__ = ["expect_constant_buffers", "note_buffers"]

# In training, what these compute does not depend on the statistics that they update.
_NORMS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
# By identity, with the tensor, so that no other gets its place; while one forward is compiled.
_noted: dict[int, tuple[Tensor, int]] = {}


def note_buffers(module: nn.Module) -> None:
    """Note the buffers of ``module`` before its forward; only while torch compiles."""
    from torch._dynamo.comptime import comptime  # noqa: PLC0415 - takes seconds to import

    comptime(_forget)
    for part in module.modules():
        if not isinstance(part, _NORMS):
            for buffer in part._buffers.values():  # noqa: SLF001 - where torch looks for them
                if buffer is not None:
                    comptime(_note)


def expect_constant_buffers(module: nn.Module) -> None:
    """Expect that the forward changed no buffer of ``module``; only while torch compiles.

    Raises:
        ConfigError: Within torch's own error, if it changed one.
    """
    from torch._dynamo.comptime import comptime  # noqa: PLC0415

    for part in module.modules():
        if not isinstance(part, _NORMS):
            for buffer in part._buffers.values():  # noqa: SLF001
                if buffer is not None:
                    comptime(_compare)


def _forget(_: Any) -> None:
    _noted.clear()  # of what torch gave up compiling


def _note(context: Any) -> None:
    for tensor in _stand_ins(context):
        _noted[id(tensor)] = tensor, tensor._version  # noqa: SLF001


def _compare(context: Any) -> None:
    versions = [(_noted.get(id(one), (one, one._version)), one) for one in _stand_ins(context)]  # noqa: SLF001
    if any(version != tensor._version for (_, version), tensor in versions):  # noqa: SLF001
        raise ConfigError(
            "activation_checkpointing: a module that it names changes a buffer in its forward, "
            "which compiled code cannot repeat. Leave that module out of "
            "activation_checkpointing, or do without compile."
        )


def _stand_ins(context: Any) -> list[Tensor]:
    variable = context.get_local("buffer")
    return [variable.as_fake()] if hasattr(variable, "as_fake") else []  # not in an early torch 2
