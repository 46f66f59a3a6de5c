"""What is installed here."""

import platform
from importlib.metadata import distributions

import torch


def read_versions() -> dict[str, str]:
    """Return the versions of Python, torch, the accelerator's runtime, and every ``mm-*``.

    Example:
        >>> sorted(read_versions())[:1]
        ['mm-dist']
    """
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    runtime = _read_runtime()
    if runtime:
        found["runtime"] = runtime
    own = {
        str(distribution.metadata["Name"]): str(distribution.version)
        for distribution in distributions()
        if str(distribution.metadata["Name"]).startswith("mm-")
    }
    return found | dict(sorted(own.items()))


def _read_runtime() -> str:
    for name in ("cuda", "hip", "xpu"):
        version = getattr(torch.version, name, None)
        if version:
            return f"{name} {version}"
    return ""
