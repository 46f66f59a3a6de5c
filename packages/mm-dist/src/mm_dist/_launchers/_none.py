"""No launcher: one process on its own."""

from collections.abc import Mapping
from typing import ClassVar

from mm_dist._launchers._environment import LaunchEnvironment


class NoLauncher:
    """A single process, whatever the environment says.

    Example:
        >>> NoLauncher().read({}).world_size
        1
    """

    name: ClassVar[str] = "none"

    def detect(self, env: Mapping[str, str]) -> bool:  # noqa: ARG002 (the Protocol's argument)
        """Return ``True``: a single process is always possible, so it is asked last."""
        return True

    def read(self, env: Mapping[str, str]) -> LaunchEnvironment:  # noqa: ARG002 (as above)
        """Return rank 0 of 1."""
        return LaunchEnvironment(
            launcher=self.name,
            rank=0,
            local_rank=0,
            world_size=1,
            local_world_size=1,
            num_nodes=1,
            master_addr=None,
            master_port=None,
            sources={},
        )
