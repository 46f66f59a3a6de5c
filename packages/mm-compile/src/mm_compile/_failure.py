"""Reasons why code did not compile, and graph breaks, with the line of the user's code."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import shorten
from traceback import walk_tb
from typing import Any

import torch

_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120 - compared as text
_OWN_FOLDER = os.path.dirname(__file__) + os.sep  # noqa: PTH120 - compared as text
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
# Hints, advice for bug reports, inductor's buffers, and code that the frame already names.
_ADVICE = re.compile(
    r"\n\s*(Hint:|Developer debug|Set TORCH|You can suppress|Please convert|from user code:"
    r"|args\[\d+\]:|Caused by:).*",
    re.DOTALL,
)
_EXPLANATION = re.compile(r"\.?\s*\n\s*Explanation: ")  # on a line of its own after the title
_LONGEST_REASON = 300
_PASSING = (MemoryError, OSError, torch.cuda.OutOfMemoryError)
# Attribute of a backend's error; dynamo wraps the error.
_NOTE = "_mm_compile_failure"


@dataclass(frozen=True)
class Failure:
    """Why a region is not compiled.

    Attributes:
        reason: What the compiler said, in one line.
        frame: ``file:line`` of the user's code; None where unknown.
    """

    reason: str
    frame: str | None = None

    def __str__(self) -> str:
        return f"{self.reason} (at {self.frame})" if self.frame else self.reason


def failure_of_backend(error: Exception, graph_module: Any) -> Failure:
    """Describe what a backend raised for ``graph_module``."""
    reason = f"{type(error).__name__}: {_first_lines(str(error))}"
    # Backends that interpret a graph node by node do so in fx's Interpreter.run_node.
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    running = [f.f_locals.get("n") for f in frames if f.f_code.co_name == "run_node"]
    # Without one, the first line of the graph.
    nodes = (*running[::-1], *graph_module.graph.nodes)
    traces = (getattr(node, "stack_trace", None) or "" for node in nodes)
    return Failure(reason, next(filter(None, map(_user_frame, traces)), None))


def note_failure(error: Exception, graph_module: Any) -> None:
    """Attach :func:`failure_of_backend` to ``error``; dynamo names no line of the graph."""
    setattr(error, _NOTE, failure_of_backend(error, graph_module))


def passing_error(error: BaseException) -> BaseException | None:
    """Return the ``MemoryError`` or ``OSError`` behind ``error``, or None.

    The next attempt may compile.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, _PASSING):
        cause = getattr(cause, "inner_exception", None) or cause.__cause__
    return cause


def failure_of_dynamo(error: BaseException) -> Failure:
    """Describe what dynamo raised."""
    for each in (error, getattr(error, "inner_exception", None)):
        if isinstance(noted := getattr(each, _NOTE, None), Failure):
            return noted
    text = str(error)
    stack = getattr(error, "real_stack", None)
    trace = text.partition("from user code:")[2] or (
        "".join(stack.format()) if stack is not None else ""
    )
    return Failure(f"{type(error).__name__}: {_first_lines(text)}", _user_frame(trace))


def _first_lines(text: str) -> str:
    text = _EXPLANATION.sub(". ", _ADVICE.sub("", text))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return shorten(" ".join(lines[:3]), _LONGEST_REASON, placeholder=" ...")


def _user_frame(trace: str) -> str | None:
    return _innermost_frame((found["file"], found["line"]) for found in _FRAME.finditer(trace))


def _innermost_frame(frames: Iterable[tuple[str, str]]) -> str | None:
    """Return ``file:line`` of the last frame outside of torch and this package, or None."""
    own = [
        f"{file}:{line}"
        for file, line in frames
        if not file.startswith((_TORCH_FOLDER, _OWN_FOLDER))
    ]
    return own[-1] if own else None


@dataclass(frozen=True)
class GraphBreak:
    """A place where one graph ended and Python ran before the next.

    Attributes:
        frame: ``file:line`` of the user's code, or of torch's if no user code ran; None where this
            torch does not report it.
        reason: What dynamo could not capture, in one line.
    """

    frame: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.frame or 'an unknown place'}: {self.reason}"


def add_breaks(known: list[GraphBreak], reasons: Iterable[Any]) -> None:
    """Add dynamo's reasons to ``known``, each place once."""
    for reason in reasons:
        frames = [(each.filename, str(each.lineno)) for each in getattr(reason, "user_stack", ())]
        # An optimizer's step consists of torch's code only.
        frame = _innermost_frame(frames) or (":".join(frames[-1]) if frames else None)
        found = GraphBreak(frame, _first_lines(str(reason.reason).strip("'\"")))
        if found not in known:
            known.append(found)
