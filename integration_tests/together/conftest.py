"""Runs scripts as a user would: in processes of their own, on the installed wheels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "packages" / "mm-runner"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]


@pytest.fixture(scope="session")
def script_environment(tmp_path_factory):
    """One thread a process, as torchrun sets it, and one compiler cache for all tests."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("inductor")),
        "PYTHONPATH": "",
        "COLUMNS": "120",
        # Two processes cannot share one GPU, and these tests need none.
        "CUDA_VISIBLE_DEVICES": "",
        "ASCEND_RT_VISIBLE_DEVICES": "",
    }


@pytest.fixture
def run_python(script_environment, tmp_path):
    """``run_python(*arguments, **variables)`` runs Python in ``tmp_path`` to its end."""

    def run(*arguments, cwd=tmp_path, check=True, **variables):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=cwd,
            env={**script_environment, **variables},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done

    return run
