"""Why code did not compile, in a few words: the user's frame and the reason."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ._errors import CompileError

_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120 - compared as text
_OWN_FOLDER = os.path.dirname(__file__) + os.sep  # noqa: PTH120 - compared as text
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
# What torch adds to its messages for whoever reports a bug to torch.
_ADVICE = re.compile(
    r"\n\s*(Set TORCH|You can suppress|Please convert|from user code:).*", re.DOTALL
)


@dataclass(frozen=True)
class Failure:
    """Why a region is not compiled.

    Attributes:
        reason: What the compiler said, in one line.
        frame: ``file:line`` of the user's code that it was at; None where it does not say.
    """

    reason: str
    frame: str | None = None

    def __str__(self) -> str:
        return f"{self.reason} (at {self.frame})" if self.frame else self.reason


def failure_of_backend(error: Exception, graph_module: Any) -> Failure:
    """Describe what a backend raised for ``graph_module``."""
    traces = (getattr(node, "stack_trace", None) for node in graph_module.graph.nodes)
    trace = next((trace for trace in traces if trace), "")
    return Failure(f"{type(error).__name__}: {_first_lines(str(error))}", _user_frame(trace))


def failure_of_dynamo(error: BaseException) -> Failure:
    """Describe what dynamo raised."""
    text = str(error)
    stack = getattr(error, "real_stack", None)
    trace = text.partition("from user code:")[2] or (
        "".join(stack.format()) if stack is not None else ""
    )
    return Failure(f"{type(error).__name__}: {_first_lines(text)}", _user_frame(trace))


def not_compiled(label: str, error: BaseException) -> CompileError:
    """Return the error for a region that does not compile."""
    return CompileError(
        f"compile: {label} did not compile: {failure_of_dynamo(error)}. Set "
        'on_error="eager" to train on with this region uncompiled, or leave it out by regions.'
    )


def not_repeatable(label: str, error: BaseException) -> CompileError:
    """Return the error for a region that does not compile, and has had effects already."""
    return CompileError(
        f"compile: {label} did not compile: {failure_of_dynamo(error)}. A part of it had run "
        "already, so it cannot be run again eagerly; use target='forward'."
    )


def _first_lines(text: str) -> str:
    lines = [line.strip() for line in _ADVICE.sub("", text).splitlines() if line.strip()]
    return " ".join(lines[:3])[:300]


def _user_frame(trace: str) -> str | None:
    return innermost_user_frame((found["file"], found["line"]) for found in _FRAME.finditer(trace))


def innermost_user_frame(frames: Iterable[tuple[str, str]]) -> str | None:
    """Return ``file:line`` of the last frame that is the user's; None if none is."""
    # The operation itself is often in torch's files.
    own = [
        f"{file}:{line}"
        for file, line in frames
        if not file.startswith((_TORCH_FOLDER, _OWN_FOLDER))
    ]
    return own[-1] if own else None
