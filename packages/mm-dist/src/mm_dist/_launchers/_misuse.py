"""Tell from variables that fewer processes run than the machines were asked for."""

from collections.abc import Mapping

from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._launchers._slurm import is_in_step


def describe_misuse(
    launcher: str, environment: LaunchEnvironment, env: Mapping[str, str]
) -> str | None:
    """Return a warning if Slurm granted more than this start of the script uses, else ``None``.

    Args:
        launcher: What was asked for, ``'auto'`` included: whoever asks for ``'none'`` means it.
        environment: What was read.
        env: The variables that it was read from.
    """
    if launcher == "auto" and environment.launcher == "none":
        return _describe_missing_srun(env)
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
