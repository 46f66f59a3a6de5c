"""The errors that mm-dist raises on purpose."""


class MMDistError(Exception):
    """Base of every error that mm-dist raises on purpose."""


class ConfigError(MMDistError, ValueError):
    """An argument has a value that cannot be used."""


class ArgumentTypeError(MMDistError, TypeError):
    """An argument is of a kind that cannot be used."""


class LaunchError(MMDistError, RuntimeError):
    """The processes, or the environment that they were started in, do not fit the request."""


class TorchVersionError(MMDistError, RuntimeError):
    """The installed torch lacks a feature that was asked for."""


class CollectiveError(MMDistError, RuntimeError):
    """A collective failed on a rank, or the ranks called it differently; raised on all of them."""


class GradientSyncError(MMDistError, RuntimeError):
    """Gradients were not, or would not be, averaged over the ranks.

    Args:
        message: What happened, and what to do.
        parameter_names: The parameters concerned.
    """

    def __init__(self, message: str, parameter_names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.parameter_names = parameter_names
