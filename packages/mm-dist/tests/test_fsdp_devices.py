"""Where MMFullyShardedDataParallel can run: versions of torch, devices, process groups."""

from types import SimpleNamespace

import pytest
import torch
from fsdp_models import TORCH, init_mesh
from torch import nn

from mm_dist import (
    LaunchError,
    MMFullyShardedDataParallel,
    TorchVersionError,
    is_model_wrapper,
)
from mm_dist._wrappers import _sharding


@pytest.mark.skipif(TORCH < (2, 6), reason="older torch is refused before")
def test_wrapper_needs_a_process_group():
    with pytest.raises(LaunchError, match=r"call mm_dist\.init_dist first"):
        MMFullyShardedDataParallel(nn.Linear(2, 1))


@pytest.mark.skipif(TORCH >= (2, 6), reason="this torch has fully_shard")
def test_old_torch_is_refused_at_construction():
    message = rf"fully_shard, which torch has since 2\.6; this is {torch.__version__[:3]}"
    with pytest.raises(TorchVersionError, match=message):
        MMFullyShardedDataParallel(nn.Linear(2, 1))
    assert not is_model_wrapper(nn.Linear(2, 1))


@pytest.mark.skipif(
    not (2, 6) <= TORCH < (2, 8), reason="only torch 2.6 and 2.7 shard on accelerators alone"
)
@pytest.mark.usefixtures("group_of_one")
def test_torch_2_6_and_2_7_are_refused_on_the_cpu():
    with pytest.raises(TorchVersionError, match=r"on the CPU needs torch 2\.8 or newer"):
        MMFullyShardedDataParallel(nn.Linear(2, 1))


@pytest.mark.skipif(TORCH < (2, 6), reason="older torch has no mesh like that")
@pytest.mark.usefixtures("group_of_one")
def test_gradients_are_averaged_by_sums_where_a_backend_may_not_know_averages(monkeypatch):
    # Stand-ins for the modules of fully_shard, and for the answer of an NCCL group.
    calls = []
    heads = [
        SimpleNamespace(set_force_sum_reduction_for_comms=lambda *, enable: calls.append(enable))
    ]
    _sharding._average_by_sum(heads * 2, init_mesh(1))
    assert calls == [True, True]
    _sharding._average_by_sum([SimpleNamespace()], init_mesh(1))  # torch before 2.8
    backends = {"cuda": "nccl"}
    monkeypatch.setattr(_sharding, "backends_by_device_type", lambda _: backends)
    nccl = SimpleNamespace(device_type="cuda", get_group=lambda dimension: dimension)
    _sharding._average_by_sum(heads, nccl)
    assert calls == [True, True]
