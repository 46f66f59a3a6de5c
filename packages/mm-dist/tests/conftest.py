"""Fixtures: real gloo ranks, real distributions, and a guard against leaks."""

import multiprocessing
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from mm_dist._devices import plugin_rows

# torch's store looks up the name of whoever connects, and serves nobody meanwhile. A lost message
# to the name server costs 5 s or more otherwise; the tests need no name that is not local.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


# What ranks would import one by one; a name that this torch lacks is left out.
PRELOADED = ["conftest", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint"]


def _enter_rank(rank, world_size, store, environment, function, args):
    os.environ.clear()  # that of the fork server
    os.environ.update(environment)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    function(rank, *args)
    # gloo's threads still release objects; torch 2.6 deadlocks if the group ends meanwhile, and
    # others abort if the interpreter does.
    time.sleep(0.05)
    dist.destroy_process_group()
    os._exit(0)


@pytest.fixture
def run_ranks(tmp_path):
    """``run_ranks(function, world_size, *args)`` calls ``function(rank, *args)`` on gloo ranks."""

    def run(function, world_size, *args):
        # A file store instead of a port: two test runs on one machine cannot collide.
        store = tmp_path / "store"
        arguments = (world_size, store, dict(os.environ), function, args)
        multiprocessing.set_forkserver_preload(PRELOADED)
        mp.start_processes(_enter_rank, arguments, nprocs=world_size, start_method="forkserver")

    return run


@pytest.fixture
def group_of_one(tmp_path):
    """A real process group that this process alone belongs to."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1)
    yield
    time.sleep(0.05)  # as for ranks of their own
    dist.destroy_process_group()


@pytest.fixture
def run_script(tmp_path):
    """``run_script(source, *interpreter_arguments, **env)`` runs a script in a new process."""

    def run(source, *interpreter_arguments, **env):
        script = tmp_path / "script.py"
        script.write_text(source)
        command = [sys.executable, *interpreter_arguments, str(script)]
        return subprocess.run(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1", **env},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def free_port():
    """``free_port()`` returns a port that nobody uses."""

    def find():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    return find


@pytest.fixture
def start_ranks(tmp_path, free_port):
    """``start_ranks(source, world_size, *arguments, **env)`` starts ranks as torchrun would.

    It returns the processes; what they print is read with ``communicate``.
    """
    started = []

    def start(source, world_size, *arguments, **env):
        script = tmp_path / f"ranks{len(started)}.py"
        script.write_text(source)
        place = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "OMP_NUM_THREADS": 1}
        processes = []
        for rank in range(world_size):
            own = {**place, "RANK": rank, "LOCAL_RANK": rank, **env}
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(script), *map(str, arguments)],
                    env={**os.environ, **{name: str(value) for name, value in own.items()}},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        started.extend(processes)
        return processes

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def start_command(tmp_path):
    """``start_command(*arguments, **env)`` starts ``python -m mm_dist`` in ``tmp_path``."""
    started = []

    def start(*arguments, **env):
        process = subprocess.Popen(
            [sys.executable, "-m", "mm_dist", *map(str, arguments)],
            env={**os.environ, **{name: str(value) for name, value in env.items()}},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run_command(start_command):
    """``run_command(*arguments, **env)`` waits for the command; a ``CompletedProcess``."""

    def run(*arguments, **env):
        process = start_command(*arguments, **env)
        output, errors = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    return run


@pytest.fixture
def install_plugin(tmp_path, monkeypatch):
    """Put a real distribution, metadata and all, on ``sys.path``."""
    monkeypatch.syspath_prepend(tmp_path)
    plugin_rows.cache_clear()
    modules = []

    def install(name, entry_points, source):
        module = name.replace("-", "_")
        modules.append(module)
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)

    yield install
    plugin_rows.cache_clear()
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture(autouse=True)
def no_leaks():
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    assert not dist.is_initialized(), "the test left a process group open"
    for env in (before, after):
        # pytest's own, and one that torch sets when DistributedDataParallel is first used.
        env.pop("PYTEST_CURRENT_TEST", None)
        env.pop("TORCHINDUCTOR_CACHE_DIR", None)
    assert after == before, "the test changed environment variables"
