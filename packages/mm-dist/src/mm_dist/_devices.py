"""The table of device types: what torch calls them and how their ranks talk to each other."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from itertools import chain
from typing import Any

import torch

from mm_dist._errors import ConfigError
from mm_dist._plugins import find_plugins
from mm_dist._suggestion import suggest_name
from mm_dist._warning import warn_caller

GROUP = "mm.devices"
_REQUIRED_KEYS = ("name", "process_group_backend", "device_module")
# What an extension ends its import in where it cannot work: torch_npu raises a plain Exception if
# CANN's folders are incomplete, and others leave by SystemExit.
_BROKEN = (Exception, SystemExit)


@dataclass(frozen=True)
class DeviceRow:
    """One device type.

    Attributes:
        name: torch's name of the device type, as in ``torch.device(name)``.
        process_group_backends: Backends that its ranks talk through, the preferred one first.
        device_module: Attribute of ``torch`` with its functions, as in ``torch.cuda``.
        visible_devices_variable: Environment variable that hides devices, if there is one.
        extension: Module that adds ``device_module`` to torch, if torch itself lacks it.
        backend_extension: Module that registers a backend with torch, if torch itself lacks it.
        other_variables: Further variables that hide devices from a process.
    """

    name: str
    process_group_backends: tuple[str, ...]
    device_module: str
    visible_devices_variable: str | None = None
    extension: str | None = None
    backend_extension: str | None = None
    other_variables: tuple[str, ...] = ()


CPU = DeviceRow("cpu", ("gloo",), "cpu")
# ROCm's torch calls its devices cuda too.
_ROCM_VARIABLES = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
# In the order in which they are probed: torch_npu can stand beside a CUDA build of torch.
_ACCELERATORS = (
    DeviceRow("npu", ("hccl",), "npu", "ASCEND_RT_VISIBLE_DEVICES", extension="torch_npu"),
    DeviceRow("cuda", ("nccl",), "cuda", "CUDA_VISIBLE_DEVICES", other_variables=_ROCM_VARIABLES),
    DeviceRow(
        "xpu",
        ("xccl", "ccl"),
        "xpu",
        "ZE_AFFINITY_MASK",
        extension="intel_extension_for_pytorch",
        backend_extension="oneccl_bindings_for_pytorch",
        other_variables=("ONEAPI_DEVICE_SELECTOR",),
    ),
    DeviceRow("mlu", ("cncl",), "mlu", "MLU_VISIBLE_DEVICES", extension="torch_mlu"),
    DeviceRow("musa", ("mccl",), "musa", "MUSA_VISIBLE_DEVICES", extension="torch_musa"),
    DeviceRow("mps", ("gloo",), "backends.mps"),
)


def accelerator_rows() -> Iterator[DeviceRow]:
    """Yield the built-in accelerators, then those that installed distributions add.

    Lazily: a plugin is loaded only where no built-in row answers the question.
    """
    yield from _ACCELERATORS
    yield from plugin_rows()


def find_row(device_type: str) -> DeviceRow:
    """Return the row of a device type.

    Raises:
        ConfigError: If there is none.
    """
    names: list[str] = []
    for row in chain([CPU], accelerator_rows()):
        if row.name == device_type:
            return row
        names.append(row.name)
    raise ConfigError(
        f"device_type={device_type!r} is not known; there are: {', '.join(names)}."
        f"{suggest_name(str(device_type), names)} Another one is added by a distribution that "
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
    if module is None and load_extension(row.extension):
        module = _find_attribute(row.device_module)
    return module


def load_extension(name: str | None) -> bool:
    """Import a module that extends torch; return whether it is installed and could be loaded."""
    if name is None or find_spec(name) is None:
        return False
    try:
        importlib.import_module(name)
    except _BROKEN:
        # Its driver libraries are missing: the extension is installed, the device is not.
        return False
    return True


def _find_attribute(path: str) -> Any | None:
    found: Any = torch
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def count_devices(row: DeviceRow) -> int:
    """Return how many devices of a type this process can use; 0 without hardware or driver.

    Where the type is not available, nothing else of its module is called.
    """
    module = device_module(row)
    if module is None or not module.is_available():
        return 0
    # mps knows no count: there is one.
    return int(module.device_count()) if hasattr(module, "device_count") else 1


def synchronize_device(device: torch.device) -> None:
    """Wait until a device has done what it was given; the CPU has."""
    if device.type == "cpu":
        return
    synchronize = getattr(device_module(find_row(device.type)), "synchronize", None)
    if synchronize is not None:
        synchronize()


@cache
def plugin_rows() -> tuple[DeviceRow, ...]:
    """Return the device types that installed distributions add, read once per process.

    Raises:
        ConfigError: If an entry point does not hold a mapping with the keys it needs.
    """
    built_in = {"cpu", *(row.name for row in _ACCELERATORS)}
    plugins = find_plugins(GROUP)
    rows = [_load_row(plugins[name]) for name in sorted(plugins) if name not in built_in]
    return tuple(row for row in rows if row is not None)


def _load_row(entry: EntryPoint) -> DeviceRow | None:
    try:
        mapping = entry.load()
    except _BROKEN as error:
        # As for torch_npu on a machine without its driver: the plugin is there, the device not.
        warn_caller(
            f"Device {entry.name!r} is not used: its plugin {entry.value} cannot be loaded here "
            f"({type(error).__name__}: {error}). Repair or uninstall its distribution."
        )
        return None
    return _read_row(entry.name, mapping)


def _read_row(entry_name: str, mapping: object) -> DeviceRow:
    """Read the keys that mm-dist knows; others are for other packages, and left to them."""
    if not isinstance(mapping, Mapping) or any(
        not isinstance(mapping.get(key), str) for key in _REQUIRED_KEYS
    ):
        raise ConfigError(
            f"Entry point {entry_name!r} of {GROUP} holds {mapping!r}; it must be a mapping with "
            f"the keys {', '.join(_REQUIRED_KEYS)}, each a string. Repair or uninstall its "
            "distribution."
        )
    other_variables: Sequence[str] = mapping.get("other_variables", ())
    return DeviceRow(
        name=mapping["name"],
        process_group_backends=(mapping["process_group_backend"],),
        device_module=mapping["device_module"],
        visible_devices_variable=mapping.get("visible_devices_variable"),
        extension=mapping.get("extension"),
        backend_extension=mapping.get("backend_extension"),
        other_variables=tuple(other_variables),
    )
