"""Warn where variables show that processes train alone by mistake, or leave devices idle."""

import multiprocessing
from collections.abc import Mapping

from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._launchers._slurm import is_in_step


def describe_misuse(
    launcher: str, environment: LaunchEnvironment, env: Mapping[str, str]
) -> str | None:
    """Return a warning if this process may train alone by mistake, or devices idle, else ``None``.

    Args:
        launcher: What was asked for, ``'auto'`` included: whoever asks for ``'none'`` means it.
        environment: What was read.
        env: The variables that it was read from.
    """
    if launcher == "auto" and environment.launcher == "none":
        reason = _find_others(env)
        return reason and f"{reason} (launcher='none' silences this warning)."
    num_devices, num_tasks = _read_count(env, "SLURM_GPUS_ON_NODE"), environment.local_world_size
    if environment.launcher == "slurm" and num_tasks and num_devices > num_tasks:
        return (
            f"Slurm granted this node {num_devices} GPUs (SLURM_GPUS_ON_NODE) and {num_tasks} "
            f"task{'s' * (num_tasks > 1)}, which use one each. To use all of them: srun "
            f"--ntasks-per-node={num_devices} python script.py"
        )
    return None


def _find_others(env: Mapping[str, str]) -> str | None:
    """Return what speaks of other processes than this one, which would train alone."""
    num_tasks = _read_count(env, "SLURM_NTASKS")
    if num_tasks >= 2 and not is_in_step(env):
        return (
            f"The Slurm job {env.get('SLURM_JOB_ID')} was granted {num_tasks} tasks "
            "(SLURM_NTASKS), but srun did not start this process, so it runs alone. Start the "
            "script with: srun python script.py"
        )
    least = {"WORLD_SIZE": 2, "RANK": 1, "LOCAL_RANK": 1}
    found = [name for name, number in least.items() if _read_count(env, name) >= number]
    missing = [name for name in ("RANK", "WORLD_SIZE") if not env.get(name)]
    if found and missing:
        values = " and ".join(f"{name}={env[name]}" for name in found)
        absent = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set"
        return (
            f"{absent}, but {values}, as if there were several processes; this one would train "
            "alone. Start the script with: torchrun --nproc_per_node=N script.py, or: mm-dist run "
            "--nproc-per-node=N script.py"
        )
    if multiprocessing.parent_process() is not None:
        return (
            f"This process ({multiprocessing.current_process().name}) was started by "
            "multiprocessing, and nothing says which of several it is, so it trains alone. Pass "
            "its place: init_dist(rank=..., world_size=..., init_method='tcp://127.0.0.1:PORT')"
        )
    return None


def _read_count(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else 0
