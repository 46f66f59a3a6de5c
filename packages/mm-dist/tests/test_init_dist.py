import inspect
import os
import socket
import sys
import time
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from mm_dist import (
    ArgumentTypeError,
    ConfigError,
    DistInfo,
    LaunchError,
    check_dist_arguments,
    destroy_dist,
    get_local_rank,
    get_local_size,
    init_dist,
    is_distributed,
)
from mm_dist._process_group._joining import _group_arguments
from mm_dist._rendezvous._store import StoreAddress
from mm_dist._state import state

ENVIRONMENTS = {
    "pytorch": lambda rank: {
        "RANK": f"{rank}",
        "LOCAL_RANK": f"{rank}",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
    },
    "slurm": lambda rank: {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": f"{rank}",
        "SLURM_LOCALID": f"{rank}",
        "SLURM_NTASKS": "2",
        "SLURM_NODEID": "0",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NODELIST": "this-name-does-not-resolve",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "RANK": "9",  # left behind by something else
    },
    "mpi": lambda rank: {
        "OMPI_COMM_WORLD_RANK": f"{rank}",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": f"{rank}",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
}


def find_free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def one_process(**changes):
    env = ENVIRONMENTS["pytorch"](0)
    return {**env, "WORLD_SIZE": "1", "MASTER_PORT": f"{find_free_port()}", **changes}


@pytest.fixture
def torchrun_of_one(monkeypatch):
    env = one_process(LOCAL_WORLD_SIZE="1")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    yield env
    destroy_dist()


def _join(rank, launcher, port):
    os.environ.update(ENVIRONMENTS[launcher](rank))
    if launcher == "pytorch":
        os.environ["MASTER_PORT"] = str(port)
    before, hook = dict(os.environ), sys.excepthook
    info = init_dist("slurm" if launcher == "slurm" else "auto", "gloo", timeout=60, port=port)
    place = DistInfo(rank, 2, rank, 2, launcher, "gloo", torch.device("cpu"))
    assert info == replace(place, timeout=timedelta(seconds=60)), "the timeout is read back"
    assert os.environ["LOCAL_RANK"] == os.environ["RANK"] == str(rank)
    assert (get_local_rank(), get_local_size()) == (rank, 2)
    assert init_dist("auto") == info, "the second call describes the group"
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    assert total.item() == 3
    destroy_dist()
    destroy_dist()
    assert not is_distributed()
    assert dict(os.environ) == before
    assert sys.excepthook is hook
    if launcher == "slurm":
        _join_again(rank, port)


def _join_again(rank, port):
    if rank == 0:
        # The other rank was faster, and waits in the store of the group that has ended.
        store = StoreAddress("127.0.0.1", port).connect()
        while store.add("mm_dist/2/rank/1", 0) == 0:
            time.sleep(0.01)
    init_dist("slurm", "gloo", timeout=60, port=port)
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    assert total.item() == 3
    assert state.kept_store is None
    destroy_dist()
    # One rank that has no report: the others would wait for its part in it.
    off = {"MM_DIST_HANG_REPORT": "off"} if rank == 1 else {}
    os.environ.update(off)
    with pytest.raises(LaunchError, match=r"REPORT\) is on on rank 0, and off on rank 1 \("):
        init_dist("slurm", "gloo", timeout=60, port=port)
    assert not is_distributed()


@pytest.mark.parametrize("launcher", ["pytorch", "slurm", "mpi"])
def test_init_dist_joins_the_ranks_of_a_launcher(launcher):
    arguments = (launcher, find_free_port())
    mp.start_processes(_join, arguments, nprocs=2, start_method="forkserver")


def _join_by_arguments(rank, port):
    info = init_dist(
        device_type="cpu", rank=rank, world_size=2, init_method=f"tcp://127.0.0.1:{port}"
    )
    assert info.launcher == "pytorch"
    assert (info.rank, info.world_size, info.local_rank, info.local_world_size) == (
        rank,
        2,
        rank,
        2,
    )
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    assert total.item() == 3
    destroy_dist()
    assert "RANK" not in os.environ
    with pytest.warns(
        UserWarning, match=r"\(SpawnProcess-\d\) was started by multiprocessing.*rank="
    ):
        assert init_dist(device_type="cpu").world_size == 1


def test_init_dist_takes_the_place_of_a_spawned_process():
    mp.spawn(_join_by_arguments, (find_free_port(),), nprocs=2)


def test_init_dist_without_launcher_creates_no_group():
    info = init_dist(device_type="cpu", timeout=timedelta(seconds=5), port=1234)
    assert info == DistInfo(0, 1, 0, 1, "none", None, torch.device("cpu"))
    assert not is_distributed()


@pytest.mark.usefixtures("torchrun_of_one")
def test_init_dist_replaces_a_backend_that_cannot_run():
    with pytest.warns(UserWarning, match="backend='nccl' was asked for") as seen:
        info = init_dist("pytorch", backend="nccl", device_type="cpu")
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert info.backend == "gloo"


def test_init_dist_says_that_torchruns_port_stays(torchrun_of_one):
    with pytest.warns(UserWarning, match=r"port=1234 is not used: .*--master_port=1234"):
        init_dist("pytorch", port=1234, device_type="cpu")
    assert os.environ["MASTER_PORT"] == torchrun_of_one["MASTER_PORT"]


@pytest.mark.usefixtures("torchrun_of_one")
def test_init_dist_leaves_mps_for_the_cpu_where_there_is_a_group(monkeypatch):
    stand_in = torch.device("mps", 0)
    monkeypatch.setattr("mm_dist._process_group._init.local_device", lambda *_: stand_in)
    with pytest.warns(UserWarning, match="mps takes part in no process group"):
        info = init_dist("pytorch")
    assert (info.device, info.backend) == (torch.device("cpu"), "gloo")


@pytest.mark.usefixtures("group_of_one")
def test_init_dist_describes_a_group_of_others_and_leaves_it():
    with pytest.warns(UserWarning, match="timeout=5 is not used"):
        info = init_dist(timeout=5)
    expected = DistInfo(0, 1, 0, 1, "none", "gloo", torch.device("cpu"), timedelta(minutes=30))
    assert info == init_dist() == expected
    destroy_dist()
    assert is_distributed()


MPI_OF_ONE = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    ("env", "launcher", "local_world_size"),
    [
        ({"RANK": "0", "WORLD_SIZE": "1"}, "pytorch", 1),
        ({"RANK": "one", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "pytorch", 1),
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"}, "pytorch", 1),
        ({**MPI_OF_ONE, "RANK": "3", "WORLD_SIZE": "1"}, "pytorch", 1),
        # What can be read is read: this launcher does not tell the number of local ranks.
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_PORT": "x"}, "pytorch", None),
    ],
    ids=["incomplete", "malformed", "of-another-job", "contradicting", "bad-port"],
)
def test_a_group_that_exists_wins_over_variables(monkeypatch, env, launcher, local_world_size):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    info = init_dist()
    assert (info.rank, info.world_size, info.local_rank) == (0, 1, 0)
    assert (info.launcher, info.local_world_size) == (launcher, local_world_size)
    assert get_local_rank() == 0


@pytest.mark.usefixtures("torchrun_of_one")
def test_init_dist_can_be_called_again_after_the_group_was_destroyed(monkeypatch):
    first = init_dist(device_type="cpu")
    dist.destroy_process_group()
    monkeypatch.setenv("MASTER_PORT", f"{find_free_port()}")
    assert init_dist(device_type="cpu") == first
    assert is_distributed()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"launcher": "torchrun"}, ConfigError, "launcher='torchrun' is not known"),
        ({"launcher": "gloo"}, ConfigError, "launcher='gloo' is not known"),
        ({"launcher": "pytorch"}, LaunchError, "torchrun --nproc_per_node=N script.py"),
        ({"backend": "glo"}, ConfigError, "Did you mean 'gloo'"),
        ({"timeout": -1}, ConfigError, "timeout=-1"),
        ({"launcher": ["a"]}, ConfigError, r"launcher=\['a'\] is not known"),
        ({"steady_timeout": "9"}, ArgumentTypeError, "steady_timeout='9' is no time"),
        ({"timeout": 5, "steady_timeout": 6}, ConfigError, "is longer than timeout=0:00:05"),
        ({"port": 0}, ConfigError, "port=0 is no port"),
        ({"port": "29500"}, ConfigError, "port='29500' is no port"),
        ({"init_backend": "deepspeed"}, ConfigError, "only 'torch' is"),
        ({"device_type": "tpu"}, ConfigError, "device_type='tpu' is not known"),
        ({"rank": 0, "world_size": 2}, LaunchError, "do not say where rank 0 is"),
        ({"init_method": "tcp://a:1"}, ConfigError, "give rank and world_size"),
        (
            {"rank": 0, "world_size": 2, "init_method": "tcp://192.0.2.1:1"},
            LaunchError,
            "Set LOCAL_RANK in os.environ",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_init_dist_refuses_what_cannot_be_used(arguments, error, message):
    with pytest.raises(error, match=message):
        init_dist(**arguments)


def test_init_dist_names_the_port_that_is_taken(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for name, value in one_process(LOCAL_WORLD_SIZE="1", MASTER_PORT=f"{port}").items():
            monkeypatch.setenv(name, value)
        with pytest.raises(LaunchError, match=rf"port {port} of .*MASTER_PORT or port="):
            init_dist(device_type="cpu", timeout=5)
    assert not is_distributed()


def test_group_arguments_name_the_device_of_an_accelerator():
    # A stand-in for a CUDA machine: nothing is initialized.
    cuda = DistInfo(0, 2, 0, 2, "pytorch", "nccl", torch.device("cuda", 0))
    arguments = _group_arguments(cuda, timedelta(seconds=5), None)
    knows_device = "device_id" in dist.init_process_group.__annotations__
    assert arguments.get("device_id") == (cuda.device if knows_device else None)
    assert arguments["timeout"] == timedelta(seconds=5)
    cpu = DistInfo(0, 2, 0, 2, "pytorch", "gloo", torch.device("cpu"))
    assert "device_id" not in _group_arguments(cpu, None, None)
    # A gloo group beside this one would be asked for the device, which it does not serve.
    npu = DistInfo(0, 2, 0, 2, "pytorch", "hccl", torch.device("privateuseone", 0))
    assert "device_id" not in _group_arguments(npu, None, None)


SCRIPT = """
import atexit, torch.distributed as dist
atexit.register(lambda: print("open" if dist.is_initialized() else "destroyed"))
import mm_dist
mm_dist.init_dist(device_type="cpu")
"""


# A child that is not forked imports the script, and comes to init_dist as well.
SPAWN = """
import multiprocessing
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=print)
    child.start()
    child.join()
    print(child.exitcode, flush=True)
"""


def test_clean_exit_destroys_the_group_and_a_spawned_child_does_not_join_it(run_script):
    result = run_script(SCRIPT + SPAWN, **one_process(LOCAL_WORLD_SIZE="1"))
    assert (result.returncode, result.stdout) == (0, "destroyed\n1\ndestroyed\n")
    last = result.stderr.splitlines()[-1]
    assert "LaunchError: init_dist was called while a child process imports the script" in last
    assert last.endswith("under `if __name__ == '__main__':`.")


FORK = """
from mm_dist._process_group._ending import end_at_exit
if os.fork() == 0:
    mm_dist.destroy_dist()
    end_at_exit()
    os._exit(7 if dist.is_initialized() else 1)  # torch may hang where Python ends by itself
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
mm_dist.barrier()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_child_leaves_the_group_to_its_parent(run_script):
    quiet = ("-W", "ignore::DeprecationWarning")  # Python's own, of forks beside threads
    source = "import os" + SCRIPT + FORK
    result = run_script(source, *quiet, **one_process(LOCAL_WORLD_SIZE="1"))
    assert (result.returncode, result.stdout, result.stderr) == (0, "destroyed\n", "")


def test_what_init_dist_takes_passes_the_check():
    check_dist_arguments()
    check_dist_arguments("mpi", "gloo", timeout=60, steady_timeout=30, port=29500)
    parameters = inspect.signature(check_dist_arguments).parameters
    assert list(parameters) == list(inspect.signature(init_dist).parameters)
