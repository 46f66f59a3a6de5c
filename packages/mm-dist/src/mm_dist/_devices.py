"""The table of device types: what torch calls them and how their ranks talk to each other."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from mm_dist._errors import ConfigError
from mm_dist._plugins import find_plugins
from mm_dist._suggestion import suggest_name

GROUP = "mm.devices"
_REQUIRED_KEYS = ("name", "process_group_backend", "device_module")


@dataclass(frozen=True)
class DeviceRow:
    """One device type.

    Attributes:
        name: torch's name of the device type, as in ``torch.device(name)``.
        process_group_backends: Backends that its ranks talk through, the preferred one first.
        device_module: Attribute of ``torch`` with its functions, as in ``torch.cuda``.
        visible_devices_variable: Environment variable that hides devices, if there is one.
        extension: Module that adds ``device_module`` to torch, if torch itself lacks it.
    """

    name: str
    process_group_backends: tuple[str, ...]
    device_module: str
    visible_devices_variable: str | None = None
    extension: str | None = None


CPU = DeviceRow("cpu", ("gloo",), "cpu")
# In the order in which they are probed: torch_npu can stand beside a CUDA build of torch.
_ACCELERATORS = (
    DeviceRow("npu", ("hccl",), "npu", "ASCEND_RT_VISIBLE_DEVICES", "torch_npu"),
    DeviceRow("cuda", ("nccl",), "cuda", "CUDA_VISIBLE_DEVICES"),
    DeviceRow("xpu", ("xccl", "ccl"), "xpu", "ZE_AFFINITY_MASK"),
    DeviceRow("mlu", ("cncl",), "mlu", "MLU_VISIBLE_DEVICES", "torch_mlu"),
    DeviceRow("musa", ("mccl",), "musa", "MUSA_VISIBLE_DEVICES", "torch_musa"),
    DeviceRow("mps", ("gloo",), "backends.mps"),
)


def accelerator_rows() -> tuple[DeviceRow, ...]:
    """Return the built-in accelerators, then those that installed distributions add."""
    return (*_ACCELERATORS, *plugin_rows())


def find_row(device_type: str) -> DeviceRow:
    """Return the row of a device type.

    Raises:
        ConfigError: If there is none.
    """
    rows = {row.name: row for row in (CPU, *accelerator_rows())}
    if device_type in rows:
        return rows[device_type]
    raise ConfigError(
        f"device_type={device_type!r} is not known; there are: {', '.join(rows)}."
        f"{suggest_name(str(device_type), rows)} Another one is added by a distribution that "
        f"advertises it in the entry-point group {GROUP!r}."
    )


def find_accelerator_of(backend: str) -> DeviceRow | None:
    """Return the accelerator whose own backend this is; ``None`` for gloo, mpi and the like."""
    if backend in CPU.process_group_backends:
        return None
    return next((r for r in accelerator_rows() if backend in r.process_group_backends), None)


def device_module(row: DeviceRow) -> Any | None:
    """Return torch's module for a device type, ``None`` if this installation has none.

    Loads the extension that provides it, if one is installed and was not loaded yet.
    """
    module = _find_attribute(row.device_module)
    if module is None and row.extension is not None and find_spec(row.extension) is not None:
        try:
            importlib.import_module(row.extension)
        except (ImportError, OSError, RuntimeError):
            # Its driver libraries are missing: the extension is installed, the device is not.
            return None
        module = _find_attribute(row.device_module)
    return module


def _find_attribute(path: str) -> Any | None:
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def count_devices(row: DeviceRow) -> int:
    """Return how many devices of a type this process can use; 0 without hardware or driver."""
    module = device_module(row)
    if module is None or not module.is_available():
        return 0
    # mps knows no count: there is one.
    return int(module.device_count()) if hasattr(module, "device_count") else 1


@cache
def plugin_rows() -> tuple[DeviceRow, ...]:
    """Return the device types that installed distributions add, read once per process.

    Raises:
        ConfigError: If an entry point does not hold a mapping with the keys it needs.
    """
    built_in = {"cpu", *(row.name for row in _ACCELERATORS)}
    plugins = find_plugins(GROUP)
    return tuple(_read_row(n, plugins[n].load()) for n in sorted(plugins) if n not in built_in)


def _read_row(entry_name: str, mapping: object) -> DeviceRow:
    if not isinstance(mapping, Mapping) or any(key not in mapping for key in _REQUIRED_KEYS):
        raise ConfigError(
            f"Entry point {entry_name!r} of {GROUP} holds {mapping!r}; it must be a mapping with "
            f"the keys {', '.join(_REQUIRED_KEYS)}. Repair or uninstall its distribution."
        )
    return DeviceRow(
        name=mapping["name"],
        process_group_backends=(mapping["process_group_backend"],),
        device_module=mapping["device_module"],
        visible_devices_variable=mapping.get("visible_devices_variable"),
    )
