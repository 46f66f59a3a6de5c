"""Real clusters on one machine: Slurm's daemons, MPI's launchers, machines made of namespaces."""

import subprocess
import sys
import tempfile
from pathlib import Path

import debian
import pytest
import slurm as slurm_daemons
from hosts import PATIENCE_S, network, why_no_hosts
from training import CONFIG, HERE, OPTIONS, SCRIPT, user_environment

_TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


def pytest_configure(config):
    config.addinivalue_line("markers", "cut: one of the few that are run with every change")


@pytest.fixture(scope="session")
def shared_folder():
    """A folder that is on every machine, and that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="clusters_") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def hosts(shared_folder):
    """``login``, ``n1`` and ``n2``, each with its own address, name and processes."""
    reason = debian.why_missing(("ip", "nsenter"), ("iproute2", "util-linux")) or why_no_hosts()
    if reason is not None:
        pytest.skip(reason)
    with network(shared_folder, num_nodes=2) as machines:
        yield machines


@pytest.fixture(scope="session")
def nodes(hosts):
    """``n1`` and ``n2``."""
    return hosts[1:]


@pytest.fixture(scope="session")
def slurm(hosts, shared_folder):
    """A cluster of Slurm on the machines."""
    reason = debian.why_missing(slurm_daemons.PROGRAMS, slurm_daemons.PACKAGES)
    if reason is not None:
        pytest.skip(reason)
    run = shared_folder / "slurm"
    run.mkdir()
    with slurm_daemons.slurm_cluster(hosts, run, user_environment()) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def run_here():
    """``run_here(*command)`` runs a command as a user does, and returns what it prints."""

    def run(*command, status=0, **variables):
        done = subprocess.run(
            list(map(str, command)),
            cwd=HERE,
            env=user_environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == status, f"{command} ended with {done.returncode}\n{done.stdout}"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def reference(run_here, tmp_path_factory):
    """The work directory of the example, run by torchrun in two processes on one machine."""
    work_dir = tmp_path_factory.mktemp("reference")
    run_here(sys.executable, *_TORCHRUN, SCRIPT, *OPTIONS, "--work-dir", work_dir)
    return work_dir


@pytest.fixture(scope="session")
def config_reference(run_here, tmp_path_factory):
    """``config_reference(*options)``: the same of ``mm-runner train`` with the configuration."""
    made = {}

    def run(*options):
        if options not in made:
            made[options] = tmp_path_factory.mktemp("config_reference")
            command = (*_TORCHRUN, "-m", "mm_runner", "train", CONFIG, *options)
            run_here(sys.executable, *command, "--work-dir", made[options])
        return made[options]

    return run
