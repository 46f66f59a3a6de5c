"""What each launcher reads from its variables."""

import observed
import pytest

from mm_dist import LaunchError, MPILauncher, NoLauncher, PyTorchLauncher, SlurmLauncher
from mm_dist._launchers._slurm import first_node

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29400",
}
SLURM_TWO_NODES = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "3",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[08-09]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}
SLURM_ONE_NODE = {
    **SLURM_TWO_NODES,
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "2",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NODELIST": "gpu08",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "2423128065",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def test_launcher_names_the_sources_of_its_values():
    sources = SlurmLauncher().read(SLURM_TWO_NODES).sources
    assert sources["rank"] == "SLURM_PROCID"
    assert sources["master_addr"] == "first of SLURM_STEP_NODELIST"
    assert "SLURM_JOB_ID" in sources["master_port"]


def test_slurm_prefers_the_size_of_the_step():
    env = {**SLURM_TWO_NODES, "SLURM_NTASKS": "64", "SLURM_STEP_NUM_TASKS": "3"}
    assert SlurmLauncher().read(env).world_size == 3


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"SLURM_STEP_ID": ""}, False),
        ({"SLURM_STEP_ID": "4294967290"}, False),
        ({"SLURM_STEP_ID": "4294967291"}, False),
        ({"SLURM_PROCID": ""}, False),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "0"}, False),
        ({"MPI_LOCALRANKID": "0"}, False),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, True),
    ],
    ids=[
        "step",
        "batch-shell",
        "interactive-step",
        "batch-step",
        "no-task",
        "mpirun-in-a-step",
        "hydra-in-a-step",
        "srun-with-pmi",
    ],
)
def test_slurm_detects_tasks_of_a_step_only(changes, expected):
    assert SlurmLauncher().detect({**SLURM_TWO_NODES, **changes}) is expected


def test_mpi_and_pytorch_detect_their_own_variables_only():
    assert MPILauncher().detect(OPEN_MPI)
    assert MPILauncher().detect(HYDRA)
    assert not MPILauncher().detect(TORCHRUN)
    assert PyTorchLauncher().detect(TORCHRUN)
    assert not PyTorchLauncher().detect({**OPEN_MPI, **SLURM_TWO_NODES})
    assert NoLauncher().detect({})


@pytest.mark.parametrize(
    ("launcher", "env", "message"),
    [
        (
            PyTorchLauncher,
            {},
            r"not set: RANK, LOCAL_RANK, .*torchrun --nproc_per_node=N script\.py, or: mm-dist",
        ),
        (PyTorchLauncher, {**TORCHRUN, "LOCAL_RANK": ""}, r"not set: LOCAL_RANK\."),
        (PyTorchLauncher, {**TORCHRUN, "RANK": "one"}, r"rank from RANK, whose value is 'one'"),
        (PyTorchLauncher, {**TORCHRUN, "RANK": "-1"}, r"RANK, whose value is '-1'"),
        (PyTorchLauncher, {**TORCHRUN, "MASTER_PORT": "70000"}, r"MASTER_PORT is 70000"),
        (PyTorchLauncher, {**TORCHRUN, "RANK": "4"}, r"rank 4 \(RANK\) but world_size 4"),
        (
            PyTorchLauncher,
            {**TORCHRUN, "LOCAL_RANK": "2"},
            r"local_rank 2 \(LOCAL_RANK\) but local_world_size 2 \(LOCAL_WORLD_SIZE\)",
        ),
        (
            PyTorchLauncher,
            {**TORCHRUN, "LOCAL_WORLD_SIZE": "8"},
            r"local_world_size 8 \(LOCAL_WORLD_SIZE\) but world_size 4 .* not be larger",
        ),
        (
            PyTorchLauncher,
            {**TORCHRUN, "GROUP_RANK": "2"},
            r"node_rank 2 \(GROUP_RANK\) but num_nodes 2 \(GROUP_WORLD_SIZE\)",
        ),
        (SlurmLauncher, {}, r"SLURM_STEP_NUM_TASKS or .*not set"),
        (
            SlurmLauncher,
            {**SLURM_ONE_NODE, "SLURM_STEP_ID": ""},
            r"2 tasks \(SLURM_NTASKS\) but no job step",
        ),
        (SlurmLauncher, {**SLURM_ONE_NODE, "SLURM_LOCALID": ""}, r"SLURM_LOCALID, which is not"),
        (SlurmLauncher, {**SLURM_ONE_NODE, "SLURM_JOB_ID": "x"}, r"SLURM_JOB_ID, whose .* 'x'"),
        (MPILauncher, {}, r"OMPI_COMM_WORLD_RANK or .*PMI_RANK"),
        (MPILauncher, {"PMI_RANK": "0"}, r"world_size from OMPI_COMM_WORLD_SIZE or "),
        (
            MPILauncher,
            {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4"},
            r"several machines.*Set MASTER_ADDR",
        ),
    ],
    ids=[
        "torchrun-nothing",
        "torchrun-one-missing",
        "word",
        "negative",
        "port",
        "rank-too-large",
        "local-rank-too-large",
        "local-world-too-large",
        "node-too-large",
        "slurm-nothing",
        "slurm-shell",
        "slurm-no-local-rank",
        "slurm-bad-job",
        "mpi-nothing",
        "mpi-no-size",
        "mpi-no-address",
    ],
)
def test_launcher_says_what_is_wrong_with_the_environment(launcher, env, message):
    with pytest.raises(LaunchError, match=message):
        launcher().read(env)


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("n1", "n1"),
        ("n[1-3]", "n1"),
        ("n-2,gpu[08-10,15],m", "n-2"),
        ("gpu[08-10,15],m", "gpu08"),
        ("rack[2-3]n[01-02]", "rack2n01"),
        ("a-[1,3].cluster", "a-1.cluster"),
    ],
    ids=["one", "range", "list", "padding", "two-brackets", "suffix"],
)
def test_first_node_is_that_of_scontrol(text, node):
    assert first_node(text) == node


@pytest.mark.parametrize("text", ["n[1-", "n[]", "n[a-b]", "n[1]]", ",", "(null)", "n 1", "[1-2"])
def test_first_node_refuses_what_it_cannot_read(text):
    with pytest.raises(LaunchError, match="Slurm node list"):
        first_node(text)


@pytest.mark.parametrize("name", ["OPEN_MPI_5", "INTEL_MPI", "MPICH"])
def test_a_given_port_wins(name):
    env = {**getattr(observed, name), "MASTER_ADDR": "a", "MASTER_PORT": "1234"}
    assert MPILauncher().read(env).master_port == 1234
