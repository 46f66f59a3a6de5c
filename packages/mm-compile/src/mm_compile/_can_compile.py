"""Check of what compiling needs on this machine."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ._config import check_against_torch, parse_config
from ._errors import TorchVersionError
from ._torch import describe_backend
from ._torch_private import has_code_generator

# Devices whose kernels inductor writes in Triton; for the CPU it writes C++.
_TRITON_DEVICES = ("cuda", "xpu")


@dataclass(frozen=True)
class CompileSupport:
    """Whether this machine can compile.

    Attributes:
        ok: Whether nothing is known to be missing.
        reason: What is missing and what to install; None if ``ok``.
    """

    ok: bool
    reason: str | None = None


def can_compile(
    cfg: bool | str | Mapping[str, Any] | None = True,  # noqa: FBT001, FBT002 - a config value
    device_type: str = "cpu",
) -> CompileSupport:
    """Say whether ``compile_model(model, cfg)`` has what it needs on this machine.

    Looks for torch >= 2.0 and a Python that it compiles on. For inductor, also for Python's
    headers, and a C++ compiler (CPU), or Triton (CUDA, XPU), or a code generator for the device.
    Compiles nothing.

    Args:
        cfg: A config of ``compile_model``.
        device_type: The model's device: ``"cpu"``, ``"cuda"``, ...; an index is ignored.

    Returns:
        The answer, with a reason if it is no. A config that compiles nothing is always fine.

    Raises:
        ConfigError: If ``cfg`` is wrong on any machine.

    Example:
        >>> can_compile(False)
        CompileSupport(ok=True, reason=None)
    """
    config = parse_config(cfg)
    if not config.enabled:
        return CompileSupport(ok=True)
    try:
        check_against_torch(config)
    except TorchVersionError as error:
        return CompileSupport(ok=False, reason=str(error))
    if describe_backend(config.keywords) != "inductor":
        return CompileSupport(ok=True)
    reason = _missing_for_inductor(device_type.partition(":")[0])
    return CompileSupport(ok=reason is None, reason=reason)


def _missing_for_inductor(device_type: str) -> str | None:
    """Return what is missing and what to do, or None."""
    missing = None
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if device_type == "cpu":
        # Inductor looks there too: CXX, or else the platform's usual compiler.
        usual = {"win32": "cl", "darwin": "clang++"}.get(sys.platform, "g++")
        compiler = os.environ.get("CXX", usual)
        if shutil.which(compiler) is None:
            missing = (
                f"needs a C++ compiler, and {compiler!r} is not on PATH: install one (Debian and "
                "Ubuntu: apt-get install g++), set CXX"
            )
    elif device_type in _TRITON_DEVICES:
        if find_spec("triton") is None:
            missing = (
                "needs Triton, which is not installed: install the triton that belongs to this "
                "torch"
            )
    elif not has_code_generator(device_type):
        missing = "has no code generator. Name the backend that comes with the device"
    if missing is None and device_type in ("cpu", *_TRITON_DEVICES) and not headers.exists():
        missing = (
            f"needs Python's headers, and {headers.parent} has no Python.h: install them (Debian "
            "and Ubuntu: apt-get install python3-dev)"
        )
    if missing is None:
        return None
    return f"backend 'inductor' on {device_type} {missing}, or use backend 'aot_eager'."
