"""Real jobs of gloo ranks that hang, started as a launcher starts them, all at once."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from mm_dist import mark_iteration
from mm_dist._progress import Progress, advance_iteration, current_iteration
from mm_dist.diagnose._report import Peer, Survey, plan_timing, write_report
from mm_dist.diagnose._sample import Sample, Standing

JOB = Path(__file__).parent / "hang_report_job"
TIMEOUT_S = 5  # of train.py
LIMIT_S = 150
# Mode of train.py: how many ranks, and which of them end by themselves.
MODES = {
    "skip": (3, [0, 2]),
    "backward": (2, [0]),
    "mismatch": (2, [0, 1]),
    "chain": (3, [0, 1]),
    "freeze": (2, [0]),
    "steady": (2, [0, 1]),
    "again": (2, [0, 1]),
    "off": (2, [0, 1]),
}
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc_per_node=2"],
    "mm-dist run": ["mm_dist", "run", "--nproc-per-node=2"],
}
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@dataclass
class Outcome:
    """What the ranks of a job printed, in one stream, and how those that ended did."""

    text: str
    statuses: list


def find_line(mark, file="train.py"):
    lines = (JOB / file).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}")]
    return f"{file}:{number}"


def start(*command, **arguments):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    env |= arguments.pop("env", {})
    # A session of its own: whatever it starts can be ended with it.
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=env,
        start_new_session=True,
        text=True,
        **arguments,
    )


def start_launcher(name, folder):
    meeting = folder / f"{name} meeting"
    meeting.mkdir()
    with (folder / name).open("w") as output:
        return start(
            "-m",
            *LAUNCHERS[name],
            JOB / "train.py",
            "skip",
            env={"MEETING_FOLDER": str(meeting)},
            stdout=output,
            stderr=output,
        )


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The outcome of every mode, and that of ``skip`` under both launchers."""
    folder = tmp_path_factory.mktemp("jobs")
    launchers = {name: start_launcher(name, folder) for name in LAUNCHERS}
    ranks = start(JOB / "start.py", folder, json.dumps(MODES), stdout=subprocess.PIPE)
    try:
        statuses = json.loads(ranks.communicate(timeout=LIMIT_S)[0])
        for name, launcher in launchers.items():
            statuses[name] = [launcher.wait(LIMIT_S)]
    finally:
        for process in (*launchers.values(), ranks):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    return {mode: Outcome((folder / mode).read_text(), statuses[mode]) for mode in statuses}


def check_time(outcome):
    """Check that the first rank to end said why, within the timeout and 5 s more."""
    ends = [float(text) for text in re.findall(r"ended after (\S+) s", outcome.text)]
    assert ends
    assert min(ends) < TIMEOUT_S + 5
    assert outcome.text.index("hang report") < outcome.text.index("Traceback")


@needs_fork
def test_the_rank_that_skips_a_collective_is_named(outcomes):
    outcome = outcomes["skip"]
    place = find_line("SKIPPED")
    sentence = (
        f"rank 1 never entered all_reduce #3 ({place}), now in {find_line('HERE', 'data.py')}"
    )
    lines = outcome.text.splitlines()
    assert outcome.text.count("hang report") == 1, "one rank speaks for all"
    begin = lines.index(f"  {sentence}")
    assert lines[begin + 1] == "    iteration 3"
    assert re.search(r"^    data\.py:\d+ in load: time\.sleep\(600\)", outcome.text, re.MULTILINE)
    assert f"  ranks 0, 2 waiting in all_reduce #3 ({place})" in lines
    last = [line for line in lines if line.startswith("mm-dist: rank")]
    assert last
    assert all(line.endswith(f" - {sentence}") for line in last if "imed out" in line)
    check_time(outcome)
    assert outcome.statuses == [1, 1]


@needs_fork
@pytest.mark.parametrize(
    ("launcher", "summary"),
    [("torchrun", "Root Cause"), ("mm-dist run", "--- mm-dist run: the rank that failed first")],
)
def test_the_launcher_says_it_last(outcomes, launcher, summary):
    text = outcomes[launcher].text
    here = f"now in {find_line('HERE', 'data.py')}"
    sentence = f"rank 1 never entered all_reduce #3 ({find_line('SKIPPED')}), {here}"
    assert sentence in text[text.rindex(summary) :]
    if launcher == "mm-dist run":
        assert text.splitlines()[-1].endswith(f" - {sentence}")
    # What started the script is no part of where it is.
    report = text[text.index("hang report") : text.index("Traceback")]
    assert "train.py" in report
    assert not re.search("_worker|runpy", report)
    check_time(outcomes[launcher])
    assert outcomes[launcher].statuses == [1]


@needs_fork
def test_a_wait_in_backward_is_explained(outcomes):
    text = outcomes["backward"].text
    place, here = find_line("BACKWARD"), find_line("HERE", "data.py")
    # Where torch keeps no record of gloo's collectives, nothing tells which one it is.
    operation = r"(all_reduce #\d+|collective #\d+ of backward)"
    assert re.search(rf"rank 1 never entered {operation} \({place}\), now in {here}\n", text)
    assert re.search(rf"rank 0 waiting in {operation} \({place}\)", text)
    check_time(outcomes["backward"])


@needs_fork
def test_different_collectives_are_set_against_each_other(outcomes):
    text = outcomes["mismatch"].text
    reduced, broadcast = find_line("REDUCED"), find_line("BROADCAST")
    assert (
        "the ranks are in different collectives, which never meet: "
        f"rank 0 in all_reduce #2 ({reduced}); rank 1 in broadcast #2 ({broadcast})\n"
    ) in text
    check_time(outcomes["mismatch"])


@needs_fork
def test_the_rank_at_the_end_of_a_chain_is_named_first(outcomes):
    text = outcomes["chain"].text
    first, second = find_line("FIRST"), find_line("SECOND")
    here = find_line("HERE", "data.py")
    # Older torch begins to count anywhere.
    text = text.replace("all_reduce #1 ", "all_reduce ")
    culprit = f"  rank 2 never entered all_reduce ({second}) among ranks 1-2, now in {here}\n"
    between = (
        f"  rank 1 never entered all_reduce ({first}) among ranks 0-1, waiting in all_reduce ("
    )
    assert text.index(culprit) < text.index(between)
    assert f"  rank 0 waiting in all_reduce ({first}) among ranks 0-1\n" in text
    check_time(outcomes["chain"])


@needs_fork
def test_a_rank_that_does_not_answer_is_named(outcomes):
    text = outcomes["freeze"].text
    place = find_line("FROZEN")
    silent = r"  rank 1 gave no answer: may have died, be stuck outside Python.*; perhaps not"
    assert re.search(rf"{silent} in all_reduce #2 \({place}\)\n", text)
    check_time(outcomes["freeze"])


def test_a_rank_that_does_not_answer_is_named_in_backward_too():
    sample = replace(WAITING, operation="backward", is_collective=False)
    told = report({0: Peer(sample, is_answer=True), 1: Peer()}).summary
    assert re.match(r"rank 1 gave no answer: .*; perhaps not in collective #9 of backward", told)


@needs_fork
@pytest.mark.parametrize("mode", ["steady", "again", "off"])
def test_nothing_is_said_where_nothing_hangs(outcomes, mode):
    outcome = outcomes[mode]
    assert outcome.statuses == [0, 0], outcome.text
    # torch says so wherever the name service does not answer at the moment.
    unnamed = "The hostname of the client socket cannot be retrieved"
    lines = [line for line in outcome.text.splitlines() if unnamed not in line]
    assert sorted(lines) == ["finished 0", "finished 1"]


def stand(count, age_s=600.0):
    return Standing(count, is_exact=True, age_s=age_s, timeout_s=600.0)


WAITING = Sample(
    iteration=8,
    operation="all_reduce",
    is_collective=True,
    place="train.py:7",
    stack=["train.py:7 in main: dist.all_reduce(x)"],
    same_place_s=600.0,
    wall_time=0.0,
    standings={"0": stand(9)},
)
BUSY = replace(WAITING, operation="", is_collective=False)


def report(peers, **arguments):
    return write_report(Survey(peers, {}, "0"), 0, plan_timing(600.0, len(peers)), **arguments)


def test_a_report_of_many_ranks_fits_a_screen():
    peers = {rank: Peer(WAITING, is_answer=True) for rank in range(1024)}
    for rank in range(100, 200):
        lost = replace(BUSY, place=f"data.py:{rank}", standings={"0": stand(8)})
        peers[rank] = Peer(lost, is_answer=True)
    broken = replace(WAITING, error="ValueError: boom", standings={"0": stand(8)})
    peers[1] = Peer(Sample.decode(broken.encode()), is_answer=True)
    peers[2] = Peer(has_left=True)
    lines = report(peers).text.splitlines()
    entered = "never entered all_reduce #9 (train.py:7)"
    assert f"  rank 1 {entered}, failed in train.py:7: ValueError: boom" in lines
    assert f"  rank 2 {entered}, left: ended the process group" in lines
    assert "  ranks 0, 3-99, 200-1023 waiting in all_reduce #9 (train.py:7)" in lines
    assert "  and the same of ranks 106-199, each in a place of its own" in lines
    assert len(lines) < 50


def test_nothing_is_reported_while_the_wait_is_short():
    young = replace(WAITING, same_place_s=1.0, standings={"0": stand(9, age_s=1.0)})
    late = replace(BUSY, same_place_s=1.0, standings={"0": stand(8, age_s=1.0)})
    peers = {0: Peer(young, is_answer=True), 1: Peer(late, is_answer=True)}
    assert report(peers) is None
    # torch has given up: then it is one, however short it was.


def test_ranks_that_compute_are_not_reported():
    assert report({rank: Peer(BUSY, is_answer=True) for rank in range(2)}) is None


def test_iterations_are_counted_until_the_loop_numbers_them(monkeypatch):
    monkeypatch.setattr("mm_dist._progress.progress", Progress())
    assert current_iteration() is None
    advance_iteration()
    advance_iteration()
    assert current_iteration() == 2
    mark_iteration(40)
    advance_iteration()
    assert current_iteration() == 40
