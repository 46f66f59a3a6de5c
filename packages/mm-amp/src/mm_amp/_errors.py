"""The errors of this package: what was asked, what there is, what to do."""


class MMAmpError(Exception):
    """Base of every error that mm-amp raises on its own account."""


class ConfigError(MMAmpError, ValueError):
    """An argument has a value that mm-amp cannot work with."""


class ConfigTypeError(ConfigError, TypeError):
    """An argument is of the wrong type altogether."""


class TorchVersionError(MMAmpError, RuntimeError):
    """The installed torch lacks a feature that was asked for."""


class UnsupportedError(MMAmpError, NotImplementedError):
    """Something was asked of an object that cannot mean anything there."""


class NonFiniteError(MMAmpError, FloatingPointError, RuntimeError):
    """Gradients, or a loss, are infinite or NaN: too many steps in a row, or where one is enough.

    It is a ``RuntimeError`` too because that is what torch's own clipping raises.
    """
