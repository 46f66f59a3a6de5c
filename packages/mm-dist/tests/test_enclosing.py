"""Variables of torch inside a task of srun or mpirun, and inside a pod."""

import observed
import pytest

from mm_dist import LaunchError, PyTorchLauncher
from mm_dist._launchers import detect_launcher, select_launcher

COPY = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
POD_OF_EIGHT = {**observed.TRAIN_JOB, "PET_NPROC_PER_NODE": "8"}


@pytest.mark.parametrize(
    ("env", "launcher"),
    [
        ({**observed.SLURM, **observed.TORCHRUN}, "pytorch"),
        ({**observed.SLURM, "RANK": "0", "WORLD_SIZE": "8"}, "pytorch"),
        ({**observed.SLURM, **COPY}, "slurm"),
        ({**observed.OPEN_MPI_5, **COPY}, "mpi"),
        ({**observed.SLURM, "RANK": "9"}, "slurm"),
        ({**observed.SLURM, **observed.TRAIN_JOB}, "slurm"),
    ],
    ids=[
        "torchrun-inside-a-task",
        "other-launcher-inside-a-task",
        "copy-of-srun",
        "copy-of-mpirun",
        "half-of-it",
        "pod-with-slurm-inside",
    ],
)
def test_auto_prefers_what_started_the_process(env, launcher):
    assert select_launcher("auto", env).name == launcher


@pytest.mark.parametrize(
    ("task", "left_over", "message"),
    [
        (
            observed.SLURM,
            {"RANK": "0", "WORLD_SIZE": "1"},
            r"RANK=0 and WORLD_SIZE=1, but 'slurm' says rank 1 of 2\. Unset .*launcher='slurm'",
        ),
        (observed.SLURM, {"RANK": "0", "WORLD_SIZE": "2"}, r"'slurm' says rank 1 of 2"),
        (
            observed.MPICH,
            {"RANK": "0", "WORLD_SIZE": "1"},
            r"'mpi' says rank 1 of 2.*launcher='mpi'",
        ),
    ],
    ids=["each-alone", "same-rank-twice", "mpi"],
)
def test_auto_refuses_left_over_numbers_that_contradict_the_task(task, left_over, message):
    env = {**task, **left_over}
    with pytest.raises(LaunchError, match=message):
        select_launcher("auto", env)
    # Who names a launcher has decided.
    assert select_launcher("pytorch", env).name == "pytorch"
    assert detect_launcher(env).name == "pytorch"


@pytest.mark.parametrize("count", ["8", "auto", "gpu"])
def test_a_pod_for_several_processes_is_told_to_use_torchrun(count):
    env = {**observed.TRAIN_JOB, "PET_NPROC_PER_NODE": count}
    message = rf"PET_NPROC_PER_NODE={count}\).*torchrun script\.py, or: mm-dist run script\.py"
    for launcher in ("auto", "pytorch"):
        with pytest.raises(LaunchError, match=message):
            select_launcher(launcher, env).read(env)
    assert select_launcher("none", env).read(env).world_size == 1


def test_torchrun_inside_a_pod_has_the_word():
    env = {**POD_OF_EIGHT, **observed.TORCHRUN}
    read = select_launcher("auto", env).read(env)
    assert (read.rank, read.local_rank, read.world_size) == (1, 1, 2)


@pytest.mark.parametrize(
    "lingering",
    [
        {"PET_NPROC_PER_NODE": "8"},
        {"PET_NPROC_PER_NODE": "8", "PET_NNODES": "2", "PET_NODE_RANK": "1"},
        {**observed.TRAIN_JOB, "PET_NNODES": "1", "PET_NODE_RANK": "0"},
        {**POD_OF_EIGHT, "PET_NNODES": "1", "PET_NODE_RANK": "0"},
        {**observed.ELASTIC_JOB, "PET_NNODES": "1:1"},
    ],
    ids=["default-of-a-user", "no-address", "one-pod", "one-pod-of-eight", "elastic-of-one"],
)
def test_lingering_options_of_torchrun_do_not_stop_a_plain_process(lingering):
    assert select_launcher("auto", lingering).name == "none"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"PET_NPROC_PER_NODE": "4"}, r"PET_NPROC_PER_NODE=4\), but the script was started as one"),
        ({"KUBERNETES_SERVICE_HOST": ""}, r"not set: LOCAL_RANK\."),
        ({"MASTER_ADDR": ""}, r"not set: LOCAL_RANK, MASTER_ADDR\."),
    ],
    ids=["several-per-pod", "no-pod", "more-is-missing"],
)
def test_a_missing_local_rank_is_zero_only_where_a_pod_runs_one_process(changes, message):
    with pytest.raises(LaunchError, match=message):
        PyTorchLauncher().read({**observed.PYTORCH_JOB, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"PET_NODE_RANK": "2"}, r"rank 2 \(PET_NODE_RANK\) but world_size 2 \(PET_NNODES\)"),
        ({"PET_NODE_RANK": "x"}, r"node_rank from PET_NODE_RANK, whose value is 'x'"),
        ({"PET_MASTER_PORT": ""}, r"master_port from MASTER_PORT or PET_MASTER_PORT, which is not"),
        ({"PET_MASTER_PORT": "0"}, r"PET_MASTER_PORT is 0; a port lies"),
    ],
    ids=["rank", "word", "no-port", "bad-port"],
)
def test_a_pod_with_a_broken_variable_is_told_which(changes, message):
    with pytest.raises(LaunchError, match=message):
        PyTorchLauncher().read({**observed.TRAIN_JOB, **changes})


def test_a_given_address_wins_over_that_of_the_pod():
    env = {**observed.TRAIN_JOB, "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "1234"}
    read = PyTorchLauncher().read(env)
    assert (read.master_addr, read.master_port) == ("10.0.0.9", 1234)
