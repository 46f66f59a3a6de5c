"""Whose line of code it was that called an operation."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from functools import cache
from typing import TYPE_CHECKING

import torch

from mm_runner.hooks._hook import Hook

if TYPE_CHECKING:
    from types import CodeType, FrameType

__all__ = ["is_of_optimizer", "origin_of"]

_OURS = ("mm_runner", "mm_dist", "mm_amp", "mm_compile", "mm_npu")
_SITES = ("site-packages", "dist-packages")
# What a notebook calls its cells.
_CELLS = "<ipython-input"
# Parts of torch that stand around a call of torch's own, whatever it is.
_AROUND = ("_dynamo", "_compile", "_tensor", "functional", "_jit_internal", "utils", "_ops")
# Of torch.optim, what reads values of the device, as its other modules do not.
_READERS = ("lbfgs.py", "swa_utils.py")
# What mm-compile adds to the name of code that it copies, and torch to what goes on after a break.
_COPIED = re.compile(r"(_\d+)+$")
_RESUMED = re.compile(r"^(?:torch_dynamo_resume_in_)+(.+?)(?:_at_\d+)+$")


def origin_of(frame: FrameType | None, *, behind: FrameType | None = None) -> str:
    """Return who called, as ``file:line in function``; for a hook of the run its class before that.

    That is the first frame outside of torch, of our packages and of Python's library, within the
    training step. What only these did themselves is told by the place in them.

    Args:
        frame: The innermost.
        behind: Where to look if there is nothing: of the thread that waits for this one.
    """
    innermost: FrameType | None = None
    place: str | None = None
    for start in (frame, behind):
        one = start
        while one is not None and not _is_loop(one.f_code.co_filename):
            owner = one.f_locals.get("self") if one.f_code.co_varnames[:1] == ("self",) else None
            if place is None and _is_users(one.f_code.co_filename):
                place = _place(one)
            if isinstance(owner, Hook):
                name = type(owner).__name__
                return name if place is None else f"{name}, {place}"
            if innermost is None and not _is_around(one.f_code.co_filename):
                innermost = one
            one = one.f_back
        if place is not None:
            return place
    return "unknown" if innermost is None else _place(innermost)


def is_of_optimizer(frame: FrameType | None) -> bool:
    """Tell whether one of torch's optimizers called, and no line of the user's in between.

    Args:
        frame: The innermost.
    """
    while frame is not None:
        file = frame.f_code.co_filename
        if _is_users(file) or _is_loop(file):
            return False
        if _is_optimizers(file):
            return True
        frame = frame.f_back
    return False


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{_short(code.co_filename)}:{frame.f_lineno} in {_name(code)}"


def _name(code: CodeType) -> str:
    """Return the name that a function has in its file, also where its code is a copy."""
    qualified: str = getattr(code, "co_qualname", "")  # Python 3.11; a copy keeps it
    name = qualified.rpartition(".")[2] or code.co_name
    resumed = _RESUMED.match(name)
    if qualified and resumed is None:
        return name
    return _COPIED.sub("", resumed[1] if resumed else name)


@cache
def _homes() -> tuple[str, ...]:
    """List the folders of torch and of our packages."""
    names = ("torch", *_OURS)
    files = [sys.modules[name].__file__ for name in names if name in sys.modules]
    return tuple(os.path.dirname(file) for file in files if file)  # noqa: PTH120


@cache
def _is_loop(file: str) -> bool:
    """Tell whether a frame of this file is what runs steps: who called that is no answer."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    return file.startswith((os.path.join(home, "loops"), os.path.join(home, "runner", "_runner")))  # noqa: PTH118


@cache
def _is_users(file: str) -> bool:
    if file.startswith("<"):
        return file.startswith(_CELLS)
    if any(file.startswith(f"{home}{os.sep}") for home in _homes()):
        return False
    library = sysconfig.get_path("stdlib")
    return not file.startswith(library) or any(site in file for site in _SITES)


@cache
def _is_optimizers(file: str) -> bool:
    home = os.path.join(os.path.dirname(torch.__file__), "optim", "")  # noqa: PTH118, PTH120
    return file.startswith(home) and not file.endswith(_READERS)


@cache
def _is_around(file: str) -> bool:
    home = os.path.dirname(torch.__file__)  # noqa: PTH120
    return file.startswith(tuple(os.path.join(home, part) for part in _AROUND))  # noqa: PTH118


@cache
def _short(file: str) -> str:
    """Return a path as people call it: below the current folder, or as a package's."""
    for home in _homes():
        if file.startswith(f"{home}{os.sep}"):
            return os.path.relpath(file, os.path.dirname(home))  # noqa: PTH120
    for site in _SITES:
        _, found, rest = file.rpartition(f"{os.sep}{site}{os.sep}")
        if found:
            return rest
    below = os.path.relpath(file) if os.path.isabs(file) else file  # noqa: PTH117
    return file if below.startswith(os.pardir) else below
