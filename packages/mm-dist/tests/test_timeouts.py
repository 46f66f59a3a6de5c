"""The timeout of the first step, and that of all others."""

import contextlib
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from mm_dist import (
    DistInfo,
    MMDistributedDataParallel,
    TorchVersionError,
    enter_steady_state,
    init_dist,
)
from mm_dist._process_group import _timeouts
from mm_dist._process_group._current import current_info
from mm_dist._process_group._timeouts import default_timeout, read_group_timeout
from mm_dist._state import OwnGroup, state

CAN_CHANGE = hasattr(getattr(dist, "ProcessGroupGloo", None), "set_timeout")
FIRST, STEADY, OTHER = timedelta(seconds=100), timedelta(seconds=2), timedelta(seconds=50)


class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1)

    def data_preprocessor(self, data, training):  # noqa: ARG002
        return (data,)

    def forward(self, inputs, mode):  # noqa: ARG002
        return super().forward(inputs).sum()

    def parse_losses(self, losses):
        return losses, {}


class Optim:
    def optim_context(self, model):  # noqa: ARG002
        return contextlib.nullcontext()

    def update_params(self, loss):
        loss.backward()


def _rest(rank, port):
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(place, RANK=str(rank), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2")
    info = init_dist(device_type="cpu", timeout=FIRST, steady_timeout=2)
    assert info.timeout == FIRST
    usual, chosen = dist.new_group(), dist.new_group(timeout=OTHER)
    model = MMDistributedDataParallel(Net())
    assert current_info().timeout == FIRST
    model.train_step(torch.ones(1, 1), Optim())  # ends with enter_steady_state
    assert current_info().timeout == read_group_timeout(dist.group.WORLD) == STEADY
    assert read_group_timeout(usual) == STEADY
    assert read_group_timeout(chosen) == OTHER, "somebody meant that one"
    store, patience = dist.distributed_c10d._get_default_store(), timedelta(seconds=60)
    if rank == 0:
        # Reading it back proves little: older gloo said yes, and went on with the old one.
        with pytest.raises(RuntimeError, match=r"2000 ?ms"):
            dist.all_reduce(torch.ones(1))
        store.set("rank 0 has waited", "")
        store.wait(["rank 1 goes"], patience)  # the store ends with this process
    else:
        store.wait(["rank 0 has waited"], patience)
        store.set("rank 1 goes", "")
    os._exit(0)


@pytest.mark.skipif(not CAN_CHANGE, reason="this torch cannot change the timeout of a gloo group")
def test_steady_timeout_is_shorter_indeed(free_port):
    mp.spawn(_rest, (free_port(),), nprocs=2)


@pytest.mark.skipif(CAN_CHANGE, reason="this torch can change the timeout of a gloo group")
def test_steady_timeout_is_refused_where_it_would_have_no_effect(monkeypatch, free_port):
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**place, "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TorchVersionError, match=r"'gloo' group, which needs torch 2\.9 or newer"):
        init_dist(device_type="cpu", steady_timeout=2)
    assert not dist.is_initialized()


def test_enter_steady_state_does_nothing_in_one_process():
    init_dist("none", device_type="cpu", steady_timeout=5)
    enter_steady_state()


@pytest.mark.skipif(not dist.is_nccl_available(), reason="torch warns of NCCL where it has none")
def test_default_timeout_is_the_shortest_of_all_backends():
    assert default_timeout("gloo") == timedelta(minutes=30)
    assert default_timeout("cpu:gloo,cuda:nccl") == default_timeout("nccl")


@pytest.mark.usefixtures("group_of_one")
def test_timeout_of_a_group_is_read_from_torch():
    group = dist.new_group([0], timeout=OTHER)
    assert read_group_timeout(group) == OTHER
    dist.destroy_process_group(group)


@pytest.mark.usefixtures("group_of_one")
def test_all_ranks_and_devices_are_awaited_before_the_timeout_changes(monkeypatch):
    # A stand-in for a CUDA machine: the device is synchronized after the barrier, then it changes.
    calls = []
    cuda = DistInfo(0, 1, 0, 1, "pytorch", "nccl", torch.device("cuda", 3), FIRST)
    own = OwnGroup(dist.group.WORLD, cuda, {}, None, steady_timeout=STEADY)
    monkeypatch.setattr(state, "own", own)
    monkeypatch.setattr(_timeouts, "backends_by_device_type", lambda _=None: {"cuda": "nccl"})
    monkeypatch.setattr(dist, "barrier", lambda device_ids: calls.append(f"barrier {device_ids}"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(_timeouts, "backend_of", lambda group, _: group)
    monkeypatch.setattr(_timeouts, "set_timeout", lambda _, timeout: calls.append(str(timeout)))
    enter_steady_state()
    enter_steady_state()
    assert calls == ["barrier [3]", "synchronize", "0:00:02"]


def test_a_backend_that_does_not_tell_its_options_has_no_known_timeout(monkeypatch):
    # A stand-in for another vendor's backend under torch 2.15.
    class Silent:
        @property
        def options(self):
            raise RuntimeError("Backend hccl does not implement getBackendOptions.")

    monkeypatch.setattr(_timeouts, "_backends_of", lambda _: [Silent()])
    assert read_group_timeout(None) is None
