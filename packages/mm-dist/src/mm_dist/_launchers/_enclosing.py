"""Compare torch's variables with what ``srun`` or ``mpirun`` says of the same process.

torchrun may run inside a task of ``srun``; then its numbers are the finer ones. Where a task sees
``RANK`` and ``WORLD_SIZE`` without torchrun, they are a copy of the task's own numbers, the work
of another launcher inside the task, or left over from elsewhere.
"""

from collections.abc import Mapping

from mm_dist._errors import LaunchError
from mm_dist._launchers._mpi import find_mpi_place
from mm_dist._launchers._slurm import find_slurm_place


def find_enclosing(env: Mapping[str, str]) -> tuple[str, tuple[int, int]] | None:
    """Return ``slurm`` or ``mpi`` with the task's rank and world size; ``None`` outside of both."""
    for launcher, find_place in (("slurm", find_slurm_place), ("mpi", find_mpi_place)):
        place = find_place(env)
        if place is not None:
            return launcher, place
    return None


def is_copy_of_enclosing(env: Mapping[str, str]) -> bool:
    """Return whether ``RANK`` and ``WORLD_SIZE`` only repeat what the task's own variables say."""
    task = find_enclosing(env)
    return task is not None and not _is_torchrun(env) and _read_numbers(env) == task[1]


def check_agreement(env: Mapping[str, str]) -> None:
    """Refuse ``RANK`` and ``WORLD_SIZE`` that contradict the task of ``srun`` or ``mpirun``.

    With them the tasks would train alone, each as rank 0 of 1, or wait for each other for ever.

    Raises:
        LaunchError: If they do; the message shows both, and the way out.
    """
    task, numbers = find_enclosing(env), _read_numbers(env)
    if task is None or numbers is None or _is_torchrun(env):
        return
    launcher, (rank, world_size) = task
    # Another launcher inside the task, such as DeepSpeed's, adds processes: its world is larger.
    if numbers == (rank, world_size) or numbers[1] > world_size:
        return
    raise LaunchError(
        f"launcher='auto' found two answers: RANK={numbers[0]} and WORLD_SIZE={numbers[1]}, but "
        f"{launcher!r} says rank {rank} of {world_size}. Unset RANK and WORLD_SIZE if they are "
        f"left over, or choose: launcher={launcher!r}, launcher='pytorch', or launcher='none' for "
        "processes that do not belong together."
    )


def _is_torchrun(env: Mapping[str, str]) -> bool:
    return bool(env.get("TORCHELASTIC_RUN_ID"))


def _read_numbers(env: Mapping[str, str]) -> tuple[int, int] | None:
    rank, world_size = env.get("RANK", ""), env.get("WORLD_SIZE", "")
    if rank.isdecimal() and world_size.isdecimal():
        return int(rank), int(world_size)
    return None
