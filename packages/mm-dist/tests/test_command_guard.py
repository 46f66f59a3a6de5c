"""What watches a launcher from outside; the launchers here are forked, and do as the test says."""

import argparse
import signal
import sys

import pytest

from mm_dist._command._run_guard import GuardPlan, plan_guard

linux_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells who is whose child"
)
# What all scripts begin with: a launcher counts how often it was started.
START = """
import os, pathlib, signal, subprocess, sys, time
from mm_dist._command._run_guard import GuardPlan, guard_launcher

def make_plan(rejoin_s=30, num_again=1, silence_s=60):
    return GuardPlan("10.0.0.1:29400", silence_s, rejoin_s, 1, num_again)

plan = make_plan()

def count():
    file = pathlib.Path("starts")
    number = int(file.read_text() or 0) + 1 if file.exists() else 1
    file.write_text(str(number))
    return number
"""
SCENARIOS = {
    "fails": """
def launch(contact):
    contact.say_talked(b"")
    return 3 + count() - 1
""",
    "killed": """
def launch(contact):
    contact.say_talked(b"")
    if count() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return 5
""",
    "killed-too-often": """
def launch(contact):
    contact.say_talked(b"")
    count()
    os.kill(os.getpid(), signal.SIGKILL)
""",
    "hangs": """
plan = make_plan(silence_s=1)
def launch(contact):
    contact.say_talked(b"")
    if count() == 1:
        time.sleep(60)
    return 0
""",
    "loses-the-others": """
def launch(contact):
    number = count()
    if number in (1, 3):
        contact.say_talked(b"")
    if number < 3:
        contact.say_lost()
        return 1
    return 0
""",
    "never-meets": """
def launch(contact):
    count()
    contact.say_lost()
    return 1
""",
    "finds-nobody-again": """
plan = make_plan(rejoin_s=0, num_again=9)
def launch(contact):
    if count() == 1:
        contact.say_talked(b"")
    contact.say_lost()
    return 1
""",
    "leaves-ranks-behind": """
SLEEP = "print(flush=True); time.sleep(60)"
PLAIN = f"import time; {SLEEP}"
TRAP = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
def launch(contact):
    contact.say_talked(b"")
    if count() == 1:
        # One that ends when told to, one that does not, and one that is frozen.
        ranks = [
            subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
            for program in (PLAIN, TRAP, TRAP)
        ]
        for rank in ranks:
            rank.stdout.readline()
        os.kill(ranks[2].pid, signal.SIGSTOP)
        pathlib.Path("ranks").write_text(" ".join(str(rank.pid) for rank in ranks))
        os.kill(os.getpid(), signal.SIGKILL)
    ranks = pathlib.Path("ranks").read_text().split()
    return 10 + sum(os.path.exists(f"/proc/{pid}") for pid in ranks)
""",
    "ends-the-run-for-all": """
import pickle, types
class State:
    closed = True
def launch(contact):
    count()
    contact.say_talked(pickle.dumps(State()))
    contact.say_lost()
    return 1
""",
}
RUN = "sys.exit(guard_launcher(launch, plan))\n"


@linux_only
@pytest.mark.parametrize(
    ("scenario", "status", "num_starts", "words"),
    [
        ("fails", 3, 1, ""),
        ("killed", 5, 2, "was killed by signal 9; another one takes its place (1 of 1)"),
        ("killed-too-often", 137, 2, "was killed by signal 9; it is not started again"),
        ("hangs", 0, 2, "had no answer from 10.0.0.1:29400 for"),
        ("loses-the-others", 0, 3, "lost its connection to 10.0.0.1:29400; another one"),
        ("never-meets", 1, 1, ""),
        ("finds-nobody-again", 1, 2, "and none met the others within 0 s"),
        ("leaves-ranks-behind", 10, 2, "was killed by signal 9; another one takes its place"),
        ("ends-the-run-for-all", 1, 1, ""),
    ],
)
def test_lost_launcher_is_replaced(run_script, tmp_path, scenario, status, num_starts, words):
    result = run_script(f"import os\nos.chdir({str(tmp_path)!r}){START}{SCENARIOS[scenario]}{RUN}")
    assert result.returncode == status, result.stderr
    assert (tmp_path / "starts").read_text() == str(num_starts)
    assert words in result.stderr if words else not result.stderr


@linux_only
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=["term", "usr1"])
def test_signal_is_passed_on_and_nothing_started_again(start_ranks, tmp_path, number):
    launch = """
def launch(contact):
    contact.say_talked(b"")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(75))
    print(os.getpid(), count(), flush=True)
    time.sleep(60)
"""
    source = f"import os\nos.chdir({str(tmp_path)!r}){START}{launch}{RUN}"
    (guard,) = start_ranks(source, 1)
    pid, num_starts = map(int, guard.stdout.readline().split())
    assert (pid != guard.pid, num_starts) == (True, 1)
    guard.send_signal(number)
    _, errors = guard.communicate(timeout=60)
    assert (guard.returncode, errors) == (75, "")


@linux_only
def test_launcher_ends_with_its_guard(start_ranks, tmp_path):
    launch = """
def launch(contact):
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(pathlib.Path("told").touch()))
    print(flush=True)
    time.sleep(60)
"""
    (guard,) = start_ranks(f"import os\nos.chdir({str(tmp_path)!r}){START}{launch}{RUN}", 1)
    guard.stdout.readline()
    guard.kill()
    # Ends as soon as the launcher has closed it, too.
    guard.communicate(timeout=60)
    assert (tmp_path / "told").exists()


def test_plan_follows_from_the_options():
    given = argparse.Namespace(
        rdzv_conf="is_host=1,keep_alive_interval=2,join_timeout=40,read_timeout=10",
        rdzv_endpoint="a:1",
        max_restarts=3,
        shutdown_timeout=4,
    )
    assert plan_guard(given) == GuardPlan("a:1", 6, 40, 4, 3)
    given.rdzv_conf, given.shutdown_timeout = "", None
    assert plan_guard(given) == GuardPlan("a:1", 15, 600, 30, 3)
