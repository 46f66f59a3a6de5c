"""Compare variables of several launchers: refuse contradictions, warn of processes left alone."""

import multiprocessing
from collections.abc import Mapping

from mm_dist._errors import LaunchError
from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._launchers._mpi import find_mpi_place
from mm_dist._launchers._slurm import find_slurm_place, is_in_step

_FINDERS = {"slurm": find_slurm_place, "mpi": find_mpi_place}


def find_enclosing(env: Mapping[str, str]) -> tuple[str, tuple[int, int]] | None:
    """Return the enclosing launcher with the task's rank and world size; ``None`` outside."""
    for launcher, find_place in _FINDERS.items():
        place = find_place(env)
        if place is not None:
            return launcher, place
    return None


def is_copy_of_enclosing(env: Mapping[str, str]) -> bool:
    """Return whether ``RANK`` and ``WORLD_SIZE`` only repeat what the task's own variables say."""
    task, is_torchrun = find_enclosing(env), env.get("TORCHELASTIC_RUN_ID")
    return task is not None and not is_torchrun and _read_numbers(env) == task[1]


def check_agreement(env: Mapping[str, str]) -> None:
    """Refuse ``RANK`` and ``WORLD_SIZE`` that contradict the enclosing launcher's task."""
    task, numbers = find_enclosing(env), _read_numbers(env)
    if task is None or numbers is None or env.get("TORCHELASTIC_RUN_ID"):
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


def _read_numbers(env: Mapping[str, str]) -> tuple[int, int] | None:
    rank, world_size = env.get("RANK", ""), env.get("WORLD_SIZE", "")
    if rank.isdecimal() and world_size.isdecimal():
        return int(rank), int(world_size)
    return None


def describe_misuse(
    launcher: str, environment: LaunchEnvironment, env: Mapping[str, str]
) -> str | None:
    """Return a warning if this process may train alone by mistake, else ``None``."""
    if launcher != "auto" or environment.launcher != "none":
        return None
    silence = "(launcher='none' silences this warning)."
    num_tasks = _read_count(env, "SLURM_NTASKS")
    if num_tasks >= 2 and not is_in_step(env):
        return (
            f"The Slurm job {env.get('SLURM_JOB_ID')} was granted {num_tasks} tasks "
            "(SLURM_NTASKS), but srun did not start this process, so it runs alone. Start the "
            f"script with: srun python script.py {silence}"
        )
    least = {"WORLD_SIZE": 2, "RANK": 1, "LOCAL_RANK": 1, "SUBMITIT_LOCAL_NTASKS": 2}
    found = [name for name, number in least.items() if _read_count(env, name) >= number]
    if env.get("PET_MASTER_ADDR") or env.get("PET_RDZV_ENDPOINT"):
        # A pod of Kubernetes, one of several; the options alone may be somebody's defaults.
        is_several = env.get("PET_NNODES", "").strip() not in ("", "0", "1", "1:1")
        found += ["PET_NNODES"] if is_several else []
    missing = [name for name in ("RANK", "WORLD_SIZE") if not env.get(name)]
    if found and missing:
        values = " and ".join(f"{name}={env[name]}" for name in found)
        absent = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set"
        export = " (submitit: TorchDistributedEnvironment().export())"
        how = export if "SUBMITIT_LOCAL_NTASKS" in found else ""
        return (
            f"{absent}, but {values}, as if there were several processes; this one would train "
            f"alone. Set {' and '.join(missing)}{how}, or start the script with: torchrun "
            f"--nproc_per_node=N script.py, or: mm-dist run --nproc-per-node=N script.py {silence}"
        )
    if multiprocessing.parent_process() is not None:
        return (
            f"This process ({multiprocessing.current_process().name}) was started by "
            "multiprocessing, and nothing says which of several it is, so it trains alone. Pass "
            "its place: init_dist(rank=..., world_size=..., init_method='tcp://127.0.0.1:PORT') "
            f"{silence}"
        )
    return None


def _read_count(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else 0
