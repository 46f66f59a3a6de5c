"""A port for the ranks of one MPI job that another job on the same machine does not get."""

import zlib
from collections.abc import Mapping
from pathlib import Path

# What the ranks of a job share and other jobs do not have: Open MPI and PMIx, Intel MPI, MVAPICH
# (the process id of mpirun_rsh), Cray's PALS, Flux.
_JOB_NAMES = ("PMIX_NAMESPACE", "I_MPI_HYDRA_UUID", "MPIRUN_ID", "PALS_APID", "FLUX_JOB_ID")
# What observe_job adds for MPICH, whose variables do not tell jobs apart.
PROXY_VARIABLE = "MM_DIST_HYDRA_PROXY"
_PROXY_PROGRAMS = ("hydra_pmi_proxy", "pmi_proxy")
_DEFAULT_PORT = 29500
# Below Linux's ephemeral ports, and apart from those that the Slurm launcher computes.
_FIRST_PORT, _NUM_PORTS = 10000, 9973


def compute_mpi_port(env: Mapping[str, str], *, is_one_node: bool) -> tuple[int, str]:
    """Return the port of this job and where it came from; all ranks find the same.

    Args:
        env: The environment of the rank.
        is_one_node: Whether all ranks are on this machine: only then they share its processes.
    """
    names = (*_JOB_NAMES, PROXY_VARIABLE) if is_one_node else _JOB_NAMES
    for name in names:
        if env.get(name):
            return _FIRST_PORT + _number(env[name]) % _NUM_PORTS, f"computed from {name}"
    return _DEFAULT_PORT, "default: no variable tells this job from others, so set MASTER_PORT"


def _number(job: str) -> int:
    # Process ids and the like: jobs that are alive at once are near each other, and differ.
    return int(job) if job.isdecimal() else zlib.crc32(job.encode("utf-8", "surrogateescape"))


def observe_job(env: Mapping[str, str], proc: Path = Path("/proc")) -> Mapping[str, str]:
    """Add what tells one MPICH job on this machine from another, where no variable does.

    All local ranks descend from one ``hydra_pmi_proxy``; its process id is added under a name of
    our own. Everywhere else, and where the process tree is hidden, ``env`` is returned as it is.

    Args:
        env: The environment of this process.
        proc: Where the system shows its processes.
    """
    is_hydra = bool(env.get("MPI_LOCALRANKID"))
    if not is_hydra or any(env.get(name) for name in ("MASTER_PORT", *_JOB_NAMES)):
        return env
    proxy = _find_proxy(proc)
    return env if proxy is None else {**env, PROXY_VARIABLE: str(proxy)}


def _find_proxy(proc: Path) -> int | None:
    try:
        process = _read_process(proc / "self")
        while process[0] > 1:
            pid, program, parent = process
            if program in _PROXY_PROGRAMS:
                return pid
            process = _read_process(proc / str(parent))
    except (OSError, ValueError):
        # No Linux, or the tree is hidden, which it then is to all ranks.
        return None
    return None


def _read_process(folder: Path) -> tuple[int, str, int]:
    # 'pid (program) state parent ...', where the program may itself hold blanks and brackets.
    before, _, after = (folder / "stat").read_text().rpartition(")")
    pid, _, program = before.partition(" (")
    return int(pid), program, int(after.split()[1])
