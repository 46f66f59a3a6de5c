"""Both launchers of MPI, installed side by side, start what the documents say."""

import signal
import subprocess
import sys

import debian
import pytest
from places import RANKS, expected_places, read_places
from training import (
    CONFIG,
    FEW_EPOCHS,
    HERE,
    OPTIONS,
    SCRIPT,
    SLOW,
    accuracy,
    assert_equal_runs,
    hurry,
    read_checkpoint,
    user_environment,
    wait_until_it_trains,
)

PACKAGES = {"mpirun.openmpi": "openmpi-bin", "mpirun.mpich": "mpich"}
# How each is told where rank 0 is; it has to be where the ranks are on several machines.
FIRST_HOST = {
    "mpirun.openmpi": ("-x", "MASTER_ADDR=n1"),
    "mpirun.mpich": ("-genv", "MASTER_ADDR", "n1"),
}
# Open MPI asks twice whether root may start programs.
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.fixture(params=PACKAGES, ids=lambda program: program.partition(".")[2])
def mpirun(request):
    reason = debian.why_missing((request.param,), (PACKAGES[request.param],))
    if reason is not None:
        pytest.skip(reason)
    return request.param


@pytest.mark.cut
def test_documented_command_trains_as_torchrun_does(mpirun, run_here, reference, tmp_path):
    command = (mpirun, "-np", 2, "python", SCRIPT, "--launcher", "mpi")
    output = run_here(*command, *OPTIONS, "--work-dir", tmp_path, **ROOT)
    assert accuracy(output) > 50
    assert_equal_runs(tmp_path, reference)


def test_jobs_on_one_machine_keep_apart(mpirun, tmp_path):
    is_named = mpirun != "mpirun.mpich"  # ports are computed from the names of jobs
    jobs = [
        subprocess.Popen(
            [mpirun, "-np", "2", sys.executable, RANKS, tmp_path / name, "auto"],
            env=user_environment(**ROOT, **({} if is_named else {"MASTER_PORT": port})),
        )
        for name, port in (("a", "29500"), ("b", "29501"))
    ]
    assert [job.wait(timeout=120) for job in jobs] == [0, 0]
    for name in "ab":
        places = read_places(tmp_path / name)
        assert places == expected_places("mpi", places[0]["host"])


def test_local_rank_begins_anew_on_every_machine(mpirun, slurm, tmp_path):
    allocation = ("salloc", "--nodes=2", "--ntasks-per-node=2")
    ranks = ("python", RANKS, tmp_path / "places", "mpi")
    options = (f"{name}={value}" for name, value in ROOT.items())
    slurm.run(*allocation, "env", *options, mpirun, "-np", 4, *FIRST_HOST[mpirun], *ranks)
    assert read_places(tmp_path / "places") == expected_places("mpi", "n1", "n2")


def test_signal_to_mpirun_saves_and_the_run_resumes(mpirun, run_here, config_reference, tmp_path):
    train = ["mm-runner", "train", CONFIG, "--resume", "--work-dir", tmp_path, *FEW_EPOCHS]
    process = subprocess.Popen(
        [mpirun, "-np", "2", *train, SLOW],
        cwd=HERE,
        env=user_environment(**ROOT),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_until_it_trains(tmp_path, 2, lambda: process.poll() is None)
        process.send_signal(signal.SIGUSR1)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 75, output
    assert read_checkpoint(tmp_path)["meta"]["iter"] < 38, "it came to its end"
    hurry(tmp_path)
    run_here(mpirun, "-np", 2, *train, SLOW, **ROOT)
    assert_equal_runs(tmp_path, config_reference(*FEW_EPOCHS))
