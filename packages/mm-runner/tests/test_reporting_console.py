"""The bar on a terminal, the lines elsewhere, and the time that they say is left."""

import errno
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from toy import Scripted, loader_cfg
from typing_extensions import override

from mm_runner.hooks import Hook
from mm_runner.reporting import RunConsole, as_clock

SCRIPT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from toy import runner_arguments
from mm_runner import Runner
if __name__ == "__main__":
    Runner(**runner_arguments(sys.argv[1], default_hooks=dict(logger=dict(interval=2)))).train()
"""


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr("time.perf_counter", lambda: now.s)
    return now


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.9, "0:00:00"),
        (3661, "1:01:01"),
        (90000, "1 day, 1:00:00"),
        (1e18, "999999999 days, 23:59:59"),
    ],
)
def test_durations_are_told_as_clocks(seconds, text):
    assert as_clock(seconds) == text


class TakesTime(Hook):
    """Each step takes a second."""

    def __init__(self, clock):
        self.clock = clock

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.clock.s += 1


class SlowMetric(Scripted):
    """Each validation takes an hour."""

    def __init__(self, clock):
        super().__init__(values=[0.5, 0.5])
        self.clock = clock

    def compute_metrics(self, results):
        self.clock.s += 3600
        return super().compute_metrics(results)


def test_lines_say_the_time_left_without_validations(make_runner, clock):
    file = io.StringIO()
    runner = make_runner(
        val_evaluator=SlowMetric(clock),
        custom_hooks=[TakesTime(clock)],
        default_hooks={"logger": {"interval": 3}},
    )
    runner.console._console = Console(file=file, width=200, force_terminal=True)
    runner.train()
    text = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", file.getvalue())
    lines = re.findall(r"Epoch\(train\) .*eta: (\S+)", text)
    assert lines == ["0:00:09", "0:00:06", "0:00:03", "0:00:00"]
    assert re.search(r"epoch 1/2 [^\r\n]* 3/12 eta \S+ loss \d\.\d{4}", text)


def test_a_run_on_a_pseudo_terminal_has_a_bar_that_ends_and_lines_above_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ours, theirs = os.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "run")],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    assert process.wait(60) == 0, shown.decode()
    plain = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", shown.decode())
    assert re.search(r"epoch 1/2 .*\d+% +\d+/12 eta \d:\d\d:\d\d .*loss \d\.\d+", plain)
    assert "12/12" in plain
    assert len(re.findall(r"\d\d:\d\d:\d\d INFO Epoch\(train\) .*loss: ", plain)) == 6
    assert re.search(r"epoch 1/2 .*6/12.*\s+validation .*100% 3/3", plain)
    assert shown.rindex(b"Trained Classifier") > shown.rindex(b"12/12"), "the bar stands below"
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h"), "the cursor stayed hidden"


def test_a_run_into_a_pipe_writes_plain_lines_one_per_interval(run_script, tmp_path):
    result = run_script(SCRIPT, tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout
    assert "\r" not in result.stdout
    assert len(re.findall(r"INFO Epoch\(train\) .*eta: .*loss: ", result.stdout)) == 6
    found = re.findall(
        r"INFO Epoch\(val\)  (\S+)  (?:eta: 0:00:0\d|time: .*accuracy: )", result.stdout
    )
    assert found == ["[1][2/3]", "[1][3/3]", "[2][2/3]", "[2][3/3]"]
    (log,) = (tmp_path / "run").rglob("*.log")
    assert result.stdout == log.read_text()


def test_a_test_has_lines_and_a_bar_that_ends_if_it_fails(make_runner):
    file = io.StringIO()
    test = {"test_dataloader": loader_cfg(), "test_cfg": {}, "test_evaluator": Scripted()}
    runner = make_runner(default_hooks={"logger": {"interval": 4}}, **test)
    runner.console._console = Console(file=file, width=100, force_terminal=True)
    with pytest.raises(IndexError):  # Scripted has no value for it
        runner.test()
    assert runner.console._progress is None
    text = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", file.getvalue())
    assert re.search(r"Epoch\(test\)  \[\d\]\[4/6\]  eta: 0:00:0\d  time: ", text)
    assert re.search(r"test .*100% 6/6", text)


class Unwritable(io.StringIO):
    """A terminal that is closed after a few writes."""

    encoding = "utf-8"

    def __init__(self, writes):
        super().__init__()
        self.left = writes

    @override
    def write(self, text):
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)

    @override
    def flush(self):
        if self.left < 0:
            raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(("is_terminal", "writes"), [(True, 0), (True, 8), (False, 3)])
def test_training_continues_when_its_terminal_is_closed(make_runner, is_terminal, writes):
    file = Unwritable(writes)
    runner = make_runner(default_hooks={"logger": {"interval": 2}})
    runner.console._console = Console(file=file, width=200, force_terminal=is_terminal)
    runner.train()
    assert file.left < 0
    (log,) = runner.log_dir.glob("*.log")
    assert "Trained Classifier" in log.read_text()


def test_a_line_that_an_encoding_cannot_hold_is_escaped():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    RunConsole(is_main=True, console=Console(file=file)).print("准确率 0.5")
    assert file.buffer.getvalue() == b"\\u51c6\\u786e\\u7387 0.5\n"


def test_rich_is_imported_for_terminals_only_and_draws_no_random_numbers(run_script):
    source = (
        "import random, sys\n"
        "from mm_runner.reporting import RunConsole\n"
        "random.seed(0)\n"
        "before = random.getstate()\n"
        "RunConsole(is_main=True).print('a line')\n"
        "assert 'rich' not in sys.modules\n"
        "sys.stdout.isatty = lambda: True\n"
        "RunConsole(is_main=True).start_progress('training', 3)\n"
        "assert 'rich.style' in sys.modules\n"
        "assert random.getstate() == before\n"
    )
    result = run_script(source)
    assert result.returncode == 0, result.stderr
