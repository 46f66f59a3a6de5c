"""The example script runs unchanged under every launcher, resumes, and shows its progress."""

import os
import pty
import re
import subprocess
import sys
import time

import pytest
import torch
from conftest import EXAMPLES, TORCHRUN

from mm_runner.checkpoint import load_checkpoint_file

SCRIPT = "examples/distributed_training.py"


def options(work_dir, *more):
    return ["--work-dir", work_dir, "--epochs=1", *more]


def accuracy(output):
    return float(re.search(r"test accuracy: ([\d.]+) %", output)[1])


@pytest.mark.parametrize(
    "command",
    [
        [SCRIPT],
        [*TORCHRUN, SCRIPT],
        ["-m", "torch.distributed.launch", "--nproc_per_node=2", SCRIPT, "--launcher", "pytorch"],
    ],
    ids=["plain", "torchrun", "launch-as-in-the-document"],
)
def test_script_runs_under(command, run_python, tmp_path):
    done = run_python(*command, *options(tmp_path), cwd=EXAMPLES)
    assert done.stdout.count("test accuracy:") == 1, "only the first process reports"
    assert "━" not in done.stdout + done.stderr, "no terminal, no progress bar"
    assert accuracy(done.stdout) > 20, "far better than chance"
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    world_size = 2 if "--nproc_per_node=2" in command else 1
    checkpoint = load_checkpoint_file(tmp_path / "epoch_1.pth")
    assert checkpoint["meta"]["world_size"] == world_size


@pytest.mark.parametrize(
    "switches",
    [["--amp=bfloat16"], ["--optimizer=NpuFusedAdamW", "--lr=0.003", "--accumulate=2"]],
    ids=["bfloat16", "npu-optimizer-with-accumulation"],
)
def test_acceleration_switches_train(switches, run_python, tmp_path):
    done = run_python("examples/train.py", *options(tmp_path, *switches), cwd=EXAMPLES)
    assert accuracy(done.stdout) > 30


def test_without_a_compiler_it_says_so_in_one_line_and_trains(run_python, tmp_path):
    asked = options(tmp_path, "--compile", "--at-least=101")
    done = run_python(SCRIPT, *asked, cwd=EXAMPLES, check=False, CXX="no-such-compiler")
    (line,) = [line for line in done.stdout.splitlines() if "Not compiled" in line]
    missing = "'no-such-compiler' is not on PATH" if hasattr(torch, "compile") else ">= 2.0.0"
    assert missing in line
    assert "  compile      off\n" in done.stdout
    assert accuracy(done.stdout) > 30
    assert done.returncode == 1, "less accuracy than was asked for"
    assert done.stderr.strip().endswith("101.0 % was asked for.")


def test_killed_run_resumes_where_it_stopped(run_python, script_environment, tmp_path):
    command = [sys.executable, SCRIPT, "--work-dir", str(tmp_path), "--epochs=3"]
    killed = subprocess.Popen(
        command, cwd=EXAMPLES, env=script_environment, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "last_checkpoint").exists():
        assert killed.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    done = run_python(*command[1:], "--resume", cwd=EXAMPLES)
    resumed = int(re.search(r"Resumed after epoch (\d+)", done.stdout)[1])
    assert resumed >= 1
    assert f"Epoch(train)  [{resumed}]" not in done.stdout
    assert "Epoch(train)  [3]" in done.stdout
    assert (tmp_path / "epoch_3.pth").is_file()


def test_terminal_shows_a_progress_bar(script_environment, tmp_path):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "--work-dir", str(tmp_path), "--epochs=2"],
        cwd=EXAMPLES,
        env={**script_environment, "TERM": "xterm-256color"},
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while chunk := read_terminal(ours):
        shown += chunk
    os.close(ours)
    assert process.wait() == 0, shown.decode()
    text = shown.decode()
    assert "━" in text
    assert re.search(r"epoch 2/2.*78/78", text, re.DOTALL)
    assert "test accuracy" in text


def read_terminal(descriptor):
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux reports the end of a terminal this way
        return b""
