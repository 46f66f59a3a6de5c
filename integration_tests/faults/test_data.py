"""Data and losses that go wrong on one of two ranks: both end in time, and the cause is named."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small_run import BATCHES

from mm_runner.checkpoint import latest_readable

SCRIPT = Path(__file__).with_name("data_faults.py")
# Of a collective, in ``data_faults.py``; the launcher and the imports come on top.
TIMEOUT_S, SLACK_S, START_S = 10, 5, 60


def run(fault, work_dir):
    command = [sys.executable, "-m", "mm_dist", "run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, SCRIPT, fault, work_dir],
        capture_output=True,
        text=True,
        check=False,
        timeout=START_S + TIMEOUT_S + SLACK_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def ends_with(message, fault, work_dir):
    """Run with a fault, and check that both ranks end for the reason given."""
    begin = time.monotonic()
    done = run(fault, work_dir)
    assert done.returncode != 0
    # Rank 0 logs to the output what the others say on the error output.
    assert message in done.stdout + done.stderr, done.stdout + done.stderr
    assert "failed first" in done.stderr.splitlines()[-1]
    took_s = time.monotonic() - begin
    sys.stdout.write(f"{fault}: both ranks had ended {took_s:.1f} s after the start\n")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param("dying-worker", "DataLoader worker (pid(s)", marks=pytest.mark.cut),
        ("broken-sample", "while it read sample 5 of BrokenSample"),
        ("uneven", "train_dataloader has 3 batches on process 1, and 2 on process 0"),
    ],
    ids=["dying-worker", "broken-sample", "uneven"],
)
def test_a_fault_of_the_data_ends_both_ranks_and_is_named(tmp_path, fault, message):
    ends_with(message, fault, tmp_path)


@pytest.mark.cut
def test_a_run_whose_loss_was_nan_resumes_and_equals_an_undisturbed_one(tmp_path):
    ends_with("after step 5 a loss is not finite", "nan", tmp_path / "nan")
    # What was saved before is whole and finite.
    _, content = latest_readable(tmp_path / "nan", print)
    assert content["meta"]["iter"] == BATCHES
    assert all(value.isfinite().all() for value in content["state_dict"].values())
    for folder in ("nan", "undisturbed"):
        done = run("none", tmp_path / folder)
        assert done.returncode == 0, done.stderr
    resumed, undisturbed = (
        torch.load(tmp_path / name / "result", weights_only=True) for name in ("nan", "undisturbed")
    )
    assert all(torch.equal(value, undisturbed[name]) for name, value in resumed.items())
