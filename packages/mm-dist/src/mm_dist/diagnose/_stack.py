"""Read a thread's Python stack: what it waits in, and where in the user's code."""

import linecache
import runpy
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType
from typing import NamedTuple

import torch

_TORCH = Path(torch.__file__).absolute().parent
_OWN = Path(__file__).absolute().parents[1]
_PYTHON = Path(sysconfig.get_path("stdlib")).absolute()
_INSTALL_FOLDERS = ("site-packages", "dist-packages")
# What runs the user's program is no part of it.
_START_FILES = (str(_OWN / "_command" / "_worker.py"), runpy.__file__, "<frozen runpy>")
# Where the public functions are that wait for other ranks.
_COLLECTIVE_FILES = ("torch/distributed/distributed_c10d.py", "mm_dist/_collectives/")
# Where C++ waits below a call that is no collective by name: part of the path, words for it.
_LAYERS = (
    ("torch/distributed/device_mesh.py", "init_device_mesh"),
    ("torch/nn/parallel/distributed.py", "DistributedDataParallel"),
    ("torch/distributed/fsdp", "FSDP"),
    ("torch/distributed/checkpoint", "distributed checkpoint"),
    ("torch/_tensor.py", "backward"),
    ("torch/autograd", "backward"),
)
_NUM_SHOWN_FRAMES, _LONGEST_LINE = 5, 100


class Frame(NamedTuple):
    """One call of a Python stack."""

    file: str
    line: int
    function: str


def read_stack(thread_id: int) -> list[Frame]:
    """Return what a thread of this process is doing, innermost call first; empty if it ended."""
    frame = sys._current_frames().get(thread_id)  # noqa: SLF001 (as faulthandler)
    return [] if frame is None else _make_frames(walk_stack(frame))


def read_traceback(trace: TracebackType | None) -> list[Frame]:
    """Return the calls of a traceback, innermost first."""
    return _make_frames(reversed(list(walk_tb(trace))))


def _make_frames(calls: Iterable[tuple[FrameType, int]]) -> list[Frame]:
    """Return calls, innermost first, without what runs the user's program."""
    frames = [Frame(f.f_code.co_filename, line or 0, f.f_code.co_name) for f, line in calls]
    while frames and frames[-1].file in _START_FILES:
        frames.pop()
    return frames


def find_wait(stack: Sequence[Frame]) -> tuple[str, bool]:
    """Return the operation of torch that a stack is in, or "", and whether it surely waits."""
    inner = [frame for frame in _inner_frames(stack) if _find_origin(frame.file) != "installed"]
    # The outermost name is the one that the user wrote: all_gather_object, not its all_gather.
    for frame in reversed(inner):
        path = Path(frame.file).as_posix()
        is_public = not frame.function.startswith(("_", "wrapper"))
        if is_public and any(part in path for part in _COLLECTIVE_FILES):
            return frame.function, True
    for frame in inner:
        path = Path(frame.file).as_posix()
        for part, name in _LAYERS:
            if part in path:
                return name, False
    if inner and inner[0].function == "synchronize":
        return "synchronize", False
    # The handle of an asynchronous collective waits in C++, right below the user's line.
    is_wait = bool(stack) and not inner and ".wait(" in _read_source(stack[0])
    return ("wait" if is_wait else ""), False


def _inner_frames(stack: Sequence[Frame]) -> list[Frame]:
    """Return the frames inside the user's innermost call, innermost first."""
    origins = [_find_origin(frame.file) for frame in stack]
    return list(stack[: origins.index("user")] if "user" in origins else stack)


def locate(stack: Sequence[Frame]) -> str:
    """Return where a stack is: ``data.py:40``, or ``train.py:10 > mm_runner/_loop.py:88``."""
    inner = _inner_frames(stack)
    installed = [_at(frame) for frame in inner if _find_origin(frame.file) == "installed"][:1]
    if len(inner) < len(stack):
        return " > ".join([_at(stack[len(inner)]), *installed])
    return installed[0] if installed else _at(stack[0]) if stack else "no Python code"


def show_stack(stack: Sequence[Frame]) -> list[str]:
    """Return the innermost frames as lines to print, outermost first."""
    inner = _inner_frames(stack)
    # Of a deep library only the last call is shown, to leave room for the user's frames.
    num_inner = max(1, _NUM_SHOWN_FRAMES - (len(stack) - len(inner)))
    shown = [*inner[:num_inner], *stack[len(inner) :]][:_NUM_SHOWN_FRAMES]
    return [
        f"{_at(frame)} in {frame.function}: {_read_source(frame)}"[:_LONGEST_LINE].rstrip(": ")
        for frame in reversed(shown)
    ]


def _read_source(frame: Frame) -> str:
    return linecache.getline(frame.file, frame.line).strip()


@lru_cache(maxsize=1024)
def _find_origin(file: str) -> str:
    """Return the owner of a file: ``torch``, ``own``, ``installed``, ``python`` or ``user``."""
    if file.startswith("<frozen"):
        return "python"
    path = Path(file).absolute()
    parents = set(path.parents)
    if _TORCH in parents or file.startswith("<eval_with_key>"):
        return "torch"
    if _OWN in parents:
        return "own"
    # torch's folder lies among the installed packages, whatever that folder is called.
    if _TORCH.parent in parents or any(folder in path.parts for folder in _INSTALL_FOLDERS):
        return "installed"
    return "python" if _PYTHON in parents else "user"


@lru_cache(maxsize=1024)
def _shorten_path(file: str) -> str:
    """Return a path relative to the script's folder, the current one, or the installed packages."""
    path = Path(file).absolute()
    script_folder = Path(sys.path[0] if sys.path and sys.path[0] else ".").absolute()
    for root in (script_folder, Path.cwd(), _TORCH.parent, _OWN.parent, _PYTHON):
        if root in path.parents:
            return str(path.relative_to(root))
    return str(path)


def _at(frame: Frame) -> str:
    return f"{_shorten_path(frame.file)}:{frame.line}"
