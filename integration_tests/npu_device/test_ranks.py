"""Real ranks on NPUs: their devices, hccl, collectives and DDP."""

import json
import socket
import subprocess
import sys

import pytest
from conftest import HERE, TORCHRUN, variables

pytestmark = pytest.mark.needs_device
RANKS = HERE / "ranks.py"


def read(folder):
    paths = [folder / f"{rank}.json" for rank in range(2)]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def test_ranks_of_torchrun_train_on_their_own_npus(run_python, tmp_path):
    done = run_python(*TORCHRUN, RANKS, tmp_path)
    assert "Warning" not in done.stderr, done.stderr
    for rank, found in enumerate(read(tmp_path)):
        assert found["launcher"] == "pytorch"
        assert found["backend"] == found["torch"] == "hccl"
        assert found["device"] == f"npu:{rank}"
        assert found["set_device"][0] == found["current"] == rank
        assert found["collectives"] == {
            "all_reduce": [1.5],
            "broadcast": [2.0],
            "flags": [True],
            "dict": [3.0, 3.0],
            "all_gather": [[1.0], [2.0]],
            "gather": [] if rank else [[1.0], [2.0]],
            "objects": [{"rank": 0}, {"rank": 1}],
            "seeds": 1,
            "results": None if rank else [0, 1],
        }
        sums, differences = zip(*found["ddp"], strict=True)
        assert differences == (0.0, 0.0, 0.0)
        assert sums == pytest.approx([sums[0]] * 3, rel=1e-6)
        sharded = found["sharded"]
        assert sharded["losses"][0] > sharded["losses"][1] > sharded["losses"][2]
        assert sharded["shapes"] == [[8, 4], [8], [2, 8], [2]]
        assert sharded["devices"] == [f"npu:{rank}"]
        assert "sharded over ranks" in sharded["refusal"]
        assert "MMDistributedDataParallel" in sharded["refusal"]


SLURM = {
    "SLURM_JOB_ID": "9",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_NODEID": "0",
}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


def slurm(rank):
    return {**SLURM, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}


def mpi(rank):
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    return {**OPEN_MPI, **dict.fromkeys(names, str(rank))}


@pytest.mark.parametrize("launched", [slurm, mpi])
def test_ranks_of_other_launchers_take_their_npus_too(launched, tmp_path):
    """The variables of Slurm and MPI are a stand-in; the two processes and hccl are there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ONLY_START": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANKS), str(tmp_path)],
            env={**variables(with_npu=True), **meeting, **launched(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    for rank, found in enumerate(read(tmp_path)):
        assert found["launcher"] == launched.__name__
        assert found["backend"] == found["torch"] == "hccl"
        assert found["set_device"][0] == found["current"] == found["local_rank"] == rank


CAUGHT = """
import time, mm_dist
info = mm_dist.init_dist()
mm_dist.barrier()
if info.rank == 1:
    raise ValueError("boom")
time.sleep(9)  # an emergency checkpoint, long after the other rank has failed
print("saved", flush=True)
"""


def test_a_rank_that_runs_python_is_not_ended_when_another_one_fails(tmp_path):
    (tmp_path / "script.py").write_text(CAUGHT, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "script.py")],
            env={**variables(with_npu=True), **meeting, **mpi(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (saved, _), (_, errors) = [rank.communicate(timeout=120) for rank in ranks]
    assert saved == "saved\n"
    assert errors.splitlines()[-1].endswith("failed: ValueError: boom")


def test_a_process_that_sees_one_npu_takes_that(run_python):
    program = """
import mm_dist, torch
assert torch.npu.device_count() == 1
print(mm_dist.local_device(3), mm_dist.init_dist("none").device)
"""
    done = run_python("-c", program, ASCEND_RT_VISIBLE_DEVICES="7")
    assert done.stdout.split() == ["npu:0", "npu:0"]


def test_without_a_visible_npu_all_goes_on_on_the_cpu(run_python):
    program = """
import mm_dist, mm_npu, mm_amp
assert not mm_npu.is_npu_available()
print(mm_npu.npu_unavailable_reason())
print(mm_dist.available_device_type())
"""
    done = run_python("-c", program, ASCEND_RT_VISIBLE_DEVICES="")
    reason, device_type = done.stdout.splitlines()
    assert "finds no NPU" in reason
    assert "ASCEND_RT_VISIBLE_DEVICES" in reason
    assert device_type == "cpu"


def test_more_ranks_than_npus_are_refused_by_name(run_python, tmp_path):
    done = run_python(
        *TORCHRUN[:-1],
        "--nproc_per_node=3",
        RANKS,
        tmp_path,
        check=False,
        ASCEND_RT_VISIBLE_DEVICES="0,1",
    )
    assert done.returncode != 0
    assert "Local rank 2 has no npu device: this process sees 2" in done.stderr
    assert "ASCEND_RT_VISIBLE_DEVICES=0,1" in done.stderr
