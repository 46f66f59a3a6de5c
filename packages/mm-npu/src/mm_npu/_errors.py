"""Errors and warnings: each error is also the builtin that a caller expects."""


class MMNpuError(Exception):
    """Base of every error of this package."""


class ConfigError(MMNpuError, ValueError):
    """An argument, a parameter or an environment variable has a value that is not allowed."""


class NpuUnavailableError(MMNpuError, RuntimeError):
    """An NPU is required, and none can be used."""


class FusedOptimizerError(MMNpuError, RuntimeError):
    """An optimizer of ``torch_npu`` was used in a way that its packed parameters do not allow."""


class PortableOptimizerWarning(UserWarning):
    """An optimizer made for NPUs runs in its portable implementation."""


class UntrainedParameterWarning(UserWarning):
    """An optimizer of ``torch_npu`` is about to pack its parameters, and some have no gradient."""
