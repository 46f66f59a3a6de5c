"""What machines, network and storage are like: numbers that a user can replace.

Each default is measured by ``integration_tests/benchmarks/scale_constants.py`` on two cores of a
virtual machine (Intel Xeon, Linux 6.18, torch 2.13), or cited.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

MEASURED, CITED, GIVEN = "measured", "cited", "given"
_NCCL = "NCCL, src/graph/tuning.cc, hwLatencies, protocol Simple"
_DGX = "NVIDIA DGX H100 system"
_STORAGE = "NVIDIA DGX SuperPOD with H100, RA-11333-001, table 6, better, 4 SU (128 machines)"
_LOOPBACK = "over the loopback device"


def _constant(default: float, unit: str, meaning: str, origin: str, source: str) -> Any:
    about = {"unit": unit, "meaning": meaning, "origin": origin, "source": source}
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class Constants:
    """Times in seconds, sizes in bytes, and rates per second; all are above 0."""

    network_bandwidth: float = _constant(
        400e9, "B/s", "all adapters of a machine together", CITED, f"{_DGX}: 8 adapters of 400 Gb/s"
    )
    network_latency: float = _constant(
        14e-6, "s", "a step of an all-reduce between machines", CITED, f"{_NCCL}: NET"
    )
    node_bandwidth: float = _constant(
        450e9, "B/s", "a rank to the next one on its machine", CITED, f"{_DGX}: NVLink, one way"
    )
    node_latency: float = _constant(
        4e-6, "s", "a step of an all-reduce on a machine", CITED, f"{_NCCL}: NVLINK"
    )
    storage_write_bandwidth: float = _constant(
        80e9, "B/s", "all machines write to the shared storage", CITED, _STORAGE
    )
    storage_read_bandwidth: float = _constant(
        160e9, "B/s", "all machines read from it", CITED, _STORAGE
    )
    node_write_bandwidth: float = _constant(4e9, "B/s", "one machine writes", CITED, _STORAGE)
    node_read_bandwidth: float = _constant(8e9, "B/s", "one machine reads", CITED, _STORAGE)
    metadata_rate: float = _constant(
        27e3,
        "1/s",
        "files that the shared storage opens or creates",
        CITED,
        "Dell HPC Lustre Storage with Omni-Path, MDtest, creation of files",
    )
    sync_seconds: float = _constant(
        4.1e-4, "s", "fsync of a small file and of its folder", MEASURED, "on the local disk"
    )
    save_bandwidth: float = _constant(
        1.56e9, "B/s", "torch.save and checksums of one rank", MEASURED, "into memory"
    )
    copy_bandwidth: float = _constant(
        64e9, "B/s", "a rank's device to host memory", CITED, "PCI Express 5.0, 16 lanes, one way"
    )
    host_memory: float = _constant(2e12, "B", "of a machine", CITED, _DGX)
    import_seconds: float = _constant(
        0.94, "s", "import torch and mm_dist from files that are cached", MEASURED, "one process"
    )
    import_files: float = _constant(
        5.7e3, "", "files that this import looks for or opens", MEASURED, "by hooks of Python"
    )
    import_bytes: float = _constant(
        1.09e8, "B", "what it reads or maps", MEASURED, "torch 2.13 for the CPU; CUDA's is larger"
    )
    round_trip: float = _constant(
        8.5e-6,
        "s",
        "a question to the store and its answer",
        MEASURED,
        f"{_LOOPBACK}; a network adds its own",
    )
    store_exchange: float = _constant(
        1.0e-5, "s", "the store's thread, per question", MEASURED, f"4 clients, {_LOOPBACK}"
    )
    store_connection: float = _constant(
        1.02e-3,
        "s",
        "the store's thread, per connection",
        CITED,
        "PyTorch tutorial on libuv's TCPStore: 98,304 ranks in 100 s",
    )
    store_bandwidth: float = _constant(
        1e9, "B/s", "values that the store hands out", MEASURED, _LOOPBACK
    )
    gloo_pair: float = _constant(
        1.1e-4, "s", "a rank's part in a connection of gloo", MEASURED, _LOOPBACK
    )
    nccl_root_rate: float = _constant(
        7e3, "1/s", "ranks that a root of NCCL serves", CITED, "NCCL, NCCL_UID_STAGGER_RATE"
    )
    rank_mtbf: float = _constant(
        1.824e8,
        "s",
        "from one failure of a rank to the next",
        CITED,
        "The Llama 3 Herd of Models (2024): 419 in 54 days of 16,384 ranks",
    )
    open_files: float = _constant(
        1024, "", "that a process may open (ulimit -n)", CITED, "systemd, DefaultLimitNOFILE"
    )
    most_files: float = _constant(
        524288, "", "that it may ask for (ulimit -Hn)", CITED, "systemd, DefaultLimitNOFILE"
    )
    accept_queue: float = _constant(
        4096, "", "connections that wait (net.core.somaxconn)", CITED, "Linux since 5.4"
    )


# gloo's, by name: what is otherwise for processes on CPUs.
_GLOO: dict[str, tuple[float, str, str]] = {
    "network_bandwidth": (1.25e9, CITED, "IEEE 802.3ae, 10 Gb/s Ethernet"),
    "network_latency": (6.4e-5, MEASURED, f"{_LOOPBACK}; a network adds its own"),
    "node_bandwidth": (1.9e9, MEASURED, f"2 ranks, {_LOOPBACK}"),
    "node_latency": (6.4e-5, MEASURED, f"2 ranks, {_LOOPBACK}"),
}


def default_constants(backend: str) -> Constants:
    """Return the defaults for a backend."""
    known = Constants()
    if backend != "gloo":
        return known
    return replace(known, **{name: value for name, (value, _, _) in _GLOO.items()})


def describe_constants(own: Constants, backend: str) -> dict[str, dict[str, Any]]:
    """Return value, unit, meaning, origin and source of each constant, by name.

    Args:
        own: The values; those that are not the backend's defaults count as given.
        backend: ``"gloo"`` or ``"nccl"``.
    """
    usual = default_constants(backend)
    described = {}
    for each in fields(own):
        about = {"value": getattr(own, each.name), **each.metadata}
        if backend == "gloo" and each.name in _GLOO:
            _, about["origin"], about["source"] = _GLOO[each.name]
        if about["value"] != getattr(usual, each.name):
            about.update(origin=GIVEN, source="")
        described[each.name] = about
    return described
