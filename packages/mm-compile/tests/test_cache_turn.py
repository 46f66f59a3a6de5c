import errno
import logging
import os
import subprocess
import sys
import tempfile

import pytest

from mm_compile._cache import _turn
from mm_compile._cache._turn import turn

fcntl = pytest.importorskip("fcntl", reason="there every process compiles")

HOLDER = """
import sys
from mm_compile._cache._turn import turn
with turn(sys.argv[1]):
    print("here", flush=True)
    order = sys.stdin.readline()
    if order == "raise\\n":
        raise SystemExit(3)
"""


@pytest.fixture(autouse=True)
def _own_lock_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    tempfile.tempdir = None


@pytest.fixture
def holder():
    """Start a process that is at a subject until it is told to go."""
    started = []

    def start(subject):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, subject],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "here\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


class Clock:
    """Time that passes when it is looked at; ``then`` happens at the third look."""

    def __init__(self, then=lambda: None, step_s=2.0):
        self.looks = 0
        self.then = then
        self.step_s = step_s

    def __call__(self):
        self.looks += 1
        if self.looks == 3:
            self.then()
        return self.looks * self.step_s


@pytest.mark.parametrize("end", ["done", "raise", "killed"])
def test_it_waits_for_a_process_at_the_same_graph_however_that_ends(holder, caplog, end):
    caplog.set_level(logging.INFO, "mm_compile")
    process = holder("graph")

    def finish():
        if end == "killed":
            process.kill()
        else:
            process.stdin.write(f"{end}\n")
            process.stdin.flush()
        process.wait()

    clock = Clock(finish)
    with turn("graph", clock=clock):
        assert process.poll() is not None
    assert clock.looks >= 3


def test_another_graph_does_not_wait(holder):
    process = holder("graph")

    def fail():
        raise AssertionError("it waited")

    with turn("other graph", clock=Clock(fail)):
        assert process.poll() is None


def test_waiting_is_told_and_ends(holder, caplog):
    caplog.set_level(logging.INFO, "mm_compile")
    process = holder("graph")
    with turn("graph", limit_s=9.0, clock=Clock()):
        assert process.poll() is None
    told, over = (record.getMessage() for record in caplog.records)
    assert told.startswith("compile: waiting for another process of this machine")
    assert "does not wait longer" in over


def test_a_lock_file_of_somebody_else_is_not_used(tmp_path):
    target = tmp_path / "theirs"
    (tmp_path / f"mm_compile_{os.getuid()}.lock").symlink_to(target)
    with turn("graph"):
        pass
    assert not target.exists()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EIO])
def test_a_disk_without_locks_is_not_waited_for(monkeypatch, caplog, code):
    caplog.set_level(logging.DEBUG, "mm_compile")
    refuse(monkeypatch, code)
    clock = Clock()
    with turn("graph", limit_s=9.0, clock=clock):
        assert clock.looks == 1
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert os.strerror(code) in record.getMessage()


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EACCES])
def test_both_ways_to_say_that_it_is_held_count(monkeypatch, caplog, code):
    refuse(monkeypatch, code)
    with turn("graph", limit_s=9.0, clock=Clock()):
        assert "does not wait longer" in caplog.text


def refuse(monkeypatch, code):
    def lockf(*_args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "lockf", lockf)


ASKER = """
import sys
from mm_compile._cache._turn import turn
looks = []
def clock():
    looks.append(1)
    return 2.0 * len(looks)
with turn(sys.argv[1], limit_s=1.0, clock=clock):
    print(len(looks) > 1)
"""


def others_wait_for(subject):
    command = [sys.executable, "-c", ASKER, subject]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout == "True\n"


def test_the_end_of_one_turn_of_a_process_ends_no_other_one():
    with turn("graph"):
        with turn("other graph"):  # of another thread
            assert others_wait_for("other graph")
        assert others_wait_for("graph")
        assert not others_wait_for("other graph")
    assert not others_wait_for("graph")


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_lock_file_that_is_gone_is_made_anew(tmp_path, is_closed):
    path = tmp_path / f"mm_compile_{os.getuid()}.lock"
    with turn("graph"):
        pass
    if is_closed:  # as a process does that goes to the background
        os.close(_turn._descriptors[path])
    else:
        path.unlink()
    with turn("graph"):
        assert others_wait_for("graph")
