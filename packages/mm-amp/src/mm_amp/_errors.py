"""Errors of this package: what was asked, what there is, what to do."""


class MMAmpError(Exception):
    """Base of all errors of mm-amp."""


class ConfigError(MMAmpError, ValueError):
    """An argument has an invalid value."""


class ConfigTypeError(ConfigError, TypeError):
    """An argument is of the wrong type."""


class TorchVersionError(MMAmpError, RuntimeError):
    """The installed torch lacks a feature that was asked for."""


class UnsupportedError(MMAmpError, NotImplementedError):
    """The call is not defined for this object or state."""


class NonFiniteError(MMAmpError, FloatingPointError, RuntimeError):
    """Gradients or a loss are infinite or NaN; torch's own clipping raises ``RuntimeError`` too."""
