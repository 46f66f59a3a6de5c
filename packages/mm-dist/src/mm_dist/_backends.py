"""Choose the process-group backend, and read back which one an existing group uses."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from mm_dist._devices import (
    CPU,
    accelerator_rows,
    current_device,
    find_accelerator_of,
    find_row,
    load_extension,
)
from mm_dist._errors import ConfigError, TorchVersionError
from mm_dist._message import suggest_name, warn_caller

CPU_DEVICE = torch.device("cpu")
_GENERAL_BACKENDS = ("gloo", "mpi", "ucc")


def choose_backend(backend: str | None, device_type: str, *, is_warning: bool = True) -> str:
    """Return the backend for ranks that compute on ``device_type``."""
    if backend is None:
        return _own_backend(device_type)
    check_backend(backend)
    asked = backend.lower()
    pairs = _read_pairs(asked) if ":" in asked else {device_type: asked}
    owners = {name: find_accelerator_of(name) for name in pairs.values()}
    if device_type in pairs and all(
        pair_device in ("cpu", device_type)
        and _is_installed(name)
        and getattr(owners[name], "name", pair_device) == pair_device
        for pair_device, name in pairs.items()
    ):
        return asked
    chosen = _own_backend(device_type)
    if is_warning:
        warn_caller(
            f"backend={backend!r} was asked for, but it cannot run on device {device_type!r} "
            f"here; using {chosen!r}. Leave backend out to have it chosen."
        )
    return chosen


def check_backend(backend: str) -> None:
    """Refuse what names no backend, whether or not this machine can run it."""
    if not isinstance(backend, str) or not backend:
        raise ConfigError(f"backend={backend!r} is not a name; use one like 'nccl', or None.")
    if ":" in backend:
        _read_pairs(backend.lower())
    else:
        _check_known(backend.lower())


def _read_pairs(backend: str) -> dict[str, str]:
    if not hasattr(getattr(dist, "distributed_c10d", None), "BackendConfig"):
        raise TorchVersionError(
            f"backend={backend!r} needs pairs of device and backend, which torch has since 2.0; "
            "this torch has not. Give one name, or upgrade torch."
        )
    pairs: dict[str, str] = {}
    for piece in backend.split(","):
        pair_device, colon, name = piece.partition(":")
        if not colon or not pair_device or not name:
            raise ConfigError(
                f"backend={backend!r} holds {piece!r}; pairs look like 'cpu:gloo,cuda:nccl'."
            )
        find_row(pair_device)
        _check_known(name)
        pairs[pair_device] = name
    return pairs


def _check_known(backend: str) -> None:
    if backend in _GENERAL_BACKENDS or find_accelerator_of(backend) or _is_installed(backend):
        return
    rows = accelerator_rows()
    known = {*_GENERAL_BACKENDS, *(name for row in rows for name in row.process_group_backends)}
    raise ConfigError(
        f"backend={backend!r} is not known; there are: {', '.join(sorted(known))}."
        f"{suggest_name(backend, known)}"
    )


def _is_installed(backend: str) -> bool:
    # torch's own ask by name; those of extensions register an attribute of dist.Backend.
    own_answer = getattr(dist, f"is_{backend}_available", None)
    if own_answer is not None:
        return bool(own_answer())
    return hasattr(getattr(dist, "Backend", None), backend.upper())


def _own_backend(device_type: str) -> str:
    row = find_row(device_type)
    if not any(map(_is_installed, row.process_group_backends)):
        load_extension(row.backend_extension)
    own = row.process_group_backends
    return next((name for name in own if _is_installed(name)), own[0])


def backend_names(backend: str) -> list[str]:
    """Return the names in a name, or in pairs of device and name."""
    return [piece.rpartition(":")[2] for piece in backend.split(",")]


def backends_by_device_type(group: Any = None) -> dict[str, str]:
    """Return the backend that an existing group uses for each device type."""
    read_config = getattr(dist.distributed_c10d, "get_backend_config", dist.get_backend)
    config = str(read_config(group))
    if ":" not in config:
        owner = find_accelerator_of(config) or CPU
        return {owner.name: config}
    pairs = (pair.partition(":") for pair in config.split(","))
    return {device_type: backend for device_type, _, backend in pairs}


def barrier_device_type(backends: Mapping[str, str]) -> str | None:
    """Return the type of the device that ``dist.barrier`` has to be given, if any.

    NCCL needs one, and would guess it from the rank. With the backends of other accelerators torch
    2.13 takes the current one, and warns of it; before 2.4 it refused to be given one.
    """
    if "nccl" in backends.values():
        return "cuda"
    if "cpu" in backends or not hasattr(dist.distributed_c10d.BarrierOptions, "device"):
        return None
    return next(iter(backends))


def communication_device(data_device: torch.device = CPU_DEVICE, group: Any = None) -> torch.device:
    """Return the device on which the group can communicate data that is on ``data_device``."""
    backends = backends_by_device_type(group)
    if _serves(backends.get(data_device.type), data_device.type):
        return data_device
    for device_type, backend in backends.items():
        if device_type != "cpu" and _serves(backend, device_type):
            return current_device(device_type)
    return CPU_DEVICE


def _serves(backend: str | None, device_type: str) -> bool:
    # torch lists gloo for CUDA too, but gloo lacks some of the collectives there.
    owner = find_accelerator_of(backend) if backend else None
    return backend is not None and device_type == (owner.name if owner else "cpu")
