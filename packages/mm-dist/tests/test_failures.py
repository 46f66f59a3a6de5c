"""What the ranks say, and when they end, if one of them fails."""

import json
import subprocess
import sys

import pytest

JOIN = """
import os, sys, torch, mm_dist
info = mm_dist.init_dist(device_type="cpu", timeout=100)
"""
# Rank 1 fails while rank 0 waits for it; what it left open at exit is looked at, too.
RAISE = (
    JOIN
    + """
if os.environ.get("SEVERAL"):
    os.environ["TORCHELASTIC_ERROR_FILE"] += str(info.rank)
mm_dist.all_reduce(torch.ones(1))
import atexit
atexit.register(lambda: print(mm_dist.get_dist_info(), mm_dist.get_local_rank()))
if info.rank == 1:
    raise ValueError("boom")
mm_dist.all_reduce(torch.ones(1))
"""
)


def finish(processes, timeout=90):
    """Return what each rank printed; far below the timeout of the group."""
    return [process.communicate(timeout=timeout) for process in processes]


def test_rank_that_raises_is_named_and_ends_the_waiting_of_the_others(start_ranks, tmp_path):
    error_file = tmp_path / "error"
    ranks = start_ranks(RAISE, 2, SEVERAL=1, TORCHELASTIC_ERROR_FILE=error_file)
    (stdout_0, stderr_0), (stdout_1, stderr_1) = finish(ranks)
    assert [rank.returncode for rank in ranks] == [1, 1]
    last_0, last_1 = stderr_0.splitlines()[-1], stderr_1.splitlines()[-1]
    assert last_1.startswith("mm-dist: rank 1 of 2 on host ")
    assert last_1.endswith(" failed: ValueError: boom")
    assert last_0.startswith("mm-dist: rank 0 of 2 on host ")
    assert f"stopped because {last_1.removeprefix('mm-dist: ')}" in last_0
    assert "Connection" in stderr_0, "its own traceback is there, too"
    assert stdout_0 == "(0, 2) 0\n"
    assert stdout_1 == "(1, 2) 1\n", "exit handlers know their rank"
    first, second = (json.loads((tmp_path / f"error{rank}").read_text()) for rank in (1, 0))
    first, second = first["message"], second["message"]
    assert first["message"] == "ValueError: boom"
    assert first["extraInfo"]["py_callstack"].startswith("Traceback")
    assert first["extraInfo"]["py_callstack"].endswith(f"ValueError: boom\n{last_1}")
    assert first["extraInfo"]["is_consequence"] is False
    assert second["extraInfo"]["is_consequence"] is True
    assert second["extraInfo"]["first_failure"]["error"] == "ValueError: boom"
    assert int(first["extraInfo"]["timestamp"]) < int(second["extraInfo"]["timestamp"])


def test_torchruns_last_lines_name_the_first_failure(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(RAISE)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [sys.executable, *launch, str(script)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1
    summary = result.stderr[result.stderr.rindex("Root Cause (first observed failure)") :]
    assert "rank      : 1 (local_rank: 1)" in summary
    assert summary.count("ValueError: boom") == 2, "the traceback, and the line of mm-dist"


# Each question to the store takes rank 1 longer than rank 0 needs to end, and the store with it.
PART = (
    JOIN
    + """
import time
import torch.distributed as dist
mm_dist.barrier()
add = dist.TCPStore.add
def add_late(*arguments):
    time.sleep(0.5)
    return add(*arguments)
if info.rank == 1:
    dist.TCPStore.add = add_late
mm_dist.destroy_dist()
"""
)


def test_ranks_that_part_ask_nothing_of_a_store_that_may_be_gone(start_ranks):
    ranks = start_ranks(PART, 2)
    assert finish(ranks) == [("", ""), ("", "")]
    assert [rank.returncode for rank in ranks] == [0, 0]


LEAVE = (
    JOIN
    + """
mm_dist.barrier()
if info.rank == int(sys.argv[1]):
    sys.exit(int(sys.argv[2]))
try:
    mm_dist.all_reduce(torch.ones(1))
except RuntimeError as error:
    raise KeyError("in a handler") from error
"""
)


@pytest.mark.parametrize(("leaver", "status"), [(1, 3), (0, 0)], ids=["other", "rank-zero"])
def test_rank_that_leaves_early_is_named(start_ranks, leaver, status):
    ranks = start_ranks(LEAVE, 2, leaver, status)
    outputs = finish(ranks)
    assert ranks[leaver].returncode == status
    assert outputs[leaver][1] == ""
    last = outputs[1 - leaver][1].splitlines()[-1]
    assert f"rank {1 - leaver} of 2" in last
    assert f"stopped because rank {leaver} of 2 on host" in last
    assert last.endswith("had left the group without an error")


# The store is that of rank 0, and takes connections without answering them.
FREEZE = (
    JOIN.replace("timeout=100", "timeout=int(sys.argv[1])")
    + """
import os, signal
mm_dist.barrier()
if info.rank == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
mm_dist.all_reduce(torch.ones(1))
"""
)


@pytest.mark.skipif(sys.platform == "win32", reason="no process can be frozen")
def test_frozen_rank_zero_keeps_nobody(start_ranks):
    frozen, waiting = start_ranks(FREEZE, 2, 4)
    # It ends by itself; before, it asked the store for ever who else had failed.
    _, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 1
    assert frozen.poll() is None
    assert errors.splitlines()[-1].startswith("mm-dist: rank 1 of 2 on host ")
    assert "Timed out waiting 4000ms" in errors.splitlines()[-1]
    assert errors.splitlines()[-1].endswith("the link to its machine is cut")
    assert "rank 0 does not answer: it is frozen" in errors.splitlines()[-1]
