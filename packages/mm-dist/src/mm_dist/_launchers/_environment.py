"""What a launcher says about the process it started."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from mm_dist._errors import LaunchError


@dataclass(frozen=True)
class LaunchEnvironment:
    """One process's place among all those that a launcher started.

    Attributes:
        launcher: Name of the launcher that was read.
        rank: Number of this process among all, from 0.
        local_rank: Number of this process among those of its machine, from 0.
        world_size: How many processes there are.
        local_world_size: How many there are on this machine; ``None`` if the launcher is silent.
        num_nodes: How many machines there are; ``None`` if the launcher is silent.
        master_addr: Where rank 0 listens; ``None`` for a single process.
        master_port: The port it listens on; ``None`` for a single process.
        sources: Where each value came from: the name of a variable, or a phrase.
    """

    launcher: str
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int | None
    num_nodes: int | None
    master_addr: str | None
    master_port: int | None
    sources: Mapping[str, str]

    def __post_init__(self) -> None:
        """Refuse numbers that contradict each other: a hang later names no cause."""
        self._check_number("rank", self.rank, "world_size", self.world_size)
        self._check_number("local_rank", self.local_rank, "world_size", self.world_size)
        if self.local_world_size is not None:
            pair = ("local_world_size", self.local_world_size)
            self._check_number("local_rank", self.local_rank, *pair)

    def _check_number(self, name: str, value: int, size_name: str, size: int) -> None:
        if value < size:
            return
        raise LaunchError(
            f"Launcher {self.launcher!r} gives {name} {value} ({self.sources.get(name)}) but "
            f"{size_name} {size} ({self.sources.get(size_name)}); {name} must be smaller. "
            "Unset the variable that another launcher left behind."
        )


class Launcher(Protocol):
    """What the entry points of group ``mm.launchers`` provide: a class without arguments."""

    name: ClassVar[str]

    def detect(self, env: Mapping[str, str]) -> bool:
        """Say whether this launcher started the process that ``env`` belongs to."""

    def read(self, env: Mapping[str, str]) -> LaunchEnvironment:
        """Read the process's place from ``env``.

        Raises:
            LaunchError: If a variable is missing or malformed.
        """
