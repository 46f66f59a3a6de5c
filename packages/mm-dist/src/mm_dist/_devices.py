"""Device types: what torch calls them, how their ranks communicate, and which one a rank uses."""

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from itertools import chain
from typing import Any, SupportsIndex

import torch

from mm_dist._errors import ArgumentTypeError, ConfigError, LaunchError
from mm_dist._message import suggest_name, warn_caller
from mm_dist._plugins import find_plugins

GROUP = "mm.devices"
_REQUIRED_KEYS = ("name", "process_group_backend", "device_module")
# What an extension ends its import in where it cannot work: torch_npu raises a plain Exception if
# CANN's folders are incomplete, and others leave by SystemExit.
_BROKEN = (Exception, SystemExit)
_LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")


@dataclass(frozen=True)
class DeviceRow:
    """One device type."""

    name: str  # as in torch.device(name)
    process_group_backends: tuple[str, ...]  # the preferred one first
    device_module: str  # attribute of torch with its functions, as in torch.cuda
    visible_devices_variable: str | None = None  # hides devices from a process
    extension: str | None = None  # module that adds device_module, if torch lacks it
    backend_extension: str | None = None  # module that registers a backend, if torch lacks it
    other_variables: tuple[str, ...] = ()  # further ones that hide devices


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
    """Yield the built-in accelerators, then those that installed distributions add."""
    yield from _ACCELERATORS
    yield from plugin_rows()


def find_row(device_type: str) -> DeviceRow:
    """Return the row of a device type."""
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
    """Return torch's module for a device type, ``None`` if this installation has none."""
    first, _, second = row.device_module.partition(".")
    if getattr(torch, first, None) is None:
        load_extension(row.extension)
    found = getattr(torch, first, None)
    return getattr(found, second, None) if second else found


def load_extension(name: str | None) -> None:
    """Import a module that extends torch, if it is installed and can be loaded."""
    if name is None or find_spec(name) is None:
        return
    # Its driver libraries may be missing: the extension is installed, the device is not.
    with suppress(*_BROKEN):
        importlib.import_module(name)


def count_devices(row: DeviceRow) -> int:
    """Return how many devices of a type this process can use; 0 without hardware or driver."""
    module = device_module(row)
    if module is None or not module.is_available():
        return 0
    # mps knows no count: there is one.
    return int(module.device_count()) if hasattr(module, "device_count") else 1


@cache
def plugin_rows() -> tuple[DeviceRow, ...]:
    """Return the device types that installed distributions add, read once per process."""
    built_in = {"cpu", *(row.name for row in _ACCELERATORS)}
    plugins = find_plugins(GROUP)
    rows = [_load_row(plugins[name]) for name in sorted(plugins) if name not in built_in]
    return tuple(row for row in rows if row is not None)


def _load_row(entry: EntryPoint) -> DeviceRow | None:
    """Read the keys that mm-dist knows; others are for other packages, and left to them."""
    try:
        mapping = entry.load()
    except _BROKEN as error:
        # As for torch_npu on a machine without its driver: the plugin is there, the device not.
        warn_caller(
            f"Device {entry.name!r} is not used: its plugin {entry.value} cannot be loaded here "
            f"({type(error).__name__}: {error}). Repair or uninstall its distribution."
        )
        return None
    if not isinstance(mapping, Mapping) or any(
        not isinstance(mapping.get(key), str) for key in _REQUIRED_KEYS
    ):
        raise ConfigError(
            f"Entry point {entry.name!r} of {GROUP} holds {mapping!r}; it must be a mapping with "
            f"the keys {', '.join(_REQUIRED_KEYS)}, each a string. Repair or uninstall its "
            "distribution."
        )
    return DeviceRow(
        name=mapping["name"],
        process_group_backends=(mapping["process_group_backend"],),
        device_module=mapping["device_module"],
        visible_devices_variable=mapping.get("visible_devices_variable"),
        extension=mapping.get("extension"),
        backend_extension=mapping.get("backend_extension"),
        other_variables=tuple(mapping.get("other_variables", ())),
    )


def available_device_type() -> str:
    """Return the type of accelerator that this process can use, ``"cpu"`` if there is none.

    Probes at the time of the call, and stops at the first type that has a device.
    """
    return next((row.name for row in accelerator_rows() if count_devices(row) > 0), CPU.name)


def local_device(local_rank: int, device_type: str | None = None) -> torch.device:
    """Return the device that belongs to a local rank.

    Where a process sees one device only, that is its device: the scheduler has bound it already.

    Args:
        local_rank: Number of the process on its machine, from 0.
        device_type: ``"cuda"``, ``"npu"`` and so on. Defaults to ``available_device_type()``.

    Raises:
        ArgumentTypeError: If ``local_rank`` is no whole number.
        ConfigError: If it is negative, or the device type is not known.
        LaunchError: If there are fewer devices than local ranks, or none.
    """
    if not isinstance(local_rank, SupportsIndex):
        raise ArgumentTypeError(
            f"local_rank={local_rank!r} is no whole number; pass int(os.environ['LOCAL_RANK']), or "
            "what init_dist returns."
        )
    if local_rank.__index__() < 0:
        raise ConfigError(
            f"local_rank={local_rank!r} is negative; the processes of a machine count from 0."
        )
    row = find_row(device_type or available_device_type())
    if row is CPU:
        return torch.device("cpu")
    count = count_devices(row)
    if count == 1 or local_rank < count:
        return torch.device(row.name, 0 if count == 1 else local_rank)
    remedy = (
        f"start at most {count} processes per machine, or bind one device to each"
        if count
        else "use device_type='cpu', or install a driver and a torch for it"
    )
    variables = describe_visibility(row, os.environ)
    raise LaunchError(
        f"Local rank {local_rank} has no {row.name} device: this process sees {count} ({variables})"
        f"; {remedy}."
    )


def describe_visibility(row: DeviceRow, env: Mapping[str, str]) -> str:
    """Return the variables that decide which devices a process sees and which one it takes."""
    own = row.visible_devices_variable
    always = [f"{own}={env.get(own, 'not set')}"] if own else []
    names = (*row.other_variables, *_LOCAL_RANK_VARIABLES)
    return ", ".join([*always, *(f"{name}={env[name]}" for name in names if name in env)])


def set_current_device(device: torch.device) -> None:
    """Make ``device`` the current one of its type; the CPU and mps have no current device."""
    _call_if_there(device.type, "set_device", device.index)


def synchronize_device(device: torch.device) -> None:
    """Wait until a device has done what it was given; the CPU has."""
    _call_if_there(device.type, "synchronize")


def current_device(device_type: str) -> torch.device:
    """Return the current device of an accelerator's type."""
    return torch.device(device_type, _call_if_there(device_type, "current_device") or 0)


def _call_if_there(device_type: str, function: str, *args: Any) -> Any:
    if device_type == "cpu":
        return None
    found = getattr(device_module(find_row(device_type)), function, None)
    return None if found is None else found(*args)
