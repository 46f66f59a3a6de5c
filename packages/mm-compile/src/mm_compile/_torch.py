"""Capabilities of the installed torch, read when they are needed and never at import time.

Importing ``torch._dynamo`` costs about a second, and torch 1.13 has no working one.
"""

import inspect
from collections.abc import Mapping
from platform import python_version
from typing import Any

import torch

from ._errors import TorchVersionError

# For torch 1.13, which has no torch.compile to ask.
_KEYWORDS_OF_TORCH_2_0 = ("fullgraph", "dynamic", "backend", "mode", "options", "disable")


def torch_version() -> tuple[int, int]:
    """Return the major and minor version of the installed torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def shares_code() -> bool:
    """Whether dynamo runs code compiled for one module with another one like it."""
    # Since 2.5 parameters are inputs of a graph; before, they were parts of it.
    return torch_version() >= (2, 5)


def compile_keywords() -> tuple[str, ...]:
    """Return the keyword arguments of this torch's ``torch.compile``."""
    if not hasattr(torch, "compile"):
        return _KEYWORDS_OF_TORCH_2_0
    return tuple(name for name in inspect.signature(torch.compile).parameters if name != "model")


def takes_version_limit() -> bool:
    """Whether ``torch.compile`` takes the number of versions of a function to keep."""
    return "recompile_limit" in compile_keywords()


def require_compile() -> None:
    """Raise where this torch cannot compile on this Python.

    Torch decides, since its limits change with every release: compiling an empty function imports
    dynamo, and raises where Python or the platform is not supported.
    """
    if not hasattr(torch, "compile"):
        raise TorchVersionError(
            f"compile needs PyTorch >= 2.0.0; this is PyTorch {torch.__version__}, "
            "which has no torch.compile. Upgrade torch, or set compile to False."
        )
    try:
        torch.compile(lambda: None, backend="eager")
    except RuntimeError as error:
        raise TorchVersionError(
            f"compile needs a Python that PyTorch {torch.__version__} can compile on; this is "
            f"Python {python_version()}, and torch says: {error}. Use another Python or torch, "
            "or set compile to False."
        ) from error


def require_torch_2_4(key: str) -> None:
    """Raise where torch is older than 2.4, which the config's ``key`` needs."""
    if torch_version() < (2, 4):
        raise TorchVersionError(
            f"compile.{key} needs PyTorch >= 2.4; this is PyTorch {torch.__version__}. "
            f"Upgrade torch, or leave {key} out."
        )


def describe_backend(keywords: Mapping[str, Any]) -> str:
    """Return the name of the backend that ``torch.compile(**keywords)`` uses."""
    backend = keywords.get("backend", "inductor")
    if isinstance(backend, str):
        return backend
    return str(getattr(backend, "__name__", type(backend).__name__))
