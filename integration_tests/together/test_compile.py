"""Compiled runs of two processes train as uncompiled ones, and go on as each other."""

from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("compiled_runs.py")
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def read(folder):
    checkpoint = torch.load(folder / "epoch_2.pth", weights_only=True)
    return {"weights": checkpoint["state_dict"], "optimizer": checkpoint["optimizer"]["state"]}


@pytest.mark.skipif(TORCH < (2, 0), reason="torch.compile needs torch 2.0")
def test_mixed_precision_islands_and_accumulation_are_the_same_compiled(run_ranks, tmp_path):
    run_ranks(SCRIPT, 2, "parallel")
    plain = read(tmp_path / "plain")
    torch.testing.assert_close(read(tmp_path / "whole"), plain, rtol=0, atol=1e-6)
    # Fused kernels round to bfloat16 less often.
    for name in ("regions", "to_plain", "to_regions"):
        torch.testing.assert_close(read(tmp_path / name), plain, rtol=0.05, atol=0.01)
    if TORCH >= (2, 4):
        assert any((tmp_path / "compile_cache").iterdir())
    log = next((tmp_path / "regions").glob("*/*.log")).read_text(encoding="utf-8")
    assert log.count("compile: forward by inductor") == 1


@pytest.mark.skipif(TORCH < (2, 8), reason="fully_shard is right on the CPU since torch 2.8")
def test_sharded_training_is_the_same_compiled(run_ranks, tmp_path):
    run_ranks(SCRIPT, 2, "sharded")
    plain = read(tmp_path / "plain")
    for name in ("whole", "regions", "to_plain", "to_regions"):
        torch.testing.assert_close(read(tmp_path / name), plain, rtol=1e-4, atol=1e-5)
