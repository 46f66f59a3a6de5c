"""Buffers of modules that are repeated in compiled code.

There a repetition begins with the buffers as they are by then. So none may change in the forward,
but for statistics that nothing is computed from. That shows while torch compiles: tensors without
values stand for them, and count what changes them.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor, fx, nn

from mm_runner.errors import ConfigError

from ._variants import Variant

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
_FORWARDS = (nn.BatchNorm2d.forward, nn.SyncBatchNorm.forward, nn.InstanceNorm2d.forward)
# Functions that do the same.
_UPDATES = ("batch_norm", "instance_norm")
# By identity, with the tensor, so that no other gets its place; while one forward is compiled.
_noted: dict[int, tuple[Tensor, int]] = {}


def note_buffers(module: nn.Module) -> None:
    """Note the buffers of ``module`` before its forward; only while torch compiles."""
    from torch._dynamo.comptime import comptime  # noqa: PLC0415 - takes seconds to import

    comptime(_forget)
    for part in module.modules():
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
        if isinstance(part, _NORMS):
            for name, buffer in part._buffers.items():  # noqa: B007, PERF102, SLF001 - by name
                if buffer is not None:
                    comptime(_compare_statistics)
        else:
            for buffer in part._buffers.values():  # noqa: SLF001
                if buffer is not None:
                    comptime(_compare)


def _forget(_: Any) -> None:
    _noted.clear()  # of what torch gave up compiling


def _note(context: Any) -> None:
    tensor = _stand_in(context)
    if tensor is not None:
        _noted[id(tensor)] = tensor, tensor._version  # noqa: SLF001


def _compare(context: Any) -> None:
    if _is_changed(context):
        _refuse("changes a buffer in its forward")


def _compare_statistics(context: Any) -> None:
    if _stand_in(context) is None:
        return
    kind = context.get_local("part").python_type()
    is_own = _own_forward(kind) not in _FORWARDS
    reads, updates = _uses(_in_what_is_repeated(context))
    if context.get_local("name").as_python_constant() == "num_batches_tracked":
        if is_own and reads and _is_changed(context):
            _refuse(f"computes with a count that the forward of its {kind.__name__} changes")
    elif is_own and _is_changed(context):
        _refuse(f"changes a buffer in the forward of its {kind.__name__}")
    elif reads and updates:  # this change is not counted
        _refuse("computes with statistics that a normalisation in it changes")


def _is_changed(context: Any) -> bool:
    tensor = _stand_in(context)
    if tensor is None:
        return False
    _, version = _noted.get(id(tensor), (tensor, tensor._version))  # noqa: SLF001
    return version != tensor._version  # noqa: SLF001


def _refuse(what: str) -> NoReturn:
    raise ConfigError(
        f"activation_checkpointing: a module that it names {what}, which compiled code cannot "
        "repeat. Leave that module out of activation_checkpointing, or do without compile."
    )


def _stand_in(context: Any) -> Tensor | None:
    variable = context.get_local("buffer")
    return variable.as_fake() if hasattr(variable, "as_fake") else None  # not in an early torch 2


def _own_forward(kind: type) -> Any:
    """Return the forward of a class without what it does besides."""
    owners = [one for one in kind.__mro__ if "forward" in vars(one)]
    return next((vars(one)["forward"] for one in owners if not issubclass(one, Variant)), None)


def _in_what_is_repeated(context: Any) -> list[fx.Node]:
    """Return what stands for the buffer in the graphs of what is repeated."""
    node = context.get_local("buffer").as_proxy().node
    graphs = context._i_will_not_complain_if_bc_breaks_InstructionTranslator().output.nn_modules  # noqa: SLF001
    found = []
    for user in node.users:
        called = user.args[0] if user.args else None
        inner = graphs.get(called.target) if isinstance(called, fx.Node) else None
        if isinstance(inner, fx.GraphModule):
            given = [one for one in inner.graph.nodes if one.op == "placeholder"]
            places = zip(user.args[1:], given)  # noqa: B905 - there may be more
            found += [one for value, one in places if value is node]
    return found


def _uses(nodes: list[fx.Node]) -> tuple[bool, bool]:
    """Return whether anything is computed from ``nodes``, and whether they are updated."""
    reads = updates = False
    for node in nodes:
        for user in node.users:
            if getattr(user.target, "__name__", None) in _UPDATES:
                updates = updates or _is_training(user)
            elif user.users:
                reads = True
    return reads, updates


def _is_training(update: fx.Node) -> bool:
    if len(update.args) > 5:  # all of these have it there
        return update.args[5] is True
    return True in (update.kwargs.get("training"), update.kwargs.get("use_input_stats"))
