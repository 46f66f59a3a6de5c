"""Processes started by ``mpirun`` or ``mpiexec``; MPI itself is not used."""

import zlib
from collections.abc import Mapping
from typing import ClassVar

from mm_dist._errors import LaunchError
from mm_dist._launchers._environment import LaunchEnvironment, VariableReader

# Open MPI, and the hydra of MPICH and Intel MPI.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
# Only the process managers of MPI set these: srun, which can act as one, has names of its own.
_LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
# What the ranks of a job share and other jobs do not have; of Open MPI, and Intel MPI.
_JOB_NAMES = ("PMIX_NAMESPACE", "I_MPI_HYDRA_UUID")
_DEFAULT_PORT = 29500
# Below Linux's ephemeral ports, and apart from those that the Slurm launcher computes.
_FIRST_PORT, _NUM_PORTS = 10000, 9973


def is_started_by_mpirun(env: Mapping[str, str]) -> bool:
    """Return whether a process manager of MPI started this process."""
    return any(env.get(name) for name in _LOCAL_RANK)


def find_mpi_place(env: Mapping[str, str]) -> tuple[int, int] | None:
    """Return ``(rank, world_size)`` if the variables of MPI give both."""
    texts = [next((env[n] for n in names if env.get(n)), "") for names in (RANK_VARIABLES, _SIZE)]
    return (int(texts[0]), int(texts[1])) if all(t.isdecimal() for t in texts) else None


class MPILauncher:
    """A rank of ``mpirun``: Open MPI, MPICH or Intel MPI."""

    name: ClassVar[str] = "mpi"

    def detect(self, env: Mapping[str, str]) -> bool:
        """Return whether a variable with the MPI rank, or the rank on this machine, is set."""
        return is_started_by_mpirun(env) or any(env.get(name) for name in RANK_VARIABLES)

    def read(self, env: Mapping[str, str]) -> LaunchEnvironment:
        """Read the process manager's variables.

        Raises:
            LaunchError: If a variable is missing or malformed, or if the ranks are on several
                machines and ``MASTER_ADDR`` does not say where rank 0 is.
        """
        reader = VariableReader(env, self.name)
        rank = reader.read_integer("rank", *RANK_VARIABLES)
        world_size = reader.read_integer("world_size", *_SIZE)
        local_world_size = reader.find_integer("local_world_size", *_LOCAL_SIZE)
        num_nodes = None
        local_rank = reader.find_integer("local_rank", *_LOCAL_RANK)
        master_addr = reader.find_text("master_addr", "MASTER_ADDR")
        if world_size in (1, local_world_size):
            local_rank = rank if local_rank is None else local_rank
            master_addr = master_addr or "127.0.0.1"
            local_world_size, num_nodes = world_size, 1
            for name in ("local_rank", "master_addr", "local_world_size", "num_nodes"):
                reader.sources.setdefault(name, "all ranks are on one machine")
        elif master_addr is None:
            raise LaunchError(
                "launcher='mpi' found ranks on several machines, and MPI does not say where rank 0 "
                "is. Set MASTER_ADDR to its address on all ranks, as in: "
                "mpirun -x MASTER_ADDR=HOST -np N python script.py"
                " (with MPICH or Intel MPI: mpiexec -genv MASTER_ADDR HOST ...)."
            )
        if local_rank is None:
            local_rank = reader.read_integer("local_rank", *_LOCAL_RANK)
        master_port = reader.find_port("MASTER_PORT")
        if master_port is None:
            master_port, reader.sources["master_port"] = _compute_port(env)
        return LaunchEnvironment(
            launcher=self.name,
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            local_world_size=local_world_size,
            num_nodes=num_nodes,
            master_addr=master_addr,
            master_port=master_port,
            sources=reader.sources,
        )


def _compute_port(env: Mapping[str, str]) -> tuple[int, str]:
    """Return a port that other jobs on this machine do not get, and where it came from."""
    for name in _JOB_NAMES:
        job = env.get(name)
        if job:
            # Jobs that are alive at once have numbers near each other, and so different ports.
            number = int(job) if job.isdecimal() else zlib.crc32(job.encode("utf-8", "replace"))
            return _FIRST_PORT + number % _NUM_PORTS, f"computed from {name}"
    return _DEFAULT_PORT, "default: no variable tells this job from others, so set MASTER_PORT"
