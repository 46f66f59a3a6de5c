"""Processes that share a device, told from variables; the devices are stand-ins."""

import observed
import pytest
import torch

from mm_dist import _device_sharing as sharing
from mm_dist import local_device
from mm_dist._device_sharing import describe_shared_device
from mm_dist._launchers import select_launcher

CUDA = torch.device("cuda", 0)
SLURM_BOUND = observed.SLURM_GPU_PER_TASK[1]
SLURM_SHARED = {**observed.SLURM_ONE_GPU, "SLURM_LOCALID": "1", "SLURM_PROCID": "1"}


@pytest.fixture
def one_device(monkeypatch):
    monkeypatch.setattr(sharing, "count_devices", lambda _: 1)


def describe(env, device=CUDA, backend="nccl"):
    return describe_shared_device(select_launcher("auto", env).read(env), device, backend, env)


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (observed.TORCHRUN, "CUDA_VISIBLE_DEVICES is not set, so each sees the same one"),
        ({**observed.TORCHRUN, "CUDA_VISIBLE_DEVICES": "0"}, "CUDA_VISIBLE_DEVICES is 0 for all"),
        (observed.OPEN_MPI_5, "CUDA_VISIBLE_DEVICES is not set"),
        (SLURM_SHARED, r"Slurm granted 1 (SLURM_GPUS_ON_NODE)"),
    ],
    ids=["torchrun", "torchrun-and-one-visible", "mpirun", "srun-with-one-gpu"],
)
def test_a_device_that_variables_prove_to_be_shared_is_told(env, reason):
    message = describe(env)
    assert f"The 2 processes of this machine share one cuda device: {reason}" in message
    assert "use backend='gloo'" in message
    assert describe(env, backend="cpu:gloo,cuda:nccl") is not None
    assert describe(env, backend="gloo") is None
    assert describe(env, device=torch.device("cpu")) is None


@pytest.mark.usefixtures("one_device")
@pytest.mark.parametrize(
    "env",
    [
        SLURM_BOUND,
        {**SLURM_BOUND, "CUDA_VISIBLE_DEVICES": "0"},
        {**observed.TORCHRUN, "CUDA_VISIBLE_DEVICES": "1"},
        {**observed.OPEN_MPI_5, "CUDA_VISIBLE_DEVICES": "0"},
        {**observed.TORCHRUN, "HIP_VISIBLE_DEVICES": "1"},
        {**observed.TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"},
        observed.TRAIN_JOB,
    ],
    ids=[
        "bound-by-slurm",
        "bound-by-slurm-and-renumbered",
        "bound-by-a-script",
        "bound-by-mpirun",
        "bound-on-rocm",
        "local-rank-0-is-silent",
        "one-process",
    ],
)
def test_a_device_that_may_be_the_processs_own_is_not_complained_about(env):
    assert describe(env) is None


def test_enough_devices_are_not_complained_about(monkeypatch):
    monkeypatch.setattr(sharing, "count_devices", lambda _: 2)
    assert describe(observed.TORCHRUN) is None


@pytest.mark.parametrize("env", observed.SLURM_GPU_PER_TASK, ids=["task-0", "task-1"])
def test_a_task_with_a_device_of_its_own_uses_index_0(monkeypatch, env):
    stand_in = type("Cuda", (), {"is_available": lambda: True, "device_count": lambda: 1})
    monkeypatch.setattr(torch, "cuda", stand_in)
    read = select_launcher("auto", env).read(env)
    assert local_device(read.local_rank, "cuda") == torch.device("cuda", 0)
