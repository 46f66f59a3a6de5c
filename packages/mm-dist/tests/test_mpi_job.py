"""Ports of MPI jobs; the process tree is real, and the proxy a stand-in for that of MPICH."""

import sys

import observed
import pytest

from mm_dist import MPILauncher
from mm_dist._launchers import observe_job

PROXY = """
import ctypes, os, subprocess, sys
# The name that Linux shows for this process, as hydra_pmi_proxy does for its own.
ctypes.CDLL(None).prctl(15, b"hydra_pmi_proxy", 0, 0, 0)
rank = '''
import os
from mm_dist import MPILauncher
from mm_dist._launchers import observe_job
print(os.environ["WHO"], MPILauncher().read(observe_job(os.environ)).master_port)
'''
# Rank 0 is the proxy's child; rank 1 has a shell in between, as a wrapper script has.
python = [sys.executable, "-c", rank]
shell = ["/bin/sh", "-c", '"$@"; exit $?', "sh", *python]
for rank, command in enumerate((python, shell)):
    subprocess.run(command, env={**os.environ, "PMI_RANK": str(rank)}, check=True)
print("proxy", os.getpid())
"""
HYDRA = {name: value for name, value in observed.MPICH.items() if name != "PMI_RANK"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's process tree")
def test_ranks_of_one_hydra_proxy_compute_their_port_from_it(run_script):
    result = run_script(PROXY, WHO="rank", **HYDRA)
    assert result.returncode == 0, result.stderr
    *ports, proxy = (int(line.split()[1]) for line in result.stdout.splitlines())
    assert ports == [10000 + proxy % 9973] * 2


@pytest.mark.parametrize(
    "changes",
    [{"MASTER_PORT": "1234"}, {"PMIX_NAMESPACE": "7"}, {"MPI_LOCALRANKID": ""}],
    ids=["given-port", "named-job", "no-hydra"],
)
def test_observe_job_adds_nothing_where_nothing_is_missing(changes, tmp_path):
    env = {**observed.MPICH, **changes}
    assert observe_job(env, proc=tmp_path) is env


def write_process(proc, folder, stat):
    (proc / folder).mkdir()
    (proc / folder / "stat").write_text(stat)


def test_observe_job_reads_odd_program_names_and_stops_at_the_first_process(tmp_path):
    # A stand-in for /proc: a container whose first process is no proxy.
    write_process(tmp_path, "self", "30 (py) (t) S 20 30 30 0")
    write_process(tmp_path, "20", "20 (hydra_pmi_proxy) S 1 20 20 0")
    assert observe_job(observed.MPICH, tmp_path)["MM_DIST_HYDRA_PROXY"] == "20"
    (tmp_path / "20" / "stat").write_text("20 (bash) S 1 20 20 0")
    write_process(tmp_path, "1", "1 (init) S 0 1 1 0")
    assert observe_job(observed.MPICH, tmp_path) is observed.MPICH


def test_observe_job_leaves_a_hidden_process_tree_alone(tmp_path):
    assert observe_job(observed.MPICH, tmp_path) is observed.MPICH


def test_the_proxy_names_no_port_across_machines():
    env = {**observed.MPICH, "PMI_SIZE": "4", "MASTER_ADDR": "a", "MM_DIST_HYDRA_PROXY": "20"}
    read = MPILauncher().read(env)
    assert read.master_port == 29500
    assert "set MASTER_PORT" in read.sources["master_port"]


@pytest.mark.parametrize("name", ["OPEN_MPI_5", "INTEL_MPI", "MVAPICH", "MPICH"])
def test_a_given_port_wins(name):
    env = {**getattr(observed, name), "MASTER_ADDR": "a", "MASTER_PORT": "1234"}
    assert MPILauncher().read(env).master_port == 1234
