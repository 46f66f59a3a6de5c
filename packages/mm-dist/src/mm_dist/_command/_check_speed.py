"""How long an all-reduce takes, by size."""

import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from mm_dist._command._output import format_table
from mm_dist._devices import device_module, find_row

_SIZES = (8, 1024, 2**16, 2**20, 2**22, 2**24, 2**26, 2**28)
_WARM_UP = 2
_ELEMENT_BYTES = 4


def measure_all_reduce(device: torch.device, max_size: int) -> dict[int, float]:
    """Return the median time of an all-reduce over all ranks, by size.

    Args:
        device: Where the tensors are.
        max_size: Largest size to measure, in bytes.

    Returns:
        Seconds by size in bytes, as seen by this rank.
    """
    synchronize = getattr(device_module(find_row(device.type)), "synchronize", lambda: None)
    return {
        size: _measure_size(torch.zeros(size // _ELEMENT_BYTES, device=device), synchronize)
        for size in _SIZES
        if size <= max_size
    }


def _measure_size(tensor: torch.Tensor, synchronize: Any) -> float:
    size = tensor.numel() * _ELEMENT_BYTES
    count = 20 if size <= 2**16 else 10 if size <= 2**20 else 5
    times = []
    for index in range(_WARM_UP + count):
        synchronize()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        synchronize()
        if index >= _WARM_UP:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def bandwidths(size: int, seconds: float, num_ranks: int) -> tuple[float, float]:
    """Return algorithm and bus bandwidth of an all-reduce, in GB/s (10**9 bytes).

    The algorithm bandwidth is ``size / seconds``. The bus bandwidth is that times
    ``2 * (n - 1) / n``: of the optimal algorithms, each rank sends and receives this many times
    the size, so that the number can be compared with the speed of the links, whatever the number
    of ranks. (NVIDIA, "Performance reported by NCCL tests",
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)

    Args:
        size: Bytes of the tensor.
        seconds: Time of one all-reduce.
        num_ranks: How many ranks took part.

    Example:
        >>> bandwidths(10**9, 1.0, 2)
        (1.0, 1.0)
    """
    algorithm = size / seconds / 1e9
    return algorithm, algorithm * 2 * (num_ranks - 1) / num_ranks


def summarize_speed(times: Mapping[int, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return for each size the time of the slowest rank, and the bandwidths.

    Args:
        times: Of each rank, seconds by size; sizes are text, as JSON has them.
    """
    rows = []
    for size in sorted(map(int, times[0])):
        slowest = max(times, key=lambda rank: times[rank][str(size)])
        seconds = times[slowest][str(size)]
        algorithm, bus = bandwidths(size, seconds, len(times))
        rows.append(
            {
                "bytes": size,
                "seconds": seconds,
                "algorithm_gb_per_s": algorithm,
                "bus_gb_per_s": bus,
                "slowest_rank": slowest,
            }
        )
    return rows


def format_speed(rows: list[dict[str, Any]]) -> str:
    """Return the table of ``summarize_speed`` as text."""
    header = ["bytes", "median ms", "algorithm GB/s", "bus GB/s", "slowest rank"]
    return format_table(
        header,
        [
            [
                str(row["bytes"]),
                f"{row['seconds'] * 1e3:.3f}",
                f"{row['algorithm_gb_per_s']:.3f}",
                f"{row['bus_gb_per_s']:.3f}",
                str(row["slowest_rank"]),
            ]
            for row in rows
        ],
    )
