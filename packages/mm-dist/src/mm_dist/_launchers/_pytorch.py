"""Processes started by torchrun, ``torch.distributed.launch`` or an operator of Kubernetes."""

from collections.abc import Mapping
from typing import ClassVar

from mm_dist._errors import LaunchError
from mm_dist._launchers._enclosing import is_copy_of_enclosing
from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._launchers._pods import (
    check_pod_has_one_process,
    is_pod_of_several,
    is_pod_process,
    read_pod,
)
from mm_dist._launchers._reader import VariableReader

_REQUIRED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


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

        Two variables and not all five: a scheduler that forgets ``LOCAL_RANK`` shall be told so,
        rather than each process training alone. Numbers that only repeat those of ``srun`` or
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
        if not env.get("RANK") and is_pod_of_several(env):
            return read_pod(env, self.name)
        reader = VariableReader(env, self.name)
        local_rank, local_world_size = _read_local_numbers(env, reader)
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


def _read_local_numbers(env: Mapping[str, str], reader: VariableReader) -> tuple[int, int | None]:
    missing = [name for name in _REQUIRED if not env.get(name)]
    if missing == ["LOCAL_RANK"] and is_pod_process(env):
        # The operators of Kubernetes number the pods, and start one process in each.
        check_pod_has_one_process(env)
        reader.note("local_rank", "one process in this pod")
        reader.note("local_world_size", "one process in this pod")
        return 0, 1
    if missing:
        raise LaunchError(
            f"launcher='pytorch' needs {', '.join(_REQUIRED)}; not set: {', '.join(missing)}. "
            "Start the script with: torchrun --nproc_per_node=N script.py, or: "
            "mm-dist run --nproc_per_node=N script.py (launcher='none' is for one process)."
        )
    local_world_size = reader.find_integer("local_world_size", "LOCAL_WORLD_SIZE")
    return reader.read_integer("local_rank", "LOCAL_RANK"), local_world_size
