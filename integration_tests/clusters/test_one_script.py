"""Slurm, submitit and MPI start the script that ``ecosystem`` starts on all other engines."""

import json
import re
import shutil
import sys
import time
from pathlib import Path

import pytest
from test_mpi import ROOT, mpirun  # noqa: F401 - a fixture

ECOSYSTEM = Path(__file__).parents[1] / "ecosystem"
SCRIPT = ECOSYSTEM / "one_script.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
JOB = "{nodes: 2, cpus: 1, gpus: 1, memory: 1G, time: 00:10:00, requeue: true, name: one-script}"


@pytest.fixture(scope="module")
def expected(run_here, tmp_path_factory):
    """What torchrun's two ranks come to."""
    folder = tmp_path_factory.mktemp("torchrun")
    run_here(sys.executable, *TORCHRUN, SCRIPT, folder)
    return read_reports(folder)[0]["weights"]


def read_reports(work_dir):
    return [json.loads(file.read_text()) for file in sorted(work_dir.glob("rank_*.json"))]


def assert_trained(work_dir, expected, launcher, local_ranks):
    reports = read_reports(work_dir)
    assert [one["weights"] for one in reports] == [expected] * 2
    assert [one["local_rank"] for one in reports] == local_ranks
    assert {(one["launcher"], one["world_size"]) for one in reports} == {(launcher, 2)}


def test_srun(slurm, expected, tmp_path):
    slurm.run("srun", "--nodes=2", "--ntasks=2", "python", SCRIPT, tmp_path / "out", cwd=tmp_path)
    assert_trained(tmp_path / "out", expected, "slurm", [0, 0])


def test_mpirun(mpirun, run_here, expected, tmp_path):  # noqa: F811 - the fixture
    run_here(mpirun, "-np", 2, "python", SCRIPT, tmp_path / "out", **ROOT)
    assert_trained(tmp_path / "out", expected, "mpi", [0, 1])


def test_submitit(slurm, expected, tmp_path):
    pytest.importorskip("submitit")
    starter = ("python", ECOSYSTEM / "starters.py", "submitit_slurm", tmp_path / "out")
    slurm.run(*starter, cwd=tmp_path)
    assert_trained(tmp_path / "out", expected, "slurm", [0, 0])
    slurm.wait_until_idle()


def wait_for_step(slurm, job, work_dir, step):
    end, files = time.monotonic() + 300, [work_dir / f"step_of_{rank}.json" for rank in range(2)]
    while not all(f.exists() and json.loads(f.read_text())["step"] >= step for f in files):
        found = slurm.describe(job)
        assert found["JobState"] in ("PENDING", "RUNNING"), Path(found["StdOut"]).read_text()
        assert time.monotonic() < end, f"step {step} did not come"
        time.sleep(0.1)


@pytest.mark.cut
def test_submitted_job_saves_queues_again_and_resumes(slurm, expected, tmp_path):
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "submit.yaml").write_text(JOB)
    command = ("mm-dist", "submit", "--on", "slurm", "--option", "partition=mm_dev", "--")
    script = ("one_script.py", "out", "--resume", "--seconds-per-step=1.5")
    (job,) = re.findall(r"batch job (\d+)", slurm.run(*command, *script, cwd=tmp_path))
    try:
        wait_for_step(slurm, job, tmp_path / "out", 6)
        slurm.run("scancel", "--signal=USR1", job)
        # Slurm holds a requeued job for two minutes, lest its nodes still be busy ending it.
        slurm.wait_for(job, "PENDING")
        slurm.wait_until_idle()
        while slurm.seconds_since(job, "SubmitTime") < 5:
            time.sleep(0.1)
        slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        found = slurm.wait_for(job, "COMPLETED")
    finally:
        slurm.run("scancel", job)
    assert (found["Restarts"], found["JobName"], found["Partition"]) == (
        "1",
        "one-script",
        "mm_dev",
    )
    assert_trained(tmp_path / "out", expected, "slurm", [0, 0])
    assert min(one["first_step"] for one in read_reports(tmp_path / "out")) > 5
