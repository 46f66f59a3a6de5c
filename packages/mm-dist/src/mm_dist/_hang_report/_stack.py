"""Read a thread's Python stack, and tell the user's frames from the libraries'."""

import linecache
import sys
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import NamedTuple

from mm_dist._hang_report._paths import find_origin, is_start, shorten_path

_NUM_SHOWN_FRAMES = 5
_LONGEST_LINE = 100


class Frame(NamedTuple):
    """One call of a Python stack."""

    file: str
    line: int
    function: str


def read_stack(thread_id: int) -> list[Frame]:
    """Return what a thread of this process is doing, innermost call first; empty if it ended."""
    frame: FrameType | None = sys._current_frames().get(thread_id)  # noqa: SLF001 (as faulthandler)
    frames = []
    while frame is not None:
        frames.append(_describe(frame, frame.f_lineno))
        frame = frame.f_back
    return _leave_out_start(frames)


def read_traceback(trace: TracebackType | None) -> list[Frame]:
    """Return the calls of a traceback, innermost first."""
    frames = []
    while trace is not None:
        frames.append(_describe(trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return _leave_out_start(frames[::-1])


def _leave_out_start(frames: Sequence[Frame]) -> list[Frame]:
    """Leave out the outermost calls, those of what ran the user's program."""
    end = len(frames)
    while end and is_start(frames[end - 1].file):
        end -= 1
    return list(frames[:end])


def _describe(frame: FrameType, line: int | None) -> Frame:
    return Frame(frame.f_code.co_filename, line or 0, frame.f_code.co_name)


def library_frames(stack: Sequence[Frame]) -> list[Frame]:
    """Return the frames inside the user's innermost call, innermost first."""
    inner = []
    for frame in stack:
        if find_origin(frame.file) == "user":
            break
        inner.append(frame)
    return inner


def locate(stack: Sequence[Frame]) -> str:
    """Say where a stack is, in the user's terms: ``data.py:40``.

    That is the innermost frame of the user's own code. Where an installed package other than torch
    lies between it and the end, that is named too: ``train.py:10 > mm_runner/_loop.py:88``.
    """
    path: list[str] = []
    for frame in stack:
        kind = find_origin(frame.file)
        if kind == "user":
            return " > ".join([_at(frame), *path])
        if kind == "installed" and not path:
            path.append(_at(frame))
    return path[0] if path else _at(stack[0]) if stack else "no Python code"


def show_stack(stack: Sequence[Frame]) -> list[str]:
    """Return the innermost frames as lines to print, outermost first."""
    return [_show(frame) for frame in _select(stack)][::-1]


def _select(stack: Sequence[Frame]) -> Iterator[Frame]:
    inner = library_frames(stack)
    # Of a deep library only its last call tells something; the rest belongs to the user's frames.
    num_inner = max(1, _NUM_SHOWN_FRAMES - (len(stack) - len(inner)))
    yield from inner[:num_inner]
    yield from stack[len(inner) : len(inner) + _NUM_SHOWN_FRAMES - len(inner[:num_inner])]


def _show(frame: Frame) -> str:
    source = read_source(frame)
    text = f"{_at(frame)} in {frame.function}"
    return f"{text}: {source}"[:_LONGEST_LINE] if source else text


def read_source(frame: Frame) -> str:
    """Return the line of source code that a frame is in; empty if it cannot be read."""
    return linecache.getline(frame.file, frame.line).strip()


def _at(frame: Frame) -> str:
    return f"{shorten_path(frame.file)}:{frame.line}"
