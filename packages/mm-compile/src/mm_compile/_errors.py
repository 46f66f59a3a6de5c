"""What mm-compile raises: each error is also the builtin that a caller expects."""


class MMCompileError(Exception):
    """Base of every error of this package."""


class ConfigError(MMCompileError, ValueError):
    """A compile config asks for something that does not exist."""


class TorchVersionError(MMCompileError, RuntimeError):
    """This PyTorch, or this Python with it, cannot compile."""


class AlreadyCompiledError(MMCompileError, RuntimeError):
    """The model is compiled already, by this package or by ``module.compile()``."""


class CompileError(MMCompileError, RuntimeError):
    """Something did not compile, and cannot or shall not run eagerly instead."""


class RecompileLimitError(MMCompileError, RuntimeError):
    """A region was compiled again more often than ``recompile_limit`` allows."""
