"""Whether Ascend NPUs can be used, and the reason if not.

Reads only. No context is created on a device, no compile mode is switched, and after a failure the
environment and the loaded modules are what they were.
"""

import re
from functools import cache

import torch

from ._devices import _torch_npu as torch_npu


def is_npu_available() -> bool:
    """Return whether an Ascend NPU can be used here.

    Imports ``torch_npu`` if it is installed; the answer is kept for the life of the process.

    Returns:
        True if ``torch_npu`` imports and finds a device.
    """
    return npu_unavailable_reason() is None


@cache
def npu_unavailable_reason() -> str | None:
    """Return why no NPU can be used here, in one sentence.

    Returns:
        The reason with what to do about it, or None if an NPU can be used.

    Example:
        >>> npu_unavailable_reason()
        'torch_npu is not installed; install the release made for torch 2.13.'
    """
    if not torch_npu.is_installed():
        return (
            "torch_npu is not installed; install the release made for torch "
            f"{_release(torch.__version__)}."
        )
    found = torch_npu.installed_version() or "of unknown version"
    mismatch = _describe_mismatch(found)
    if mismatch is not None and not torch_npu.is_loaded():
        return mismatch
    try:
        has_device = bool(torch_npu.load().npu.is_available())
    except torch_npu.BROKEN as error:
        return (
            f"torch_npu {found} is installed but does not work "
            f"({torch_npu.describe_error(error)}); install CANN and source its set_env.sh, or "
            f"uninstall torch_npu, or set {torch_npu.AUTOLOAD_VARIABLE}=0 so that import torch "
            "leaves it alone."
        )
    if has_device:
        return None
    return (
        f"torch_npu {found} finds no NPU; check the driver with npu-smi info, and the variable "
        "ASCEND_RT_VISIBLE_DEVICES."
    )


def torch_release() -> tuple[int, int]:
    """Return the first two numbers of torch's version."""
    major, minor = (_release(torch.__version__) or "0.0").split(".")
    return int(major), int(minor)


def _describe_mismatch(found: str) -> str | None:
    """Return a reason if ``torch_npu`` is made for another torch.

    Importing it then may end the process instead of raising.
    """
    wanted, here = _release(found), _release(torch.__version__)
    if wanted is None or here is None or wanted == here:
        return None
    return (
        f"torch_npu {found} is made for torch {wanted} and this is torch {torch.__version__}; "
        f"install torch_npu {here} or torch {wanted}, or uninstall torch_npu."
    )


def _release(text: str) -> str | None:
    """Return the first two numbers of a version, which torch and ``torch_npu`` share."""
    match = re.match(r"\d+\.\d+", text)
    return None if match is None else match[0]
