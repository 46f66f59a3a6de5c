"""What each launcher reads from the environments of ``observed.py``."""

from functools import cache

import observed
import pytest

from mm_dist import LaunchError, MMDistError, SlurmLauncher
from mm_dist._command._env import explain_environment
from mm_dist._launchers import _selection as selection
from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._launchers._selection import launcher_names, select_launcher

LAUNCHERS = cache(selection.find_plugins)
# rank, local rank, world size, local world size, nodes, node, address, port
TABLE = [
    ("TORCHRUN", "pytorch", (1, 1, 2, 2, 1, 0), ("localhost", 43007)),
    ("TORCH_LAUNCH", "pytorch", (1, 1, 2, 2, 1, 0), ("127.0.0.1", 29163)),
    ("TORCHRUN_TWO_NODES", "pytorch", (3, 1, 4, 2, 2, 1), ("10.77.0.11", 29501)),
    ("SLURM", "slurm", (1, 1, 2, 2, 1, 0), ("127.0.0.1", 20576)),
    ("SLURM_UNEVEN", "slurm", (4, 0, 5, 1, 3, 2), ("n1", 20576)),
    ("SLURM_CYCLIC", "slurm", (3, 1, 4, 2, 3, 0), ("n1", 20576)),
    ("SLURM_HETEROGENEOUS", "slurm", (2, 1, 3, 2, 2, 1), ("n1", 20064)),
    ("SLURM_PMIX", "slurm", (1, 1, 2, 2, 1, 0), ("127.0.0.1", 20576)),
    ("SLURM_PMI2", "slurm", (1, 1, 2, 2, 1, 0), ("127.0.0.1", 20576)),
    ("OPEN_MPI_4", "mpi", (1, 1, 3, 3, 1, None), ("127.0.0.1", 19809)),
    ("OPEN_MPI_5", "mpi", (1, 1, 2, 2, 1, None), ("127.0.0.1", 15311)),
    ("MPICH", "mpi", (1, 1, 2, 2, 1, None), ("127.0.0.1", 29500)),
    ("INTEL_MPI", "mpi", (1, 1, 2, 2, 1, None), ("127.0.0.1", 14573)),
    ("PYTORCH_JOB", "pytorch", (1, 0, 2, 1, None, None), ("job-master-0", 23456)),
]


def place(read):
    local = (read.local_rank, read.world_size, read.local_world_size)
    return (read.rank, *local, read.num_nodes, read.node_rank)


@pytest.mark.parametrize(
    ("name", "launcher", "numbers", "meeting_point"), TABLE, ids=[row[0] for row in TABLE]
)
def test_auto_reads_what_the_launcher_set(name, launcher, numbers, meeting_point):
    env = getattr(observed, name)
    read = select_launcher("auto", env).read(env)
    assert (read.launcher, place(read)) == (launcher, numbers)
    assert (read.master_addr, read.master_port) == meeting_point
    assert set(read.sources) >= {"rank", "local_rank", "world_size", "master_addr", "master_port"}
    # Each source is a variable that is there, or a phrase.
    assert all(source in env or " " in source for source in read.sources.values())


@pytest.mark.parametrize("name", ["OPEN_MPI_IN_SLURM", "MPICH_IN_SLURM"])
def test_mpi_on_several_machines_needs_an_address_and_then_reads_on(name):
    env = getattr(observed, name)
    launcher = select_launcher("auto", env)
    with pytest.raises(LaunchError, match=r"several machines.*Set MASTER_ADDR"):
        launcher.read(env)
    read = launcher.read({**env, "MASTER_ADDR": "n1"})
    assert (read.launcher, read.master_addr) == ("mpi", "n1")
    assert place(read) == (2, 0, 3, 1, None, None)


def test_auto_says_what_the_variables_lack():
    env = observed.SLURM_ARBITRARY
    with pytest.raises(LaunchError, match=r"which node has rank 0: .*SLURM_HOSTFILE=/home/me"):
        select_launcher("auto", env).read(env)


def test_slurm_reads_a_layout_by_host_file_when_the_address_is_given():
    read = SlurmLauncher().read({**observed.SLURM_ARBITRARY, "MASTER_ADDR": "n2"})
    assert (place(read), read.master_addr) == ((0, 0, 3, 1, 2, 1), "n2")


@pytest.mark.parametrize("name", ["SLURM_BATCH", "SLURM_SHELL", "KUBERNETES"])
def test_auto_takes_a_process_that_nothing_started_for_one_of_its_own(name):
    assert select_launcher("auto", getattr(observed, name)).name == "none"


def test_slurm_gives_each_task_of_an_array_a_port_of_its_own():
    ports = [SlurmLauncher().read(env).master_port for env in observed.SLURM_ARRAY]
    assert len(set(ports)) == 2


def test_slurm_gives_each_step_and_each_of_many_jobs_a_port_of_its_own():
    def read_port(job, step):
        changes = {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}
        return SlurmLauncher().read({**observed.SLURM, **changes}).master_port

    steps = {read_port(4_000_000, step) for step in range(64)}
    jobs = {read_port(4_000_000 + job, 0) for job in range(2000)}
    assert (len(steps), len(jobs)) == (64, 2000)
    # Below torch's own ports, and those that systems hand out.
    assert all(20000 <= port < 29400 for port in steps | jobs)


def read_or_refuse(launcher, env):
    try:
        return select_launcher(launcher, env).read(env)
    except MMDistError as error:
        return error


@pytest.mark.parametrize("name", [row[0] for row in TABLE])
@pytest.mark.parametrize("value", ["", "x", "-1", "99999", "n[2-", "1.5"])
def test_a_broken_variable_gives_an_answer_or_an_error_of_ours(name, value, monkeypatch):
    # Some thousand readings: the installed launchers are looked up once.
    monkeypatch.setattr(selection, "find_plugins", LAUNCHERS)
    env = getattr(observed, name)
    for variable in env:
        broken = {**env, variable: value}
        for launcher in launcher_names():
            read = read_or_refuse(launcher, broken)
            assert isinstance(read, (LaunchEnvironment, LaunchError))
        assert explain_environment(broken)[0].field == "launcher"
