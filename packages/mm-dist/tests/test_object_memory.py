"""Large objects travel in chunks: how much memory they take on each rank."""

from pathlib import Path

import pytest
import torch

import mm_dist

MIB = 2**20
SIZE = 200 * MIB
CHUNK = 32 * MIB
# Threads, buffers of the connections, an item of the results.
SLACK = 24 * MIB
STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")


class PeakGrowth:
    """Measures by how much the memory of this process grew at most."""

    def __enter__(self):
        RESET.write_text("5")  # the peak begins anew
        self._before = self._read("VmRSS")
        return self

    def __exit__(self, *_):
        self.num_bytes = self._read("VmHWM") - self._before

    def _read(self, name):
        (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024


def _expect_bounds(rank):
    mm_dist.all_gather_object([torch.ones(1), b"warm"])
    # Rank 1 has one large object; rank 0 needs room for it, rank 2 for nothing.
    large = {"bytes": bytes(SIZE // 2), "tensor": torch.ones(SIZE // 8)} if rank == 1 else None
    with PeakGrowth() as growth:
        gathered = mm_dist.gather_object(large)
    if rank == 0:
        assert len(gathered[1]["bytes"]) == SIZE // 2
        assert gathered[1]["tensor"].sum().item() == SIZE // 8
    assert growth.num_bytes < [SIZE + CHUNK, CHUNK, 0][rank] + SLACK
    del gathered
    with PeakGrowth() as growth:
        gathered = mm_dist.all_gather_object(large)
    assert gathered[1]["tensor"][-1].item() == 1
    assert growth.num_bytes < [SIZE + CHUNK, 2 * CHUNK, SIZE + CHUNK][rank] + SLACK
    del gathered, large
    _expect_bounded_results(rank)


def _expect_bounded_results(rank):
    # Uneven, one rank without results, items that are views of a common batch.
    counts = [1, 200, 0]
    batch = torch.ones(200, MIB // 4)
    results = [batch[index] for index in range(counts[rank])]
    with PeakGrowth() as growth:
        collected = mm_dist.collect_results(results, 201)
    assert growth.num_bytes < [SIZE + CHUNK, 2 * CHUNK, 0][rank] + SLACK
    if rank == 0:
        assert len(collected) == 201
        assert collected[-1].sum().item() == MIB // 4


@pytest.mark.skipif(not RESET.exists(), reason="Linux tells the peak")
def test_large_objects_take_little_more_memory_than_themselves(run_ranks):
    run_ranks(_expect_bounds, 3)
