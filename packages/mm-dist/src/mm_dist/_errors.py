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
