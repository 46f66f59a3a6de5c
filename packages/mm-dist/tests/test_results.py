from pathlib import Path

import pytest
import torch

from mm_dist import CollectiveError, ConfigError, collect_results, collect_results_cpu
from mm_dist import collect_results_gpu as collect_gpu


def _expect_dataset_order(rank, tmpdir):
    for size in (0, 1, 7, 8, 21):
        dataset = [None if index == 2 else f"item-{index}" for index in range(size)]
        mine = dataset[rank::2]
        for options in ({}, {"tmpdir": tmpdir}, {"device": "gpu"}):
            collected = collect_results(mine, size, **options)
            assert collected == (dataset if rank == 0 else None), (size, options)
    # A sampler pads 21 samples to 11 on each of two ranks.
    padded = [*range(rank, 21, 2), *([0] if rank else [])]
    length = torch.tensor(21)  # a number of another kind than int
    assert collect_results(padded, length) == (list(range(21)) if rank == 0 else None)
    for collect in (collect_results, collect_results_cpu, collect_gpu):
        assert collect(padded, 21) == (list(range(21)) if rank == 0 else None)
    with pytest.raises(
        ConfigError, match=r"asked for 29 results, but all 2 ranks together have 22"
    ):
        collect_results(padded, 29)
    with pytest.raises(CollectiveError, match=r"failed on rank 0: (NotADirectory|FileExists)Error"):
        collect_results(padded, 5, tmpdir=f"{tmpdir}/keep.txt/below")
    with pytest.raises(ConfigError, match="size=-1 is no length"):
        collect_results(padded, -1)


def _expect_shared_parts(rank, tmpdir):
    """Results that share an object still do, within what travels together."""
    classes = ["cat", "dog"]
    results = [{"classes": classes, "id": index} for index in range(rank, 8, 2)]
    for options in ({}, {"tmpdir": tmpdir}):
        collected = collect_results(results, 8, **options)
        if rank == 0:
            assert [each["id"] for each in collected] == list(range(8))
            assert len({id(each["classes"]) for each in collected}) == 2


class FailsLate:
    def __reduce__(self):
        raise RuntimeError("no more")


class NotReadable:
    def __reduce__(self):
        return int, ("this is no number",)


def _expect_file_errors(rank, tmpdir):
    for message, result in (
        ("failed on rank 1: RuntimeError: no more", FailsLate()),
        ("failed on rank 0: ValueError: invalid literal", NotReadable()),
    ):
        with pytest.raises(CollectiveError, match=message):
            collect_results([torch.ones(1), result if rank else 0], 4, tmpdir=tmpdir)
    with pytest.raises(CollectiveError, match="with a tmpdir on 1 of 2 ranks"):
        collect_results([0], 2, tmpdir=tmpdir if rank else None)


def _expect_all(rank, tmpdir):
    _expect_dataset_order(rank, tmpdir)
    _expect_shared_parts(rank, tmpdir)
    _expect_file_errors(rank, tmpdir)


def test_collect_results_restores_the_order_of_the_dataset(run_ranks, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "keep.txt").write_text("mine")
    run_ranks(_expect_all, 2, str(shared))
    assert [path.name for path in shared.iterdir()] == ["keep.txt"], "the folders are removed"


def test_collect_results_makes_the_directory(run_ranks, tmp_path):
    run_ranks(_expect_new_directory, 1, str(tmp_path / "new" / "deep"))
    assert list(Path(tmp_path / "new" / "deep").iterdir()) == []


def _expect_new_directory(rank, tmpdir):
    assert collect_results([rank, 1], 2, tmpdir=tmpdir) == [0, 1]
