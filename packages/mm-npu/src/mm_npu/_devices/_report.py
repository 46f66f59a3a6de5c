"""Report on an Ascend installation, and on the implementation that it leads to."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Literal, TypeVar

import torch

from mm_npu._availability import npu_unavailable_reason, torch_release
from mm_npu._settings import is_strict

from . import _torch_npu as torch_npu
from ._cann import cann_version, driver_version

_Found = TypeVar("_Found")
_VISIBLE_DEVICES = "ASCEND_RT_VISIBLE_DEVICES"


@dataclass(frozen=True)
class NpuReport:
    """An Ascend installation; None for what is missing or cannot be read.

    Attributes:
        mm_npu: Version of this package.
        torch: Version of torch.
        torch_npu: Version of the installed ``torch_npu``.
        cann: Version of CANN.
        driver: Version of the NPU driver.
        device_count: Number of NPUs that this process can use; 0 if ``torch_npu`` does not work.
        device_names: Their names, one each.
        visible_devices: The variable ``ASCEND_RT_VISIBLE_DEVICES``.
        autoload: Whether ``import torch`` imports ``torch_npu``: ``"on"``; ``"off"``, by the
            variable ``TORCH_DEVICE_BACKEND_AUTOLOAD``; ``"unsupported"`` by torch before 2.5.
        path: The implementation of the ``NpuFused*`` names: ``"torch_npu"``; ``"portable"``; or
            ``"refused"``, where there is no NPU and ``MM_NPU_STRICT`` requires one.
        reason: Why no NPU can be used, in one sentence; None if one can.
    """

    mm_npu: str
    torch: str
    torch_npu: str | None
    cann: str | None
    driver: str | None
    device_count: int
    device_names: tuple[str, ...]
    visible_devices: str | None
    autoload: Literal["on", "off", "unsupported"]
    path: Literal["torch_npu", "portable", "refused"]
    reason: str | None


def npu_report(env: Mapping[str, str] = os.environ) -> NpuReport:
    """Look for ``torch_npu``, CANN, the driver and NPUs; nothing that is missing or broken raises.

    Some releases of ``torch_npu`` open a context on the device to read its name, so call it in a
    separate process, as the command ``mm-npu env`` does, or after the device is set.

    Args:
        env: The variables of this process.

    Raises:
        ConfigError: If ``MM_NPU_STRICT`` is not a boolean.

    Example:
        >>> npu_report().path
        'portable'
    """
    # First: the import of torch_npu can change variables.
    autoload = _autoload(env)
    missing: Literal["refused", "portable"] = "refused" if is_strict(None, env) else "portable"
    reason = npu_unavailable_reason()
    names = () if reason is not None else _device_names()
    return NpuReport(
        mm_npu=version("mm-npu"),
        torch=str(torch.__version__),
        torch_npu=torch_npu.installed_version(),
        cann=cann_version(env),
        driver=driver_version(),
        device_count=len(names),
        device_names=names,
        visible_devices=env.get(_VISIBLE_DEVICES),
        autoload=autoload,
        path="torch_npu" if reason is None else missing,
        reason=reason,
    )


def _autoload(env: Mapping[str, str]) -> Literal["on", "off", "unsupported"]:
    if torch_release() < (2, 5):
        return "unsupported"
    return "on" if env.get(torch_npu.AUTOLOAD_VARIABLE, "1") == "1" else "off"


def _device_names() -> tuple[str, ...]:
    npu = torch_npu.load().npu
    count = _ask(npu.device_count) or 0
    return tuple(_ask(partial(npu.get_device_name, i)) or "unknown" for i in range(count))


def _ask(question: Callable[[], _Found]) -> _Found | None:
    try:
        return question()
    except torch_npu.BROKEN:
        return None
