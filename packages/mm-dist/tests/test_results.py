import pytest
import torch

from mm_dist import CollectiveError, ConfigError, collect_results, collect_results_cpu
from mm_dist import collect_results_gpu as collect_gpu


class FailsLate:
    def __reduce__(self):
        raise RuntimeError("no more")


def _expect_results(rank):
    for size in (0, 1, 7, 8, 21):
        dataset = [None if index == 2 else f"item-{index}" for index in range(size)]
        mine = dataset[rank::2]
        for options in ({}, {"tmpdir": "unused"}, {"device": "gpu"}):
            collected = collect_results(mine, size, **options)
            assert collected == (dataset if rank == 0 else None), (size, options)
    # A sampler pads 21 samples to 11 on each of two ranks.
    padded = [*range(rank, 21, 2), *([0] if rank else [])]
    length = torch.tensor(21)  # a number of another kind than int
    assert collect_results(padded, length) == (list(range(21)) if rank == 0 else None)
    for collect in (collect_results, collect_results_cpu, collect_gpu):
        assert collect(padded, 21) == (list(range(21)) if rank == 0 else None)
    with pytest.raises(ConfigError, match=r"asked for 29 results, but all 2 ranks together have"):
        collect_results(padded, 29)
    with pytest.raises(ConfigError, match="size=-1 is no length"):
        collect_results(padded, -1)
    with pytest.raises(CollectiveError, match="failed on rank 1: RuntimeError: no more"):
        collect_results([torch.ones(1), FailsLate() if rank else 0], 4)

    # Results that share an object still do, within what travels together.
    classes = ["cat", "dog"]
    collected = collect_results([{"classes": classes, "id": i} for i in range(rank, 8, 2)], 8)
    if rank == 0:
        assert [each["id"] for each in collected] == list(range(8))
        assert len({id(each["classes"]) for each in collected}) == 2


def test_collect_results_restores_the_order_of_the_dataset(run_ranks):
    run_ranks(_expect_results, 2)
