"""What mm-npu raises and warns: each error is also the builtin that a caller expects."""


class MMNpuError(Exception):
    """Base of every error of this package."""


class ConfigError(MMNpuError, ValueError):
    """An argument or an environment variable has a value that is not allowed."""


class NpuUnavailableError(MMNpuError, RuntimeError):
    """An NPU was insisted on, and there is none."""


class FusedOptimizerError(MMNpuError, RuntimeError):
    """An optimizer of ``torch_npu`` was used in a way that its packed parameters do not allow."""


class TorchVersionError(MMNpuError, RuntimeError):
    """The installed torch lacks a feature that was asked for."""


class PortableOptimizerWarning(UserWarning):
    """An optimizer made for NPUs runs in its portable implementation."""


class UntrainedParameterWarning(UserWarning):
    """An optimizer of ``torch_npu`` is about to pack its parameters, and some have no gradient."""
