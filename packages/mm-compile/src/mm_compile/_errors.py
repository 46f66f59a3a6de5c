"""Errors of mm-compile; each is also the builtin that a caller expects."""


class MMCompileError(Exception):
    """Base of every error of this package."""


class ConfigError(MMCompileError, ValueError):
    """A compile config asks for something that does not exist."""


class TorchVersionError(MMCompileError, RuntimeError):
    """This PyTorch, or this Python with it, cannot compile."""


class AlreadyCompiledError(MMCompileError, RuntimeError):
    """The model is compiled already, by this package or by ``module.compile()``."""


class CompileError(MMCompileError, RuntimeError):
    """A region did not compile, and does not run eagerly instead."""


class CacheFileError(MMCompileError, ValueError):
    """A file is not a packed compile cache, or there is no compile cache to pack."""


class NotAModelError(MMCompileError, TypeError, AttributeError):
    """A :class:`mm_compile.CompileHandle` was used as the model."""


class RecompileLimitError(MMCompileError, RuntimeError):
    """A region was compiled again more often than ``recompile_limit`` allows."""


class NumericsError(CompileError):
    """Compiled code deviates from eager code by more than ``verify`` allows."""
