"""Fixtures: real gloo ranks, real distributions, and a guard against leaks."""

import os
import subprocess
import sys
import time
from datetime import timedelta

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from mm_dist._devices import plugin_rows


def _enter_rank(rank, world_size, store, function, args):
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
        mp.spawn(_enter_rank, (world_size, store, function, args), nprocs=world_size)

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
def install_plugin(tmp_path, monkeypatch):
    """Put a real distribution, metadata and all, on ``sys.path``."""
    monkeypatch.syspath_prepend(tmp_path)
    plugin_rows.cache_clear()

    def install(name, entry_points, source):
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)

    yield install
    plugin_rows.cache_clear()


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
