"""What the ranks say, and when they end, if one of them fails."""

import json
import subprocess
import sys

import pytest

JOIN = """
import os, sys, torch, mm_dist
info = mm_dist.init_dist(device_type="cpu", timeout=400)
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


def finish(processes, timeout=180):
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
    exit(int(sys.argv[2]))
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
    assert last.endswith("had left the group")


# The store is that of rank 0, and takes connections without answering them.
FREEZE = (
    JOIN.replace("timeout=400", "timeout=int(sys.argv[1])")
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


LOSE = (
    JOIN
    + """
import os, signal
mm_dist.all_reduce(torch.ones(1))
if info.rank == 1 and sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
mm_dist.all_reduce(torch.ones(3 if info.rank == 1 else 100))
mm_dist.all_reduce(torch.ones(100))
"""
)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which process has ended")
@pytest.mark.parametrize("how", ["kill", "mismatch"])
def test_rank_that_ends_without_a_word_is_named(start_ranks, how):
    ranks = start_ranks(LOSE, 4, how)
    outputs = finish(ranks)
    ended = [rank for rank, process in enumerate(ranks) if process.returncode < 0]
    assert ended
    assert how == "mismatch" or ended == [1]
    for rank in set(range(4)) - set(ended):
        last = outputs[rank][1].splitlines()[-1]
        # One that waits only for rank 0, with which the store ends, is referred to its output.
        if rank == 0 or "stopped because rank 0 had ended" not in last:
            named = [f"stopped because rank {other} of 4 on host " in last for other in ended]
            assert any(named), last
            assert "MM_DIST_DEBUG=1 names the call" in last


# What the program has begun before is its own: exit handlers, and the one timer of faulthandler.
HANDLE = (
    """
import atexit, faulthandler, sys, time
def save():
    time.sleep(11)
    raise KeyError("in a handler")
atexit.register(save)
faulthandler.dump_traceback_later(5, repeat=True, file=sys.stdout)
"""
    + JOIN
    + """
import torch.distributed as dist
mm_dist.all_reduce(torch.ones(1))
if info.rank == 1:
    pending = dist.all_reduce(torch.ones(1), async_op=True)
    raise ValueError("boom")
dist.barrier()
mm_dist.barrier()
"""
)


def test_exit_handlers_take_their_time_and_their_errors_are_shown(start_ranks):
    ranks = start_ranks(HANDLE, 2)
    for output, errors in finish(ranks):
        assert "in save" in output, "the timer has fired"
        assert errors.splitlines()[-1] == "KeyError: 'in a handler'"
    assert [rank.returncode for rank in ranks] == [1, 1]


PROMPT = """
import torch, mm_dist
info = mm_dist.init_dist(device_type="cpu", timeout=60)
undefined
total = torch.ones(1)
mm_dist.all_reduce(total)
print("the sum is", total.item(), mm_dist.get_world_size())
"""


def test_exception_at_a_prompt_leaves_the_group(start_ranks):
    prompt = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-i'], input={PROMPT!r}.encode())"
    )
    for output, errors in finish(start_ranks(prompt, 2)):
        assert output == "the sum is 2.0 2\n"
        assert "NameError" in errors
        assert "mm-dist:" not in errors
