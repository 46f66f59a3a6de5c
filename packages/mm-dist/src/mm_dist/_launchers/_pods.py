"""Pods of a Kubernetes operator that carry torchrun's options as ``PET_*`` variables."""

from collections.abc import Mapping

from mm_dist._errors import LaunchError
from mm_dist._launchers._enclosing import find_enclosing
from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._launchers._reader import VariableReader

_ADDRESSES = ("PET_MASTER_ADDR", "PET_RDZV_ENDPOINT")
_HOW_TO_START = (
    "Start the script with: torchrun script.py, or: mm-dist run script.py; both read the PET_* "
    "variables (launcher='none' is for one process)."
)


def is_pod_of_several(env: Mapping[str, str]) -> bool:
    """Return whether ``PET_*`` describes this machine as one of several.

    All of the number of nodes, an address and (unless the job is elastic) this node's own number
    are asked for: ``PET_NPROC_PER_NODE`` alone, or one node, is a default for torchrun that says
    nothing about a process started without it. A task of ``srun`` or ``mpirun`` is theirs.
    """
    num_nodes = env.get("PET_NNODES", "")
    has_place = bool(env.get("PET_NODE_RANK")) or ":" in num_nodes
    has_address = any(env.get(name) for name in _ADDRESSES)
    is_several = num_nodes.strip() not in ("", "0", "1", "1:1")
    return has_place and has_address and is_several and find_enclosing(env) is None


def is_pod_process(env: Mapping[str, str]) -> bool:
    """Return whether this process is the main one of a pod, as far as variables tell."""
    return bool(env.get("PET_NODE_RANK") or env.get("KUBERNETES_SERVICE_HOST"))


def check_pod_has_one_process(env: Mapping[str, str]) -> None:
    """Refuse a pod that shall run several processes: only torchrun starts and numbers them.

    Raises:
        LaunchError: If ``PET_NPROC_PER_NODE`` is set to anything but 1.
    """
    count = env.get("PET_NPROC_PER_NODE", "1").strip() or "1"
    if count == "1":
        return
    raise LaunchError(
        f"This pod is to run several processes (PET_NPROC_PER_NODE={count}), but the script was "
        f"started as one. {_HOW_TO_START}"
    )


def read_pod(env: Mapping[str, str], launcher: str) -> LaunchEnvironment:
    """Read the place of the only process of a pod.

    Raises:
        LaunchError: If the job is elastic, the pod is to run several processes, or a variable is
            missing or malformed.
    """
    reader = VariableReader(env, launcher)
    if not env.get("PET_NODE_RANK") or not env.get("PET_MASTER_ADDR"):
        raise LaunchError(
            f"This pod belongs to a job of PET_NNODES={env.get('PET_NNODES')} nodes that meet at "
            f"PET_RDZV_ENDPOINT={env.get('PET_RDZV_ENDPOINT')}, where torchrun numbers the "
            f"processes. {_HOW_TO_START}"
        )
    check_pod_has_one_process(env)
    num_nodes = reader.read_integer("num_nodes", "PET_NNODES")
    node_rank = reader.read_integer("node_rank", "PET_NODE_RANK")
    for field, source in (
        ("rank", "PET_NODE_RANK"),
        ("world_size", "PET_NNODES"),
        ("local_rank", "one process in this pod"),
        ("local_world_size", "one process in this pod"),
    ):
        reader.note(field, source)
    return LaunchEnvironment(
        launcher=launcher,
        rank=node_rank,
        local_rank=0,
        world_size=num_nodes,
        local_world_size=1,
        num_nodes=num_nodes,
        master_addr=reader.find_text("master_addr", "MASTER_ADDR", "PET_MASTER_ADDR"),
        master_port=reader.read_port("MASTER_PORT", "PET_MASTER_PORT"),
        sources=reader.sources,
        node_rank=node_rank,
    )
