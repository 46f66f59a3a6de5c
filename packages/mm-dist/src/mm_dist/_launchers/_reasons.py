"""Say why ``'auto'`` takes one launcher and not another."""

from collections.abc import Mapping

from mm_dist._launchers._enclosing import is_copy_of_enclosing
from mm_dist._launchers._environment import Launcher
from mm_dist._launchers._mpi import RANK_VARIABLES, is_started_by_mpirun
from mm_dist._launchers._selection import list_launchers, recognises
from mm_dist._launchers._slurm import is_in_step, is_slurm_task


def explain_detection(env: Mapping[str, str]) -> dict[str, tuple[bool, str]]:
    """Map each launcher, in the order in which they are asked, to its answer and the reason."""
    explain = {"pytorch": _explain_pytorch, "slurm": _explain_slurm, "mpi": _explain_mpi}
    answers: dict[str, tuple[bool, str]] = {}
    for launcher in list_launchers():
        is_found = recognises(launcher, env)
        own = explain.get(launcher.name)
        reason = own(env) if own else _explain_other(launcher, is_found=is_found)
        answers[launcher.name] = (is_found, reason)
    return answers


def _explain_pytorch(env: Mapping[str, str]) -> str:
    missing = [name for name in ("RANK", "WORLD_SIZE") if not env.get(name)]
    if not missing:
        numbers = f"RANK={env['RANK']} and WORLD_SIZE={env['WORLD_SIZE']}"
        if env.get("TORCHELASTIC_RUN_ID"):
            return f"torchrun set {numbers}"
        return f"{numbers} {'only repeat its task' if is_copy_of_enclosing(env) else 'are set'}"
    pod = [f"{name}={env[name]}" for name in ("PET_NNODES", "PET_NODE_RANK") if env.get(name)]
    rest = f"; {', '.join(pod)}" if pod else ""
    return f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set{rest}"


def _explain_slurm(env: Mapping[str, str]) -> str:
    if is_slurm_task(env):
        return f"srun started this process: SLURM_PROCID={env['SLURM_PROCID']} of a step"
    if is_in_step(env) and is_started_by_mpirun(env):
        return "mpirun started this process inside a step of srun"
    if env.get("SLURM_JOB_ID"):
        return f"SLURM_JOB_ID={env['SLURM_JOB_ID']}, but srun did not start this process"
    return "SLURM_STEP_ID is not set"


def _explain_mpi(env: Mapping[str, str]) -> str:
    name = next((name for name in RANK_VARIABLES if env.get(name)), None)
    return f"{name}={env[name]}" if name else "no variable with an MPI rank is set"


def _explain_other(launcher: Launcher, *, is_found: bool) -> str:
    if launcher.name == "none":
        return "nothing else started this process"
    return f"its plugin {'recognises' if is_found else 'does not recognise'} the variables"
