"""Compare torch's variables with what ``srun`` or ``mpirun`` says of the same process.

torchrun may run inside a task of ``srun``; then its numbers are the finer ones. Where a task sees
``RANK`` and ``WORLD_SIZE`` without torchrun, they are a copy of the task's own numbers, the work
of another launcher inside the task, or left over from elsewhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mm_dist._errors import LaunchError
from mm_dist._launchers._mpi import find_mpi_place
from mm_dist._launchers._slurm import find_slurm_place

# Set by torchrun and by torch.distributed.launch, and by nothing else.
_TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"


@dataclass(frozen=True)
class EnclosingTask:
    """The task of ``srun`` or ``mpirun`` that this process is, or is inside of.

    Attributes:
        launcher: ``slurm`` or ``mpi``.
        rank: The task's number among all.
        world_size: How many tasks there are.
    """

    launcher: str
    rank: int
    world_size: int


def find_enclosing(env: Mapping[str, str]) -> EnclosingTask | None:
    """Return the task that ``srun`` or ``mpirun`` started; ``None`` if there is none."""
    for launcher, find_place in (("slurm", find_slurm_place), ("mpi", find_mpi_place)):
        place = find_place(env)
        if place is not None:
            return EnclosingTask(launcher, *place)
    return None


def is_copy_of_enclosing(env: Mapping[str, str]) -> bool:
    """Return whether ``RANK`` and ``WORLD_SIZE`` only repeat what the task's own variables say."""
    task, numbers = find_enclosing(env), _read_numbers(env)
    if task is None or env.get(_TORCHRUN_VARIABLE):
        return False
    return numbers == (task.rank, task.world_size)


def check_agreement(env: Mapping[str, str]) -> None:
    """Refuse ``RANK`` and ``WORLD_SIZE`` that contradict the task of ``srun`` or ``mpirun``.

    With them the tasks would train alone, each as rank 0 of 1, or wait for each other for ever.

    Raises:
        LaunchError: If they do; the message shows both, and the way out.
    """
    task, numbers = find_enclosing(env), _read_numbers(env)
    if task is None or numbers is None or env.get(_TORCHRUN_VARIABLE):
        return
    # Another launcher inside the task, such as DeepSpeed's, adds processes: its world is larger.
    if numbers == (task.rank, task.world_size) or numbers[1] > task.world_size:
        return
    raise LaunchError(
        f"launcher='auto' found two answers: RANK={numbers[0]} and WORLD_SIZE={numbers[1]}, but "
        f"{task.launcher!r} says rank {task.rank} of {task.world_size}. Unset RANK and WORLD_SIZE "
        f"if they are left over, or choose: launcher={task.launcher!r}, launcher='pytorch', or "
        "launcher='none' for processes that do not belong together."
    )


def _read_numbers(env: Mapping[str, str]) -> tuple[int, int] | None:
    rank, world_size = env.get("RANK", ""), env.get("WORLD_SIZE", "")
    if rank.isdecimal() and world_size.isdecimal():
        return int(rank), int(world_size)
    return None
