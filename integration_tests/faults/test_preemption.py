"""What a scheduler's SIGTERM does to a run of two ranks under a launcher."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("preempted_run.py")
LAUNCHERS = {
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"],
    "mm-dist": ["-m", "mm_dist", "run", "--standalone", "--nproc-per-node=2"],
}


def start(launcher, work_dir, *arguments):
    return subprocess.Popen(
        [sys.executable, *LAUNCHERS[launcher], SCRIPT, work_dir, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def wait_until_ready(process, work_dir):
    end = time.monotonic() + 120
    while not all((work_dir / f"ready_{rank}").exists() for rank in range(2)):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end, "the ranks did not begin to train"
        time.sleep(0.05)


def rank_pids(process):
    """The processes of the ranks: the launcher's children that run the script."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text()
            parent = re.search(r"PPid:\t(\d+)", (folder / "status").read_text())
        except OSError:
            continue
        if SCRIPT.name in command and parent and int(parent[1]) == process.pid:
            pids.append(int(folder.name))
    return pids


@pytest.mark.parametrize(
    ("launcher", "to", "status"),
    [
        ("torchrun", "launcher", None),
        ("mm-dist", "launcher", 75),
        ("mm-dist", "rank", 75),
    ],
    ids=["torchrun", "mm-dist", "mm-dist-one-rank"],
)
def test_a_preempted_run_leaves_a_checkpoint_and_is_resumed(tmp_path, launcher, to, status):
    process = start(launcher, tmp_path)
    try:
        wait_until_ready(process, tmp_path)
        os.kill(process.pid if to == "launcher" else rank_pids(process)[-1], signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    # torchrun itself ends with a status of its own, whatever that of the ranks is.
    assert process.returncode != 0, output
    if status is not None:
        assert process.returncode == status, output
    left = [(tmp_path / f"status_{rank}").read_text() for rank in range(2)]
    assert left[0] == left[1], output
    code, steps = map(int, left[0].split())
    assert code == 75
    newest = tmp_path / (tmp_path / "last_checkpoint").read_text().strip()
    meta = torch.load(newest, weights_only=True)["meta"]
    assert meta["iter"] == steps
    resumed = start(launcher, tmp_path, str(meta["epoch"] + 1))
    output, _ = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, output
    assert f"step {steps}" in output
