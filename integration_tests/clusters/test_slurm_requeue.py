"""A job that has to leave saves, joins the queue again, and ends as if it never had left.

What is submitted is the script that users copy.
"""

import re
import shutil
import time
from pathlib import Path

import pytest
from slurm import URGENT_PARTITION
from training import (
    CONFIG,
    FEW_EPOCHS,
    HERE,
    SLOW,
    TEMPLATES,
    assert_equal_runs,
    hurry,
    read_checkpoint,
    wait_until_it_trains,
)

_IS_GOING = ("PENDING", "RUNNING")


@pytest.fixture
def submit(slurm, tmp_path):
    """``submit(*options, hook=...)`` returns the number of a job and its work directory."""
    shutil.copytree(HERE / "examples", tmp_path / "examples")
    jobs = []

    def run(*options, hook):
        layout = ("--ntasks-per-node=1", "--gres=gpu:1", *options)
        script = (TEMPLATES / "train.sbatch", CONFIG, *FEW_EPOCHS, hook)
        jobs.append(slurm.submit(*layout, *script, cwd=tmp_path))
        return jobs[-1], tmp_path / "work_dirs" / f"train-{jobs[-1]}.0"

    yield run
    for job in jobs:
        slurm.run("scancel", job)
    slurm.wait_until_idle()


@pytest.fixture
def submit_slow(slurm, submit):
    """Submit a job that trains until it is hurried, and wait until it does."""

    def run(*options):
        job, work_dir = submit(*options, hook=SLOW)
        is_alive = lambda: slurm.describe(job)["JobState"] in _IS_GOING  # noqa: E731
        wait_until_it_trains(work_dir, 2, is_alive)
        return job, work_dir

    return run


def send_signal(slurm, job):
    slurm.run("scancel", "--signal=USR1", job)


def preempt(slurm, _job):
    # Both machines whole: it gets them at once, and the other job is told to leave.
    urgent = ("--partition", URGENT_PARTITION, "--exclusive", "--nodes=2", "--immediate=60")
    slurm.run("srun", *urgent, "true")


def run_out_of_time(slurm, job):
    # Slurm looks every 30 s whether the time for the signal comes before it looks again.
    notice_s, interval_s = 5, 30
    minutes = (slurm.seconds_since(job, "StartTime") + notice_s + interval_s) // 60 + 1
    slurm.run("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes:.0f}")


@pytest.mark.parametrize(
    ("leave", "options"),
    [
        pytest.param(send_signal, ("--time=10",), id="scancel-signal", marks=pytest.mark.cut),
        pytest.param(preempt, ("--time=10",), id="preemption"),
        pytest.param(run_out_of_time, ("--time=10", "--signal=USR1@5"), id="time-limit"),
    ],
)
def test_job_saves_requeues_and_resumes(slurm, submit_slow, config_reference, leave, options):
    job, work_dir = submit_slow(*options)
    leave(slurm, job)
    # Slurm holds a requeued job for two minutes, lest its nodes still be busy ending it.
    slurm.wait_for(job, "PENDING")
    slurm.wait_until_idle()
    # It counts whole seconds: not just after it was requeued.
    while slurm.seconds_since(job, "SubmitTime") < 5:
        time.sleep(0.1)
    hurry(work_dir)
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now", "TimeLimit=10")
    found = slurm.wait_for(job, "COMPLETED")
    assert found["Restarts"] == "1"
    output = Path(found["StdOut"]).read_text()
    (steps,) = re.findall(
        r"preempted and leaves after epoch \d+, step (\d+), with status 75", output
    )
    assert f"step {steps}" in output.partition("Resumed after")[2].partition("\n")[0]
    assert_equal_runs(work_dir, config_reference(*FEW_EPOCHS))


def test_cancelled_job_saves_and_stays_away(slurm, submit_slow):
    job, work_dir = submit_slow("--time=10")
    slurm.run("scancel", job)
    slurm.wait_for(job, "CANCELLED")
    slurm.wait_until_idle()
    assert slurm.describe(job)["JobState"] == "CANCELLED"
    assert read_checkpoint(work_dir)["meta"]["iter"] > 0


@pytest.mark.parametrize("rank", [0, 1])
def test_job_that_fails_on_one_rank_ends_and_says_why(slurm, submit, rank):
    hook = f'custom_hooks=[{{"type": "pace:FailOnRank", "rank": {rank}, "step": 3}}]'
    job, _ = submit("--time=10", hook=hook)
    found = slurm.wait_for(job, "FAILED")
    assert found["Restarts"] == "0"
    assert found["ExitCode"] != "75:0"
    assert "the rank that fails" in Path(found["StdOut"]).read_text()
