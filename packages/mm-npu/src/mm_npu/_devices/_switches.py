"""Switches of ``torch_npu``: how operators are compiled and tensors are laid out."""

import os
from typing import NamedTuple

from mm_npu._availability import is_npu_available
from mm_npu._settings import parse_boolean

from . import _torch_npu as torch_npu

# The second is MMEngine's, which takes every value but the empty one for yes, False included.
_JIT_COMPILE = ("MM_NPU_JIT_COMPILE", "NPUJITCompile")
_INTERNAL_FORMAT = ("MM_NPU_INTERNAL_FORMAT",)


class NpuSwitches(NamedTuple):
    """The switches that were set; None is the default of ``torch_npu``.

    Attributes:
        jit_compile: Whether operators are compiled when they meet a new shape, instead of being
            taken from the binaries of CANN. Best off where shapes change.
        internal_format: Whether tensors may be laid out in formats of the device, which some
            operators are faster with and others have to undo.
    """

    jit_compile: bool | None = None
    internal_format: bool | None = None


def set_npu_switches(
    jit_compile: bool | str | None = None,  # noqa: FBT001 - the value of a switch
    internal_format: bool | str | None = None,  # noqa: FBT001
) -> NpuSwitches:
    """Set the compile mode and the formats of ``torch_npu`` for this process.

    Where there is no NPU nothing is set, so that a program needs no branch.

    Opens a context on the current device with some releases of ``torch_npu``: call it after the
    device is set, as ``init_dist`` of mm-dist does.

    Args:
        jit_compile: True or False, or a word for it, such as ``"off"``. Defaults to the variable
            ``MM_NPU_JIT_COMPILE``, else ``NPUJITCompile``, else to what ``torch_npu`` does.
        internal_format: The same, with the variable ``MM_NPU_INTERNAL_FORMAT``.

    Returns:
        The switches that were set.

    Raises:
        ConfigError: If an argument or a variable is not a boolean, on every machine.

    Example:
        >>> set_npu_switches(jit_compile="off")  # there is no NPU
        NpuSwitches(jit_compile=None, internal_format=None)
    """
    switches = read_npu_switches(jit_compile, internal_format)
    # Looked for only if there is something to switch: torch_npu takes seconds to import.
    if switches == NpuSwitches() or not is_npu_available():
        return NpuSwitches()
    _apply(switches)
    return switches


def read_npu_switches(
    jit_compile: bool | str | None = None,  # noqa: FBT001 - the value of a switch
    internal_format: bool | str | None = None,  # noqa: FBT001
) -> NpuSwitches:
    """Return what :func:`set_npu_switches` would set on an NPU, and set nothing.

    Args:
        jit_compile: As for :func:`set_npu_switches`, with the same environment variables.
        internal_format: The same.

    Raises:
        ConfigError: If an argument or a variable is not a boolean.

    Example:
        >>> read_npu_switches(jit_compile="off")
        NpuSwitches(jit_compile=False, internal_format=None)
    """
    return NpuSwitches(
        _read("jit_compile", jit_compile, _JIT_COMPILE),
        _read("internal_format", internal_format, _INTERNAL_FORMAT),
    )


def _read(name: str, value: object, variables: tuple[str, ...]) -> bool | None:
    if value is not None:
        return parse_boolean(name, value)
    named = next((variable for variable in variables if os.environ.get(variable)), None)
    return None if named is None else parse_boolean(named, os.environ[named])


def _apply(switches: NpuSwitches) -> None:
    npu = torch_npu.load().npu
    if switches.jit_compile is not None:
        npu.set_compile_mode(jit_compile=switches.jit_compile)
    if switches.internal_format is not None:
        npu.config.allow_internal_format = switches.internal_format
