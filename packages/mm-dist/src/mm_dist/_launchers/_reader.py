"""Read typed values out of environment variables, remembering which variable gave each."""

from collections.abc import Mapping

from mm_dist._errors import LaunchError


class VariableReader:
    """Reads the variables of one environment for one launcher.

    Args:
        env: The environment, usually ``os.environ``.
        launcher: Name of the launcher, for messages.
    """

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
        """Return the first variable that is set, as a number of at least 0, else ``None``.

        Raises:
            LaunchError: If the value is no such number.
        """
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
        """Return ``find_integer`` of variables of which one has to be set.

        Raises:
            LaunchError: If none is set, or the value is no number of at least 0.
        """
        value = self.find_integer(field, *variables)
        if value is None:
            names = " or ".join(variables)
            raise LaunchError(
                f"Launcher {self._launcher!r} reads {field} from {names}, which is not set. "
                f"Start the script through that launcher, or choose another one."
            )
        return value

    def find_port(self, *variables: str) -> int | None:
        """Return the first variable that is set, as a port, else ``None``.

        Raises:
            LaunchError: If it is no port number.
        """
        port = self.find_integer("master_port", *variables)
        return None if port is None else self._check_port(port)

    def read_port(self, *variables: str) -> int:
        """Return ``find_port`` of variables of which one has to be set.

        Raises:
            LaunchError: If none is set, or the value is no port number.
        """
        return self._check_port(self.read_integer("master_port", *variables))

    def _check_port(self, port: int) -> int:
        if 0 < port < 2**16:
            return port
        name = self.sources["master_port"]
        raise LaunchError(f"{name} is {port}; a port lies between 1 and 65535.")

    def note(self, field: str, source: str) -> None:
        """Record where a computed value came from."""
        self.sources[field] = source
