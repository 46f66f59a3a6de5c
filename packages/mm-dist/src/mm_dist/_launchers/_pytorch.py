"""Processes started by torchrun, ``torch.distributed.launch`` or an operator of Kubernetes."""

from collections.abc import Mapping
from typing import ClassVar

from mm_dist._errors import LaunchError
from mm_dist._launchers._enclosing import find_enclosing, is_copy_of_enclosing
from mm_dist._launchers._environment import LaunchEnvironment, VariableReader

_REQUIRED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_ONE_PROCESS = "one process in this pod"


class PyTorchLauncher:
    """torchrun, and everything else that sets the variables of torch's ``env://`` rendezvous.

    The pods of a Kubernetes operator belong here too: they carry torchrun's options as ``PET_*``,
    and where each pod runs one process, the script may be started without torchrun.

    Example:
        >>> PyTorchLauncher().detect({"RANK": "0", "WORLD_SIZE": "2"})
        True
    """

    name: ClassVar[str] = "pytorch"

    def detect(self, env: Mapping[str, str]) -> bool:
        """Return whether ``RANK`` and ``WORLD_SIZE`` are set, or a pod is one of several.

        Two variables and not all five: a scheduler that forgets ``LOCAL_RANK`` is an error,
        and no reason to train alone. Numbers that only repeat those of ``srun`` or
        ``mpirun`` (``init_dist`` sets them, for one) do not count.
        """
        if env.get("RANK") and env.get("WORLD_SIZE"):
            return not is_copy_of_enclosing(env)
        return is_pod_of_several(env)

    def read(self, env: Mapping[str, str]) -> LaunchEnvironment:
        """Read torchrun's variables, or those of a pod.

        Raises:
            LaunchError: If one is missing or malformed; the message shows how to start.
        """
        reader = VariableReader(env, self.name)
        if not env.get("RANK") and is_pod_of_several(env):
            return _read_pod(env, reader)
        missing = [name for name in _REQUIRED if not env.get(name)]
        is_pod = env.get("PET_NODE_RANK") or env.get("KUBERNETES_SERVICE_HOST")
        if missing == ["LOCAL_RANK"] and is_pod:
            # The operators of Kubernetes number the pods, and start one process in each.
            _check_one_process(env)
            reader.sources.update(local_rank=_ONE_PROCESS, local_world_size=_ONE_PROCESS)
            local_rank = 0
            local_world_size: int | None = 1
        elif missing:
            raise LaunchError(
                f"launcher='pytorch' needs {', '.join(_REQUIRED)}; not set: {', '.join(missing)}. "
                "Start the script with: torchrun --nproc_per_node=N script.py, or: "
                "mm-dist run --nproc_per_node=N script.py (launcher='none' is for one process)."
            )
        else:
            local_rank = reader.read_integer("local_rank", "LOCAL_RANK")
            local_world_size = reader.find_integer("local_world_size", "LOCAL_WORLD_SIZE")
        return LaunchEnvironment(
            launcher=self.name,
            rank=reader.read_integer("rank", "RANK"),
            local_rank=local_rank,
            world_size=reader.read_integer("world_size", "WORLD_SIZE"),
            local_world_size=local_world_size,
            num_nodes=reader.find_integer("num_nodes", "GROUP_WORLD_SIZE"),
            master_addr=reader.find_text("master_addr", "MASTER_ADDR"),
            master_port=reader.find_port("MASTER_PORT"),
            sources=reader.sources,
            node_rank=reader.find_integer("node_rank", "GROUP_RANK"),
        )


def is_pod_of_several(env: Mapping[str, str]) -> bool:
    """Return whether ``PET_*`` describes this machine as one of several.

    The number of nodes and an address are asked for, and this node's own number unless the job is
    elastic: ``PET_NPROC_PER_NODE`` alone, or one node, is a default for torchrun that says nothing
    about a process started without it. A task of ``srun`` or ``mpirun`` is theirs.
    """
    num_nodes = env.get("PET_NNODES", "").strip()
    has_place = bool(env.get("PET_NODE_RANK")) or ":" in num_nodes
    has_address = bool(env.get("PET_MASTER_ADDR") or env.get("PET_RDZV_ENDPOINT"))
    is_several = num_nodes not in ("", "0", "1", "1:1")
    return has_place and has_address and is_several and find_enclosing(env) is None


def _check_one_process(env: Mapping[str, str]) -> None:
    count = env.get("PET_NPROC_PER_NODE", "1").strip() or "1"
    if count != "1" or (not env.get("RANK") and not env.get("PET_MASTER_ADDR")):
        raise LaunchError(
            f"This pod is one of PET_NNODES={env.get('PET_NNODES')} with "
            f"PET_NPROC_PER_NODE={count}, where torchrun starts and numbers the processes. Start "
            "the script with: torchrun script.py, or: mm-dist run script.py; both read the PET_* "
            "variables (launcher='none' is for one process)."
        )


def _read_pod(env: Mapping[str, str], reader: VariableReader) -> LaunchEnvironment:
    """Read the place of the only process of a pod."""
    _check_one_process(env)
    num_nodes = reader.read_integer("num_nodes", "PET_NNODES")
    node_rank = reader.read_integer("node_rank", "PET_NODE_RANK")
    reader.sources.update(rank="PET_NODE_RANK", world_size="PET_NNODES")
    reader.sources.update(local_rank=_ONE_PROCESS, local_world_size=_ONE_PROCESS)
    port = reader.find_port("MASTER_PORT", "PET_MASTER_PORT")
    if port is None:
        port = reader.read_integer("master_port", "PET_MASTER_PORT")
    return LaunchEnvironment(
        launcher="pytorch",
        rank=node_rank,
        local_rank=0,
        world_size=num_nodes,
        local_world_size=1,
        num_nodes=num_nodes,
        master_addr=reader.find_text("master_addr", "MASTER_ADDR", "PET_MASTER_ADDR"),
        master_port=port,
        sources=reader.sources,
        node_rank=node_rank,
    )
