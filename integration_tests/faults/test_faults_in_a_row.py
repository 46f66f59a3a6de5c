"""Faults of processes, hosts and their link, one after the other, in one run over two hosts.

Whatever happens, there is a checkpoint to go on from, no rank hangs for longer than the timeout
that it was given plus five seconds, and the run ends as if nothing had happened.
"""

import os
import random
import subprocess
import sys
import time

import pytest
import torch
from fault_kinds import KINDS
from fault_table import ROWS, row_text, write_table
from job import SCRIPT, START_S, Job
from long_run import INTERVAL, TIMEOUT_S
from two_hosts import is_zombie

NUM_FAULTS, NUM_FAULTS_LONG = 20, 100
# Of ``-m cut``: with what is common to most of the others.
FEW = ("rank killed", "launcher killed", "link cut briefly")


def strike(job, fault, index, slack_s):
    """Let one fault happen; return its row of the table, or raise if a promise is not kept."""
    limit_s = TIMEOUT_S + slack_s
    ranks = [job.rank(0), job.rank(1)]
    said_before = [len(job.said(each)) for each in range(2)]
    begin, wall = time.monotonic(), time.time()
    row = {"fault": fault.name, "host": index, "how": fault.how, "policy": fault.policy}

    def has_said():
        told = "".join(job.said(each)[said_before[each] :] for each in range(2))
        alternatives = [words.format(rank=index).split("|") for words in fault.words]
        return all(any(words in told for words in each) for each in alternatives)

    if not fault.ends_ranks:
        with fault.during(job, index):
            job.wait_until(has_said, limit_s, f"{fault.name} is named")
            row["detected_s"] = time.monotonic() - begin if fault.words else None
        job.wait_for_steps(time.time())
        assert [job.rank(0), job.rank(1)] == ranks, "training was to go on in the same processes"
        return {**row, "resumed_s": 0.0, "lost_steps": 0}

    fault.strike(job, index)
    # The other rank notices.
    witness = ranks[1 - index]
    job.wait_until(lambda: is_zombie(witness), limit_s, f"{fault.name} is noticed")
    row["detected_s"] = time.monotonic() - begin
    saved = job.saved_step()
    # A step may have been saved, and its rank killed before it could tell of it.
    newest = max(job.newest_step(), saved)
    assert newest - saved <= (INTERVAL if fault.loses_steps else 0), "a checkpoint is missing"
    fault.mend(job, index)
    mended = time.time()
    job.wait_for_steps(mended)
    first = next(step for step in job.steps(0) if step[0] > wall and step[2] not in ranks)
    row["resumed_s"] = first[0] - mended if first[0] > mended else 0.0
    row["lost_steps"] = newest - (first[1] - 1)
    assert 0 <= row["lost_steps"] <= (INTERVAL if fault.loses_steps else 0)
    job.wait_until(has_said, slack_s, f"{fault.name} is named")
    return row


def choose(config):
    """Return ``(fault, host)`` of each: at random, each kind as often as the others; or the few."""
    if config.getoption("markexpr") == "cut":
        by_name = {fault.name: fault for fault in KINDS}
        return [(by_name[name], index % 2) for index, name in enumerate(FEW)]
    chance = random.Random(config.getoption("--seed"))  # noqa: S311 - no secret
    num_faults = NUM_FAULTS_LONG if config.getoption("--long") else NUM_FAULTS
    chosen = []
    while len(chosen) < num_faults:
        chosen += chance.sample(KINDS, len(KINDS))
    return [(fault, chance.randrange(2)) for fault in chosen[:num_faults]]


def run_undisturbed(work_dir, end_at):
    """Train on two ranks of this host to the same step; return the parameters."""
    work_dir.mkdir()
    (work_dir / "end_at").write_text(str(end_at))
    command = [sys.executable, "-m", "mm_dist", "run", "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, SCRIPT, work_dir], check=True, capture_output=True, env=env)
    return torch.load(work_dir / "result", weights_only=True)


def run_through(hosts, folder, faults, slack_s):
    """Let all ``faults`` happen to one run; return the rows of the table."""
    work_dir = folder / "run"
    work_dir.mkdir()
    job, rows = Job(hosts, work_dir), []
    begin = time.time()
    job.start(0)
    job.start(1)
    job.wait_for_steps(begin)
    for fault, index in faults:
        rows.append(strike(job, fault, index, slack_s))
        sys.stdout.write(f"{row_text(rows[-1])}\n")
    end_at = job.end_soon()
    job.wait_until(job.is_over, START_S, "the run ends")
    assert [launcher.returncode for launcher in job.launchers] == [0, 0], job.last_words()
    result = torch.load(work_dir / "result", weights_only=True)
    expected = run_undisturbed(folder / "undisturbed", end_at)
    for name, value in expected.items():
        assert torch.equal(result[name], value), name
    return rows


@pytest.mark.cut
def test_faults_in_a_row_lose_nothing(hosts, tmp_path, request):
    config = request.config
    rows = run_through(hosts, tmp_path, choose(config), config.getoption("--slack"))
    config.stash[ROWS] = rows
    report = config.getoption("--report")
    if report:
        write_table(rows, report)
