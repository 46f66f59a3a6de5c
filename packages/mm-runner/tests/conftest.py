"""Fixtures: real gloo ranks, real distributions, a small run, and a guard against leaks."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from stop_signals import USUAL, take_usual
from toy import runner_arguments

from mm_runner import Runner


def pytest_configure(config):
    for known in (
        # Said once per process by torch older than 2.6; test_checkpoint_file.py expects it.
        "ignore:torch .* reads checkpoints with a loader whose safety:UserWarning",
        "ignore:Guards may run slower on Python 3.13.0:RuntimeWarning",
        # Of torch.fx before torch 2.7, on Python 3.12.
        "ignore:co_lnotab is deprecated:DeprecationWarning",
        # Of torch 2.4's own checkpoint.
        "ignore:`torch.cpu.amp.autocast:FutureWarning",
    ):
        config.addinivalue_line("filterwarnings", known)


# What ranks would import one by one; a name that this torch lacks is left out.
PRELOADED = ["conftest", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint"]


def _enter_rank(rank, world_size, store, environment, function, args):
    os.environ.clear()  # that of the fork server
    os.environ.update(environment)
    torch.set_num_threads(1)
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
def write(tmp_path):
    """``write(name, text)`` writes a file into ``tmp_path`` and returns its path."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


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
    # Wrappers first: one that outlives its group can wait forever for gloo's threads.
    gc.collect()
    time.sleep(0.05)  # as for ranks of their own
    dist.destroy_process_group()


@pytest.fixture
def run_script(tmp_path):
    """``run_script(source, *arguments)`` runs a script in a new process, warnings being errors."""

    def run(source, *arguments):
        script = tmp_path / "script.py"
        script.write_text(source, encoding="utf-8")
        # torch older than 2.6 has this to be said of its loader, see above.
        known = f"ignore:torch {torch.__version__} reads checkpoints:UserWarning"
        command = [sys.executable, "-W", "error", "-W", known, str(script), *map(str, arguments)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            command,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=tmp_path,
        )

    return run


@pytest.fixture
def run_command(tmp_path):
    """``run_command(*arguments)`` runs ``mm-runner`` in a new process, or in ranks of torchrun."""

    def run(*arguments, ranks=1, cwd=tmp_path, **environment):
        launch = []
        if ranks > 1:
            launch = ["torch.distributed.run", f"--nproc_per_node={ranks}", "--rdzv_backend=c10d"]
            launch += ["--rdzv_endpoint=localhost:0", "-m"]
        tests, usual = str(Path(__file__).parent), os.environ.get("PYTHONPATH")
        path = os.pathsep.join(filter(None, [tests, usual]))
        return subprocess.run(
            [sys.executable, "-m", *launch, "mm_runner", *map(str, arguments)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            cwd=cwd,
        )

    return run


@pytest.fixture
def install_plugin(tmp_path, monkeypatch):
    """Put a real distribution, metadata and all, on ``sys.path``."""
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)

    def install(name, entry_points, source):
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)

    yield install
    for module in set(sys.modules) - known:
        if getattr(sys.modules[module], "__file__", None) == str(tmp_path / f"{module}.py"):
            del sys.modules[module]


@pytest.fixture
def make_runner(tmp_path):
    """``make_runner(**overrides)`` makes a Runner for the toy task in ``tmp_path / "run"``."""

    def make(**overrides):
        return Runner(**runner_arguments(**{"work_dir": tmp_path / "run", **overrides}))

    return make


@pytest.fixture
def handlers():
    """The usual ones; puts back what was there, also after a run that left and keeps its own."""
    before = take_usual()
    yield USUAL
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def no_leaks():
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    assert not dist.is_initialized(), "the test left a process group open"
    for env in (before, after):
        env.pop("PYTEST_CURRENT_TEST", None)
        env.pop("CUBLAS_WORKSPACE_CONFIG", None)  # set by a deterministic run where there is CUDA
        env.pop("TORCHINDUCTOR_CACHE_DIR", None)  # set by torch's optimizers on their first step
    assert after == before, "the test changed environment variables"
