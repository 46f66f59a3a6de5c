"""Processes started by submitit's local executor; on Slurm, submitit's tasks are those of srun."""

from collections.abc import Mapping
from typing import ClassVar

from mm_dist._launchers._environment import LaunchEnvironment, VariableReader

# As for MPI: below the ports that the Slurm launcher computes, and a prime number of them.
_FIRST_PORT, _NUM_PORTS = 10000, 9973


def find_submitit_place(env: Mapping[str, str]) -> tuple[int, int] | None:
    """Return ``(rank, world_size)`` of a task of the local executor, ``None`` for others."""
    texts = env.get("SUBMITIT_LOCAL_GLOBALID", ""), env.get("SUBMITIT_LOCAL_NTASKS", "")
    return (int(texts[0]), int(texts[1])) if all(t.isdecimal() for t in texts) else None


class SubmititLauncher:
    """A task of ``submitit.LocalExecutor``, all of which are on one machine."""

    name: ClassVar[str] = "submitit"

    def detect(self, env: Mapping[str, str]) -> bool:
        """Return whether the local executor started this process."""
        return find_submitit_place(env) is not None

    def read(self, env: Mapping[str, str]) -> LaunchEnvironment:
        """Read the executor's variables; raise LaunchError if one is missing or malformed."""
        reader = VariableReader(env, self.name)
        world_size = reader.read_integer("world_size", "SUBMITIT_LOCAL_NTASKS")
        job = reader.read_integer("master_port", "SUBMITIT_LOCAL_JOB_ID")
        port = reader.find_port("MASTER_PORT") or _FIRST_PORT + job % _NUM_PORTS
        reader.sources["master_addr"] = "all tasks are on this machine"
        return LaunchEnvironment(
            launcher=self.name,
            rank=reader.read_integer("rank", "SUBMITIT_LOCAL_GLOBALID"),
            local_rank=reader.read_integer("local_rank", "SUBMITIT_LOCAL_LOCALID"),
            world_size=world_size,
            local_world_size=world_size,
            num_nodes=1,
            master_addr="127.0.0.1",
            master_port=port,
            sources=reader.sources,
            node_rank=0,
        )
