"""Runs scripts as a user would: in processes of their own, on the installed wheels."""

import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.multiprocessing as mp

EXAMPLES = Path(__file__).parents[2] / "packages" / "mm-runner"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
# What every rank would import again; a name that this torch lacks is left out.
PRELOADED = ["mm_runner.runner", "torch._dynamo", "torch._inductor.compile_fx"]
PRELOADED += ["torch.distributed.fsdp", "torch.distributed.checkpoint"]


def _run_script(rank, world_size, folder, environment, script, arguments):
    os.environ.update(environment)
    if world_size > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    os.chdir(folder)
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


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


@pytest.fixture
def run_ranks(script_environment, tmp_path):
    """``run_ranks(script, world_size, *arguments)`` runs a script as torchrun would, but faster.

    Its processes are forked from one that has imported torch and our packages.
    """

    def run(script, world_size, *arguments):
        environment = dict(script_environment)
        if world_size > 1:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                environment["MASTER_PORT"] = str(probe.getsockname()[1])
            environment["WORLD_SIZE"] = environment["LOCAL_WORLD_SIZE"] = str(world_size)
            environment["MASTER_ADDR"] = "127.0.0.1"
        passed = (world_size, tmp_path, environment, script, [str(one) for one in arguments])
        multiprocessing.set_forkserver_preload(PRELOADED)
        mp.start_processes(_run_script, passed, nprocs=world_size, start_method="forkserver")

    return run
