"""What is installed here, and what of it has to be equal on all ranks."""

import hashlib
import platform
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch

from mm_dist._devices import accelerator_rows, count_devices, device_module, find_row

# What data, and the numbers that are made of them, depend on.
_OTHERS = ("numpy", "torchvision")
UNREADABLE = "cannot be read"


def read_versions() -> dict[str, str]:
    """Return what is installed of all that can let ranks differ, with its version.

    That is Python, torch, the accelerator's runtime, every ``mm-*``, numpy, torchvision, and the
    modules that add devices to torch, such as ``torch_npu``.

    Example:
        >>> "mm-dist" in read_versions()
        True
    """
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in ("cuda", "hip", "xpu"):
        if getattr(torch.version, name, None):
            found["runtime"] = f"{name} {getattr(torch.version, name)}"
            break
    extensions = [e for row in accelerator_rows() for e in (row.extension, row.backend_extension)]
    wanted = {*_OTHERS, *(name.partition(".")[0] for name in extensions if name)}
    others: dict[str, str] = {}
    for distribution in distributions():
        name = str(distribution.metadata["Name"])
        # A distribution's name as the module in it is usually called.
        if name.startswith("mm-") or name.lower().replace("-", "_") in wanted:
            # The first on the path is the one that is imported.
            others.setdefault(name, str(distribution.version))
    return found | dict(sorted(others.items()))


def read_facts(device_type: str, config: str | None) -> dict[str, Any]:
    """Return what has to be equal on all ranks, and the name of the machine.

    Args:
        device_type: The type of device to count.
        config: Path of a file whose hash is taken.
    """
    row = find_row(device_type)
    describe = getattr(device_module(row), "get_device_name", None)
    count = count_devices(row) if row.name != "cpu" else 0
    compared = {
        **read_versions(),
        "device type": row.name,
        "device count": str(count),
        "device name": str(describe(0)) if describe is not None and count else "",
    }
    if config is not None:
        try:
            digest = hashlib.sha256(Path(config).read_bytes()).hexdigest()
            compared["config"] = f"sha256:{digest}"
        except OSError as error:
            compared["config"] = f"{UNREADABLE}: {error.strerror}: {config}"
    return {"host": platform.node(), "compared": compared}
