"""A model sharded over two processes and the whole one in one process are the same training."""

from pathlib import Path

import pytest
import torch

from mm_runner.checkpoint import load_checkpoint_file

SCRIPT = Path(__file__).with_name("sharded_steps.py")
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


@pytest.mark.skipif(TORCH < (2, 8), reason="fully_shard is right on the CPU since torch 2.8")
def test_checkpoints_of_sharded_and_whole_runs_go_on_as_each_other(run_ranks, tmp_path):
    run_ranks(SCRIPT, 1, "whole", 1, 2)
    run_ranks(SCRIPT, 2, "sharded", 2, 1)
    run_ranks(SCRIPT, 1, "to_whole", 1, 2, "sharded/epoch_1.pth")
    run_ranks(SCRIPT, 2, "to_sharded", 2, 2, "whole/epoch_1.pth")
    first, last = (read(tmp_path / f"whole/epoch_{epoch}.pth") for epoch in (1, 2))
    expect_equal(read(tmp_path / "sharded/epoch_1.pth"), first)
    expect_equal(read(tmp_path / "to_whole/epoch_2.pth"), last)
    expect_equal(read(tmp_path / "to_sharded/epoch_2.pth"), last)


def read(path):
    checkpoint = load_checkpoint_file(path)
    return {"weights": checkpoint["state_dict"], "optimizer": checkpoint["optimizer"]["state"]}


def expect_equal(actual, expected):
    assert list(actual["optimizer"]) == list(expected["optimizer"]) == [0, 1, 2, 3]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
