"""What a launcher says about the process it started, read from environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from mm_dist._errors import LaunchError

# Each number, its limit, and whether it may be equal to it.
_LIMITS = (
    ("rank", "world_size", 0),
    ("local_rank", "world_size", 0),
    ("local_rank", "local_world_size", 0),
    ("node_rank", "num_nodes", 0),
    ("local_world_size", "world_size", 1),
    ("num_nodes", "world_size", 1),
)


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
        node_rank: Number of this machine among all, from 0; ``None`` if the launcher is silent.

    Raises:
        LaunchError: If numbers contradict each other, such as a rank that is not below the size.
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
    node_rank: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that contradict each other: a hang later names no cause."""
        for name, limit_name, slack in _LIMITS:
            value, limit = getattr(self, name), getattr(self, limit_name)
            if value is not None and limit is not None and value >= limit + slack:
                raise LaunchError(
                    f"Launcher {self.launcher!r} gives {name} {value} ({self.sources.get(name)}) "
                    f"but {limit_name} {limit} ({self.sources.get(limit_name)}); {name} must "
                    f"{'not be larger' if slack else 'be smaller'}. Unset the variable that "
                    "another launcher left behind."
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


class VariableReader:
    """Reads the variables of one environment for one launcher."""

    def __init__(self, env: Mapping[str, str], launcher: str) -> None:
        self._env = env
        self._launcher = launcher
        self.sources: dict[str, str] = {}

    def find_text(self, field: str, *variables: str) -> str | None:
        """Return the first variable that is set and not empty, else ``None``."""
        for variable in variables:
            if self._env.get(variable):
                self.sources[field] = variable
                return self._env[variable]
        return None

    def find_integer(self, field: str, *variables: str) -> int | None:
        """Return the first variable that is set, as a number of at least 0, else ``None``."""
        text = self.find_text(field, *variables)
        if text is None:
            return None
        # Not int(): it takes '1_0', and a sign or a fraction is a mistake here.
        if not text.strip().isdecimal():
            raise LaunchError(
                f"Launcher {self._launcher!r} reads {field} from {self.sources[field]}, whose "
                f"value is {text!r}; it must be a whole number of at least 0."
            )
        return int(text)

    def read_integer(self, field: str, *variables: str) -> int:
        """Return ``find_integer`` of variables of which one has to be set."""
        value = self.find_integer(field, *variables)
        if value is None:
            names = " or ".join(variables)
            raise LaunchError(
                f"Launcher {self._launcher!r} reads {field} from {names}, which is not set. "
                f"Start the script through that launcher, or choose another one."
            )
        return value

    def find_port(self, *variables: str) -> int | None:
        """Return the first variable that is set, as a port, else ``None``."""
        port = self.find_integer("master_port", *variables)
        if port is None or 0 < port < 2**16:
            return port
        name = self.sources["master_port"]
        raise LaunchError(f"{name} is {port}; a port lies between 1 and 65535.")
