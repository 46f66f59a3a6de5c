"""A process that leaves keeps its status, however late another signal comes."""

import os
import signal
import subprocess
import sys

import pytest

_SCRIPT = """
import os, signal, sys
from mm_runner.runner._interruption import StopSignals

class Late:
    # Called while the interpreter ends, when Python's own handlers are gone.
    def __del__(self, kill=os.kill, pid=os.getpid(), number={number}):
        kill(pid, number)

late = Late()
signals = StopSignals(lambda number: None)
{leave}
sys.exit(75)
"""


def run(leave, number):
    script = _SCRIPT.format(leave=leave, number=int(number))
    return subprocess.run([sys.executable, "-c", script], check=False).returncode


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_signal_while_the_interpreter_ends_does_not_change_the_status(name):
    number = getattr(signal, name)
    assert run("signals.leave()", number) == 75
    assert run("signals.restore()", number) == -number
