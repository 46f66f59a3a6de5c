"""--launcher and --local_rank, under torch's own launchers as they are installed."""

import argparse
import json
import os
import subprocess
import sys

import pytest

from mm_dist import add_launcher_arguments

SCRIPT = """
import argparse, json, os
from mm_dist import add_launcher_arguments
from mm_dist._launchers._selection import select_launcher

parser = argparse.ArgumentParser()
add_launcher_arguments(parser)
parser.add_argument("--lr", type=float)
options = parser.parse_args()
read = select_launcher(options.launcher, os.environ).read(os.environ)
numbers = [read.launcher, read.rank, read.world_size, read.local_world_size]
print(json.dumps([options.local_rank, options.lr, *numbers]))
"""


def parse(*arguments):
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_launcher_arguments(parser)
    return parser.parse_args(arguments)


def test_both_spellings_of_local_rank_are_taken(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert parse("--local_rank", "1").local_rank == 1
    assert parse("--local-rank=2").local_rank == 2
    assert parse().local_rank == 0


def test_local_rank_is_that_of_the_environment_unless_it_is_given(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert parse().local_rank == 3
    assert parse("--local-rank=0").local_rank == 0


def test_local_rank_is_a_number(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(argparse.ArgumentError, match="invalid int value: 'one'"):
        parse("--local-rank=one")


def test_launcher_is_one_of_those_installed():
    assert parse().launcher == "auto"
    assert parse("--launcher", "slurm").launcher == "slurm"
    with pytest.raises(argparse.ArgumentError, match="invalid choice: 'torchrun'"):
        parse("--launcher=torchrun")


@pytest.mark.parametrize("launcher", ["launch", "run"])
def test_a_script_starts_under_torchs_launchers(tmp_path, launcher):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    # A rendezvous with port 0 is told a free one by the system.
    rendezvous = ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"]
    command = [sys.executable, "-m", f"torch.distributed.{launcher}", "--nproc_per_node=1"]
    result = subprocess.run(
        [*command, *rendezvous, str(script), "--lr", "0.1"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == [0, 0.1, "pytorch", 0, 1, 1]
