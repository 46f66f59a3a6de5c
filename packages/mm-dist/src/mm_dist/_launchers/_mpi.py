"""Processes started by ``mpirun`` or ``mpiexec``; MPI itself is not used."""

import zlib
from collections.abc import Mapping
from typing import ClassVar

from mm_dist._errors import LaunchError
from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._launchers._reader import VariableReader

# Open MPI, MVAPICH, and the hydra of MPICH and Intel MPI, in this order.
_RANK = ("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_SIZE = ("OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_DEFAULT_PORT = 29500
# Below Linux's ephemeral ports, and apart from those that the Slurm launcher computes.
_FIRST_PORT, _NUM_PORTS = 10000, 9973


def is_started_by_mpirun(env: Mapping[str, str]) -> bool:
    """Return whether a process manager of MPI started this process.

    Only the process managers count ranks per machine; ``srun`` sets ``PMI_RANK`` but not these.
    """
    return any(env.get(name) for name in _LOCAL_RANK)


class MPILauncher:
    """A rank of ``mpirun``: Open MPI, MVAPICH, MPICH or Intel MPI.

    Example:
        >>> MPILauncher().detect({"OMPI_COMM_WORLD_RANK": "0"})
        True
    """

    name: ClassVar[str] = "mpi"

    def detect(self, env: Mapping[str, str]) -> bool:
        """Return whether a variable with the MPI rank is set."""
        return any(env.get(name) for name in _RANK)

    def read(self, env: Mapping[str, str]) -> LaunchEnvironment:
        """Read the process manager's variables.

        Raises:
            LaunchError: If a variable is missing or malformed, or if the ranks are on several
                machines and ``MASTER_ADDR`` does not say where rank 0 is.
        """
        reader = VariableReader(env, self.name)
        rank = reader.read_integer("rank", *_RANK)
        world_size = reader.read_integer("world_size", *_SIZE)
        local_world_size = reader.find_integer("local_world_size", *_LOCAL_SIZE)
        is_one_node = world_size in (1, local_world_size)
        if is_one_node:
            local_rank = reader.find_integer("local_rank", *_LOCAL_RANK)
            local_rank = rank if local_rank is None else local_rank
        else:
            local_rank = reader.read_integer("local_rank", *_LOCAL_RANK)
        return LaunchEnvironment(
            launcher=self.name,
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            local_world_size=local_world_size,
            num_nodes=1 if is_one_node else None,
            master_addr=_read_master_addr(reader, is_one_node=is_one_node),
            master_port=_read_master_port(reader),
            sources=reader.sources,
        )


def _read_master_addr(reader: VariableReader, *, is_one_node: bool) -> str:
    given = reader.find_text("master_addr", "MASTER_ADDR")
    if given:
        return given
    if not is_one_node:
        raise LaunchError(
            "launcher='mpi' found ranks on several machines, and MPI does not say where rank 0 "
            "is. Set MASTER_ADDR to its address on all ranks, as in: "
            "mpirun -x MASTER_ADDR=HOST -np N python script.py"
            " (with MPICH or Intel MPI: mpiexec -genv MASTER_ADDR HOST ...)."
        )
    reader.note("master_addr", "all ranks are on one machine")
    return "127.0.0.1"


def _read_master_port(reader: VariableReader) -> int:
    given = reader.find_port()
    if given is not None:
        return given
    # Open MPI gives each job a name that its ranks share: two jobs on a machine do not collide.
    job = reader.find_text("job", "PMIX_NAMESPACE")
    if job is None:
        reader.note("master_port", "default")
        return _DEFAULT_PORT
    reader.note("master_port", "computed from PMIX_NAMESPACE")
    return _FIRST_PORT + zlib.crc32(job.encode()) % _NUM_PORTS
