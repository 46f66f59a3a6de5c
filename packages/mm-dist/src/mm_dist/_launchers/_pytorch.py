"""Processes started by torchrun, ``torch.distributed.launch`` or an operator of Kubernetes."""

from collections.abc import Mapping
from typing import ClassVar

from mm_dist._errors import LaunchError
from mm_dist._launchers._environment import LaunchEnvironment, VariableReader
from mm_dist._launchers._misuse import is_copy_of_enclosing

_REQUIRED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class PyTorchLauncher:
    """torchrun, and everything else that sets the variables of torch's ``env://`` rendezvous.

    The pods of a Kubernetes operator belong here too, where each runs one process.
    """

    name: ClassVar[str] = "pytorch"

    def detect(self, env: Mapping[str, str]) -> bool:
        """Return whether ``RANK`` and ``WORLD_SIZE`` are set.

        Two variables and not all five: a scheduler that forgets ``LOCAL_RANK`` is an error,
        and no reason to train alone. Numbers that only repeat those of ``srun`` or
        ``mpirun`` (``init_dist`` sets them, for one) do not count.
        """
        has_place = bool(env.get("RANK") and env.get("WORLD_SIZE"))
        return has_place and not is_copy_of_enclosing(env)

    def read(self, env: Mapping[str, str]) -> LaunchEnvironment:
        """Read torchrun's variables.

        Raises:
            LaunchError: If one is missing or malformed; the message shows how to start.
        """
        reader = VariableReader(env, self.name)
        missing = [name for name in _REQUIRED if not env.get(name)]
        # The operators of Kubernetes number the pods, and start one process in each.
        is_pod = bool(env.get("PET_NODE_RANK") or env.get("KUBERNETES_SERVICE_HOST"))
        is_alone = is_pod and env.get("PET_NPROC_PER_NODE", "1").strip() in ("", "1")
        local_rank, local_world_size = 0, 1 if is_alone else None
        if missing == ["LOCAL_RANK"] and is_alone:
            reader.sources.update(
                local_rank="one process in this pod", local_world_size="one process in this pod"
            )
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
