"""What is installed here."""

import platform
from importlib.metadata import distributions

import torch

from mm_dist._devices import accelerator_rows

# What data, and the numbers that are made of them, depend on.
_OTHERS = ("numpy", "torchvision")


def read_versions() -> dict[str, str]:
    """Return what is installed of all that can let ranks differ, with its version.

    That is Python, torch, the accelerator's runtime, every ``mm-*``, numpy, torchvision, and the
    modules that add devices to torch, such as ``torch_npu``.

    Example:
        >>> "mm-dist" in read_versions()
        True
    """
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    runtime = _read_runtime()
    if runtime:
        found["runtime"] = runtime
    wanted = {_normalize(name) for name in (*_OTHERS, *_extension_names())}
    others: dict[str, str] = {}
    for distribution in distributions():
        name = str(distribution.metadata["Name"])
        if name.startswith("mm-") or _normalize(name) in wanted:
            # The first on the path is the one that is imported.
            others.setdefault(name, str(distribution.version))
    return found | dict(sorted(others.items()))


def _extension_names() -> list[str]:
    rows = list(accelerator_rows())
    names = [name for row in rows for name in (row.extension, row.backend_extension) if name]
    return [name.partition(".")[0] for name in names]


def _normalize(name: str) -> str:
    """Return a distribution's name as the module in it is usually called."""
    return name.lower().replace("-", "_")


def _read_runtime() -> str:
    for name in ("cuda", "hip", "xpu"):
        version = getattr(torch.version, name, None)
        if version:
            return f"{name} {version}"
    return ""
