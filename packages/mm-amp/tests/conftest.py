import copy
import multiprocessing
import os
import time
import traceback
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

# What ranks would import one by one; a name that this torch lacks is left out.
PRELOADED = ["conftest", "torch._dynamo", "torch.distributed.fsdp"]


def _enter_rank(rank, world_size, store, fn, args):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    fn(rank, *args)
    # gloo's threads still release objects; torch 2.6 deadlocks if the group ends meanwhile, and
    # others abort if the interpreter does.
    time.sleep(0.05)
    dist.destroy_process_group()
    os._exit(0)


def _serve(rank, pipes):
    """Run what arrives at the pipe until it closes, and answer with the result or the traceback."""
    for index, (parent_end, _) in enumerate(pipes):
        parent_end.close()  # else the pipe would stay open when the test's process is gone
        if index != rank:
            pipes[index][1].close()
    pipe = pipes[rank][1]
    while True:
        try:
            fn, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, fn(rank, *args)))
        except Exception:  # noqa: BLE001 - it is raised again in the test's process
            pipe.send((False, traceback.format_exc()))


class RankPool:
    """Gloo ranks that run one function after another, for tests that try many cases."""

    def __init__(self, pipes):
        self._pipes = pipes

    def run(self, fn, *args):
        """Return what ``fn(rank, *args)`` returns on each rank."""
        for pipe in self._pipes:
            pipe.send((fn, args))
        answers = [pipe.recv() for pipe in self._pipes]
        for is_right, answer in answers:
            assert is_right, answer
        return [answer for _, answer in answers]


@pytest.fixture(scope="module")
def rank_pool(tmp_path_factory):
    """Two gloo ranks for all tests of a module: ``rank_pool.run(fn, *args)``."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    pipes = [mp.get_context("forkserver").Pipe() for _ in range(2)]
    arguments = (2, tmp_path_factory.mktemp("ranks") / "store", _serve, (pipes,))
    ranks = mp.start_processes(
        _enter_rank, arguments, nprocs=2, join=False, start_method="forkserver"
    )
    for _, child_end in pipes:
        child_end.close()
    yield RankPool([parent_end for parent_end, _ in pipes])
    for parent_end, _ in pipes:
        parent_end.close()
    while not ranks.join():
        pass


@pytest.fixture(autouse=True)
def no_leaks():
    before = dict(os.environ)
    yield
    after = dict(os.environ)
    assert not dist.is_initialized(), "the test left a process group open"
    assert not is_autocast_on(), "the test left autocast on"
    for env in (before, after):
        env.pop("PYTEST_CURRENT_TEST", None)
        env.pop("TORCHINDUCTOR_CACHE_DIR", None)  # set by torch's optimizers on their first step
    assert after == before, "the test changed environment variables"


def is_autocast_on():
    """Whether the CPU autocasts; the function for that has changed its name."""
    if hasattr(torch, "get_autocast_dtype"):  # torch 2.4
        return torch.is_autocast_enabled("cpu")
    return torch.is_autocast_cpu_enabled()


# Made once and copied: two runs that are compared must start from the same parameters.
_MODEL = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


@pytest.fixture
def model():
    """A small float32 model; every test of one run gets equal parameters."""
    return copy.deepcopy(_MODEL)


@pytest.fixture
def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.fixture
def batches():
    """Twenty batches ``(inputs (6, 4), targets (6, 1))``."""
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(6, 4, generator=generator), torch.randn(6, 1, generator=generator))
        for _ in range(20)
    ]


needs_cpu_float16 = pytest.mark.skipif(
    not hasattr(torch, "get_autocast_dtype"), reason="float16 autocast on the CPU needs torch 2.4"
)
DTYPES = [
    pytest.param("bfloat16", id="bfloat16"),
    pytest.param("float16", id="float16", marks=needs_cpu_float16),
]


def train_step(wrapper, model, batch):
    """Run one micro-batch as the README shows it."""
    inputs, targets = batch
    with wrapper.optim_context(model):
        output = model(inputs)
        loss = nn.functional.mse_loss(output.float(), targets)
    return wrapper.update_params(loss)
