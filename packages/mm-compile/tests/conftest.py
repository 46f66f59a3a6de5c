import multiprocessing
import os
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from toy import CountingBackend, Toy


@pytest.fixture(autouse=True)
def _fresh():
    """Give every test the same weights, and leave no compiled code to the next one."""
    torch.manual_seed(0)
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


@pytest.fixture
def backend():
    return CountingBackend()


@pytest.fixture
def model():
    return Toy()


@pytest.fixture(scope="session")
def _inductor_directory(tmp_path_factory):
    return tmp_path_factory.mktemp("inductor")


@pytest.fixture
def inductor_cache(_inductor_directory, monkeypatch):
    """Let inductor keep its code in a directory of this test run, and try its C++ compiler once."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(_inductor_directory))


# What ranks would import one by one; a name that this torch lacks is left out.
PRELOADED = ["conftest", "torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.fsdp"]


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
def run_ranks(tmp_path):
    """``run_ranks(function, world_size, *args)`` calls ``function(rank, *args)`` on gloo ranks."""

    def run(function, world_size, *args):
        # A file store instead of a port: two test runs on one machine cannot collide.
        store = tmp_path / "store"
        arguments = (world_size, store, dict(os.environ), function, args)
        multiprocessing.set_forkserver_preload(PRELOADED)
        mp.start_processes(_enter_rank, arguments, nprocs=world_size, start_method="forkserver")

    return run
