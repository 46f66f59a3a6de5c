"""Whether the compiler is looking."""

import sys
from collections.abc import Callable
from typing import Any

import torch

_ask: Callable[[], bool] | None = getattr(
    getattr(torch, "compiler", None), "is_compiling", None
)  # torch 2.3


def is_compiling() -> bool:
    """Whether ``torch.compile`` is tracing this very call; old versions do not tell."""
    return _ask is not None and _ask()


def call_eagerly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` so that an old compiler leaves it, and all that it calls, alone.

    Up to torch 2.2 the compiler loses its place where it breaks a graph within autocast. Newer
    ones are not hindered.
    """
    compiler: Any = None if _ask is not None else sys.modules.get("torch._dynamo")
    if compiler is not None:
        function = compiler.disable(function)
    return function(*args, **kwargs)
