"""A host is lost and stays away: the run goes on without it, and takes it back when it returns."""

import re
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from elastic_run import INTERVAL, NUM_EPOCHS, NUM_SAMPLES
from history import count_samples, places_of_change, read_attempts
from job import START_S, Job
from two_hosts import RENDEZVOUS_PORT

SCRIPT = Path(__file__).with_name("elastic_run.py")
# Two checkpoints at least, so that there is one to go on from.
NUM_STEPS = 2 * INTERVAL
# The launchers notice a host that is gone after 3 s, and wait 1 s for others to come.
RENDEZVOUS = (
    "last_call_timeout=1,join_timeout=120,read_timeout=5,"
    "keep_alive_interval=1,keep_alive_max_attempt=3"
)
SAID = re.compile(
    r"written by (\d) process\(es\), this run has (\d): "
    r"the data continue after sample (\d+) of pass (\d)"
)


def launch_command(launcher, host, first):
    """Return the command that starts a rank on a host, for a run of one host or two."""
    meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint={first.address}:{RENDEZVOUS_PORT}")
    place = ("--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=10", *meeting)
    if launcher == "mm-dist":
        return [sys.executable, "-m", "mm_dist", "run", *place, f"--rdzv-conf={RENDEZVOUS}"]
    # What mm-dist finds out by itself: both hosts have the name of this machine, and newer torch
    # lets no host join later.
    own = (f"--rdzv-conf={RENDEZVOUS},is_host={int(host is first)}", f"--local-addr={host.address}")
    variable = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
    return ["env", variable, sys.executable, "-m", "torch.distributed.run", *place, *own]


def start_run(launcher, hosts, work_dir):
    """Start a launcher on each of both hosts; return the run once it trains on both."""
    commands = [[*launch_command(launcher, host, hosts[0]), SCRIPT, work_dir] for host in hosts]
    job = Job(hosts, work_dir, commands)
    job.start(0)
    job.start(1)
    wait_for_ranks(job, 2)
    return job


def wait_for_ranks(job, world_size):
    """Wait until the newest attempt is one of so many ranks, and has taken some steps."""

    def is_under_way():
        newest = read_attempts(job.work_dir)[-1:]
        return any(
            attempt.world_size == world_size and attempt.num_whole_steps() >= NUM_STEPS
            for attempt in newest
        )

    job.wait_until(is_under_way, START_S, f"{world_size} rank(s) train")


def finish(job):
    """Let the run come to its end; fail unless each sample has come once in each epoch."""
    (job.work_dir / "hurry").touch()
    job.wait_until(job.is_over, START_S, "the run ends")
    assert [launcher.returncode for launcher in job.launchers] == [0, 0], job.last_words()
    attempts = read_attempts(job.work_dir)
    # The second host may have come too late for the very first.
    assert [attempt.world_size for attempt in attempts][-3:] == [2, 1, 2]
    for older, newer in pairwise(attempts):
        lost = older.last + 1 - newer.first
        assert 0 <= lost <= (INTERVAL if newer.world_size == 1 else 0), "a checkpoint is missing"
    once = Counter(range(NUM_SAMPLES))
    assert count_samples(attempts) == dict.fromkeys(range(1, NUM_EPOCHS + 1), once)
    told = SAID.findall(job.said(0) + job.said(1))
    assert {tuple(map(int, words)) for words in told} == set(places_of_change(attempts))


@pytest.mark.parametrize("launcher", ["mm-dist", "torchrun"])
def test_a_lost_host_is_done_without_and_taken_back(hosts, tmp_path, launcher):
    job = start_run(launcher, hosts, tmp_path)
    hosts[1].kill_all()
    wait_for_ranks(job, 1)
    assert "rank 0 of 2 on host" in job.said(0)
    assert "its process ended without a Python error" in job.said(0)
    job.start(1)
    wait_for_ranks(job, 2)
    finish(job)
