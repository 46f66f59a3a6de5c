from pathlib import Path

import pytest

from mm_dist import ConfigError, collect_results


def _expect_dataset_order(rank, tmpdir):
    for size in (0, 1, 7, 8, 21):
        dataset = [None if index == 2 else f"item-{index}" for index in range(size)]
        mine = dataset[rank::2]
        for options in ({}, {"tmpdir": tmpdir}, {"device": "gpu"}):
            collected = collect_results(mine, size, **options)
            assert collected == (dataset if rank == 0 else None), (size, options)
    padded = [[0, 2, 4], [1, 3, 0]][rank]
    assert collect_results(padded, 5) == ([0, 1, 2, 3, 4] if rank == 0 else None)
    with pytest.raises(ConfigError, match=r"asked for 9 results, but all 2 ranks together have 6"):
        collect_results(padded, 9)
    # A directory of its own on each rank: not shared. The relative path is rank 0's.
    with pytest.raises(ConfigError, match="cannot be used by rank 0"):
        collect_results(padded, 5, tmpdir=f"{tmpdir}/keep.txt/below")


def test_collect_results_restores_the_order_of_the_dataset(run_ranks, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "keep.txt").write_text("mine")
    run_ranks(_expect_dataset_order, 2, str(shared))
    assert [path.name for path in shared.iterdir()] == ["keep.txt"]


def _expect_unshared_directory(rank, tmpdir):
    if rank == 1:
        # A stand-in for a second machine that does not see the first one's files.
        Path.is_dir = lambda _: False
    with pytest.raises(ConfigError, match=r"is not shared: .* which rank 1 cannot see"):
        collect_results([rank], 2, tmpdir=tmpdir)


def test_collect_results_says_that_a_directory_is_not_shared(run_ranks, tmp_path):
    run_ranks(_expect_unshared_directory, 2, str(tmp_path / "new"))
