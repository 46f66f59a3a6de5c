"""Processes started by torchrun or ``python -m torch.distributed.launch``."""

from collections.abc import Mapping
from typing import ClassVar

from mm_dist._errors import LaunchError
from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._launchers._reader import VariableReader

_REQUIRED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class PyTorchLauncher:
    """torchrun, and everything else that sets the variables of torch's ``env://`` rendezvous.

    Example:
        >>> PyTorchLauncher().detect({"RANK": "0", "WORLD_SIZE": "2"})
        True
    """

    name: ClassVar[str] = "pytorch"

    def detect(self, env: Mapping[str, str]) -> bool:
        """Return whether ``RANK`` and ``WORLD_SIZE`` are set.

        Two variables and not all five: a scheduler that forgets ``LOCAL_RANK`` shall be told so,
        rather than each process training alone.
        """
        return bool(env.get("RANK")) and bool(env.get("WORLD_SIZE"))

    def read(self, env: Mapping[str, str]) -> LaunchEnvironment:
        """Read torchrun's variables.

        Raises:
            LaunchError: If one is missing or malformed; the message shows how to start.
        """
        missing = [name for name in _REQUIRED if not env.get(name)]
        if missing:
            raise LaunchError(
                f"launcher='pytorch' needs {', '.join(_REQUIRED)}; not set: {', '.join(missing)}. "
                "Start the script with: torchrun --nproc_per_node=N script.py"
                " (or use launcher='none' for one process)."
            )
        reader = VariableReader(env, self.name)
        return LaunchEnvironment(
            launcher=self.name,
            rank=reader.read_integer("rank", "RANK"),
            local_rank=reader.read_integer("local_rank", "LOCAL_RANK"),
            world_size=reader.read_integer("world_size", "WORLD_SIZE"),
            local_world_size=reader.find_integer("local_world_size", "LOCAL_WORLD_SIZE"),
            num_nodes=reader.find_integer("num_nodes", "GROUP_WORLD_SIZE"),
            master_addr=reader.find_text("master_addr", "MASTER_ADDR"),
            master_port=reader.find_port(),
            sources=reader.sources,
        )
