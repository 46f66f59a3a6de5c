"""Processes started by ``srun``."""

import re
from collections.abc import Mapping
from typing import ClassVar

from mm_dist._errors import LaunchError
from mm_dist._launchers._environment import LaunchEnvironment, VariableReader
from mm_dist._launchers._mpi import is_started_by_mpirun

# Slurm numbers the batch script, the interactive shell and other helpers from here on.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_NODE_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_NUM_NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_TASKS_PER_NODE = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
_HOW_TO_START = (
    "Start the script with: srun --ntasks=N python script.py"
    " (or use launcher='none' for one process)."
)
# Below torch's own 29400 and 29500, and Linux's ephemeral ports. The count is prime, so that jobs
# near each other never meet.
_FIRST_PORT, _NUM_PORTS = 20000, 9397
_NUM_TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
# The first of a list. Names hold no round brackets: '(null)' is what Slurm writes for none.
_NODE = re.compile(r"(?:[^,\[\]()\s]|\[\d[-,\d]*\])+(?=,|$)")
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def is_slurm_task(env: Mapping[str, str]) -> bool:
    """Return whether ``srun`` started this process."""
    is_numbered = bool(env.get("SLURM_PROCID")) and any(env.get(name) for name in _NUM_TASKS)
    return is_numbered and is_in_step(env) and not is_started_by_mpirun(env)


def find_slurm_place(env: Mapping[str, str]) -> tuple[int, int] | None:
    """Return ``(rank, world_size)`` of a task of ``srun``, ``None`` for other processes."""
    rank = env.get("SLURM_PROCID", "")
    world_size = next((env[name] for name in _NUM_TASKS if env.get(name)), "")
    is_readable = rank.isdecimal() and world_size.isdecimal()
    return (int(rank), int(world_size)) if is_readable and is_slurm_task(env) else None


def is_in_step(env: Mapping[str, str]) -> bool:
    """Return whether this process is inside a step of ``srun``, not the shell of a job."""
    step = env.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP


class SlurmLauncher:
    """A task of a Slurm job step."""

    name: ClassVar[str] = "slurm"

    def detect(self, env: Mapping[str, str]) -> bool:
        """Return whether ``srun`` started this process as the task of a step."""
        return is_slurm_task(env)

    def read(self, env: Mapping[str, str]) -> LaunchEnvironment:
        """Read Slurm's variables.

        ``MASTER_ADDR`` and ``MASTER_PORT`` win where they are set. Otherwise the address is
        that of the step's first node (127.0.0.1 when it is the only one), and the port follows
        from the numbers of job and step, so that all ranks agree and jobs do not collide.

        Raises:
            LaunchError: If a variable is missing or malformed, or if several tasks are asked for
                where ``srun`` started none.
        """
        reader = VariableReader(env, self.name)
        world_size = reader.read_integer("world_size", *_NUM_TASKS)
        num_nodes = reader.read_integer("num_nodes", *_NUM_NODES)
        if world_size > 1 and not is_in_step(env):
            raise LaunchError(
                f"launcher='slurm' found {world_size} tasks ({reader.sources['world_size']}) but "
                f"no job step: this is the shell of salloc or sbatch, where one process runs. "
                f"{_HOW_TO_START}"
            )
        return LaunchEnvironment(
            launcher=self.name,
            rank=reader.read_integer("rank", "SLURM_PROCID"),
            local_rank=reader.read_integer("local_rank", "SLURM_LOCALID"),
            world_size=world_size,
            local_world_size=_read_local_world_size(reader),
            num_nodes=num_nodes,
            master_addr=_read_master_addr(env, reader, num_nodes),
            master_port=_read_master_port(reader),
            sources=reader.sources,
            node_rank=reader.find_integer("node_rank", "SLURM_NODEID"),
        )


def _read_local_world_size(reader: VariableReader) -> int | None:
    text = reader.find_text("local_world_size", *_TASKS_PER_NODE) or ""
    node = reader.find_integer("node_rank", "SLURM_NODEID")
    matches = [_TASKS.fullmatch(piece) for piece in text.split(",")]  # as 2(x3),1
    counts = [int(m[1]) for m in matches if m for _ in range(int(m[2] or 1))]
    return counts[node] if node is not None and node < len(counts) and all(matches) else None


def _read_master_addr(env: Mapping[str, str], reader: VariableReader, num_nodes: int) -> str:
    given = reader.find_text("master_addr", "MASTER_ADDR")
    if given:
        return given
    if num_nodes == 1:
        # A node's name need not resolve on the node itself.
        reader.sources["master_addr"] = "the only node is this one"
        return "127.0.0.1"
    if env.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
        # The node list is sorted, and task 0 runs where the user's own list begins.
        raise LaunchError(
            "launcher='slurm' cannot tell which node has rank 0: the tasks are laid out by "
            f"SLURM_HOSTFILE={env.get('SLURM_HOSTFILE')} (SLURM_DISTRIBUTION=arbitrary). Set "
            "MASTER_ADDR to the first host in that file, before srun."
        )
    nodes = reader.find_text("master_addr", *_NODE_LISTS)
    if nodes is None:
        raise LaunchError(
            f"launcher='slurm' reads the nodes from {' or '.join(_NODE_LISTS)}, which is not set. "
            f"{_HOW_TO_START}"
        )
    reader.sources["master_addr"] = f"first of {reader.sources['master_addr']}"
    return first_node(nodes)


def _read_master_port(reader: VariableReader) -> int:
    given = reader.find_port("MASTER_PORT")
    if given is not None:
        return given
    job = reader.read_integer("job", "SLURM_JOB_ID", "SLURM_JOBID")
    step = reader.find_integer("step", "SLURM_STEP_ID") or 0
    reader.sources["master_port"] = "computed from SLURM_JOB_ID and SLURM_STEP_ID"
    return _FIRST_PORT + (job * 64 + step) % _NUM_PORTS


def first_node(text: str) -> str:
    """Return the first name of a node list, zero padding kept."""
    first = _NODE.match(text)
    if first is None:
        raise LaunchError(f"Cannot read the Slurm node list {text!r}; expected one like n[1-3],m4.")
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", first[0])
