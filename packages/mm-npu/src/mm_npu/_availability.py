"""Whether Ascend NPUs can be used: looked up when asked, with the reason if not.

Reads only. No context is created on a device, no compile mode is switched, and the environment is
left as it was: ``torch_npu`` changes it while it is imported, even if that import fails.
"""

import os
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"

# What torch_npu raises where it is installed but cannot work: a missing library of CANN, a driver
# that does not answer, a torch of another version.
_BROKEN = (ImportError, OSError, RuntimeError, AttributeError)


def is_npu_available() -> bool:
    """Say whether an Ascend NPU can be used here.

    Imports ``torch_npu`` if it is installed; the answer is kept for the life of the process.

    Returns:
        True if ``torch_npu`` imports and finds a device.
    """
    return npu_unavailable_reason() is None


@cache
def npu_unavailable_reason() -> str | None:
    """Say in one sentence why no NPU can be used here.

    Returns:
        The reason with what to do about it, or None if an NPU can be used.

    Example:
        >>> npu_unavailable_reason()
        'torch_npu is not installed; install the release made for torch 2.13.'
    """
    if "torch_npu" not in sys.modules and find_spec("torch_npu") is None:
        release = ".".join(torch.__version__.split(".")[:2])
        return f"torch_npu is not installed; install the release made for torch {release}."
    try:
        has_device = _ask_torch_npu()
    except _BROKEN as error:
        return _describe_broken(error)
    if has_device:
        return None
    return (
        f"torch_npu {_torch_npu_version()} finds no NPU; check the driver with npu-smi info, and "
        "the variable ASCEND_RT_VISIBLE_DEVICES."
    )


def _ask_torch_npu() -> bool:
    autoload = os.environ.get(_AUTOLOAD)
    try:
        return bool(import_module("torch_npu").npu.is_available())
    except _BROKEN:
        # Only after a failure: a working torch_npu sets the variable for a purpose of its own.
        _set_environment(_AUTOLOAD, autoload)
        raise


def _set_environment(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _describe_broken(error: Exception) -> str:
    cause = " ".join(str(error).split()).rstrip(".") or "no message"
    return (
        f"torch_npu {_torch_npu_version()} is installed but does not work "
        f"({type(error).__name__}: {cause}); install CANN and source its set_env.sh, or uninstall "
        f"torch_npu, or set {_AUTOLOAD}=0 so that import torch leaves it alone."
    )


def _torch_npu_version() -> str:
    try:
        return version("torch_npu")
    except PackageNotFoundError:
        return "of unknown version"
