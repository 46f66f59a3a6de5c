"""Warnings that variables give reason for; the devices are stand-ins."""

import observed
import pytest
import torch

from mm_dist import local_device
from mm_dist._launchers._misuse import describe_misuse
from mm_dist._launchers._selection import select_launcher


def find_misuse(env, launcher="auto"):
    return describe_misuse(launcher, select_launcher(launcher, env).read(env), env)


@pytest.mark.parametrize(
    ("env", "part"),
    [
        (observed.SLURM_SHELL, "job 9 was granted 3 tasks (SLURM_NTASKS), but srun did not start"),
        (observed.SLURM_BATCH, "granted 2 tasks"),
        ({"WORLD_SIZE": "2"}, "RANK is not set, but WORLD_SIZE=2, as if there were several"),
        ({"RANK": "1", "LOCAL_RANK": "3"}, "WORLD_SIZE is not set, but RANK=1 and LOCAL_RANK=3,"),
        ({"LOCAL_RANK": "3"}, "RANK and WORLD_SIZE are not set, but LOCAL_RANK=3,"),
        (observed.TRAIN_JOB, "RANK and WORLD_SIZE are not set, but PET_NNODES=2, as if"),
        (
            observed.SUBMITIT_LOCAL,
            "Set RANK and WORLD_SIZE (submitit: TorchDistributedEnvironment().export()), or",
        ),
        (observed.ELASTIC_JOB, "PET_NNODES=1:3, as if there were several"),
    ],
    ids=[
        "shell-of-salloc",
        "script-of-sbatch",
        "rank-forgotten",
        "size-forgotten",
        "both-forgotten",
        "pod",
        "submitit",
        "elastic-pod",
    ],
)
def test_misuse_is_described(env, part):
    assert part in find_misuse(env)


@pytest.mark.parametrize(
    "env",
    [
        {},
        observed.SLURM,
        *observed.SLURM_GPU_PER_TASK,
        {**observed.SLURM_SHELL, "SLURM_NTASKS": "1"},
        {**observed.SLURM_IDLE_GPU, **observed.TORCHRUN},
        {**observed.SLURM_SHELL, **observed.TORCHRUN},
        {**observed.SLURM_SHELL, **observed.OPEN_MPI_5},
        {"RANK": "0", "LOCAL_RANK": "0"},
        {"WORLD_SIZE": "1"},
        {**observed.OPEN_MPI_5, "LOCAL_RANK": "1"},
    ],
    ids=[
        "no-slurm",
        "srun",
        "gpu-of-task-0",
        "gpu-of-task-1",
        "one-task",
        "torchrun-in-a-task",
        "torchrun-in-a-shell",
        "mpirun-in-a-shell",
        "a-first-rank-alone",
        "a-size-of-one",
        "mpirun-with-a-local-rank",
    ],
)
def test_right_use_is_not_complained_about(env):
    assert find_misuse(env) is None


def test_who_asks_for_one_process_is_not_warned():
    assert find_misuse(observed.SLURM_SHELL, launcher="none") is None
    assert find_misuse({"WORLD_SIZE": "2"}, launcher="none") is None


@pytest.mark.parametrize("env", observed.SLURM_GPU_PER_TASK, ids=["task-0", "task-1"])
def test_a_task_with_a_device_of_its_own_uses_index_0(monkeypatch, env):
    stand_in = type("Cuda", (), {"is_available": lambda: True, "device_count": lambda: 1})
    monkeypatch.setattr(torch, "cuda", stand_in)
    read = select_launcher("auto", env).read(env)
    assert local_device(read.local_rank, "cuda") == torch.device("cuda", 0)
