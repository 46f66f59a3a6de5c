"""Tell from variables that fewer processes work together than somebody meant."""

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
        found = _describe_missing_srun(env) or _describe_half_of_variables(env)
        return found or _describe_spawned_child()
    if environment.launcher == "slurm":
        return _describe_idle_devices(environment, env)
    return None


def _describe_missing_srun(env: Mapping[str, str]) -> str | None:
    num_tasks = _read_count(env, "SLURM_NTASKS")
    if num_tasks < 2 or is_in_step(env):
        return None
    return (
        f"The Slurm job {env.get('SLURM_JOB_ID')} was granted {num_tasks} tasks (SLURM_NTASKS), "
        "but srun did not start this process, so it runs alone. Start the script with: srun "
        "python script.py (launcher='none' silences this warning)."
    )


def _describe_half_of_variables(env: Mapping[str, str]) -> str | None:
    """Tell that some of torch's variables are set, which speak of other processes."""
    least = {"WORLD_SIZE": 2, "RANK": 1, "LOCAL_RANK": 1}
    found = [name for name, number in least.items() if _read_count(env, name) >= number]
    missing = [name for name in ("RANK", "WORLD_SIZE") if not env.get(name)]
    if not found or not missing:
        return None
    values = " and ".join(f"{name}={env[name]}" for name in found)
    absent = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set"
    return (
        f"{absent}, but {values}, as if there were several processes; this one would train alone. "
        "Start the script with: torchrun --nproc_per_node=N script.py, or: mm-dist run "
        "--nproc-per-node=N script.py (launcher='none' silences this warning)."
    )


def _describe_spawned_child() -> str | None:
    if multiprocessing.parent_process() is None:
        return None
    return (
        f"This process ({multiprocessing.current_process().name}) was started by multiprocessing, "
        "and nothing says which of several it is, so it trains alone. Pass its place: "
        "init_dist(rank=..., world_size=..., init_method='tcp://127.0.0.1:PORT') "
        "(launcher='none' silences this warning)."
    )


def _describe_idle_devices(environment: LaunchEnvironment, env: Mapping[str, str]) -> str | None:
    num_devices = _read_count(env, "SLURM_GPUS_ON_NODE")
    num_tasks = environment.local_world_size
    if num_tasks is None or num_devices <= num_tasks:
        return None
    return (
        f"Slurm granted this node {num_devices} GPUs (SLURM_GPUS_ON_NODE) and {num_tasks} "
        f"task{'s' * (num_tasks > 1)}, which use one each. To use all of them: srun "
        f"--ntasks-per-node={num_devices} python script.py"
    )


def _read_count(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else 0
