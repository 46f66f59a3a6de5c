"""The errors of this package: what was asked, what there is, what to do."""


class MMAmpError(Exception):
    """Base of every error that mm-amp raises on its own account."""


class ConfigError(MMAmpError, ValueError):
    """An argument has a value that mm-amp cannot work with."""


class ConfigTypeError(ConfigError, TypeError):
    """An argument is of the wrong type altogether."""


class TorchVersionError(MMAmpError, RuntimeError):
    """The installed torch lacks a feature that was asked for."""
