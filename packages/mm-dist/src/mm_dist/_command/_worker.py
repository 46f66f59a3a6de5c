"""Start one rank's program, and leave a record of how it failed.

``mm-dist run`` starts every rank through this file, by its path: it imports nothing but the
standard library, so that the program still is the first to import torch and can set variables
before. An uncaught exception is printed as Python prints it, and recorded in the file that torch
elastic reads, so that the launcher can name it also where the program never joined a group.
"""

import contextlib
import ctypes
import json
import os
import runpy
import signal
import sys
import time
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
_DELAY_S = 10
_SET_DEATH_SIGNAL = 1
# What runpy has to run itself; everything else is source code.
_ARCHIVES = (".zip", ".pyz", ".pyc")
# Whose frames are not the program's.
_OWN_FILES = (
    __file__,
    runpy.__file__,
    "<frozen runpy>",
    "<frozen importlib._bootstrap>",
    "<frozen importlib._bootstrap_external>",
)


def main() -> None:
    """Run ``_worker.py LOG_DIR MODE TARGET ARGUMENTS...``; an empty LOG_DIR means the console."""
    log_dir, mode, target, *arguments = sys.argv[1:]
    _end_with_launcher()
    if log_dir:
        _share_log(log_dir)
    if mode == "program":
        os.execvp(target, [target, *arguments])  # noqa: S606 (what --no-python asks for)
    sys.argv = [target, *arguments]
    try:
        _run(mode, target)
    except SystemExit as error:
        if error.code not in (None, 0):
            status = error.code if isinstance(error.code, int) else 1
            record_failure(f"SystemExit: {error.code}", status=status)
        raise
    except Exception as error:  # noqa: BLE001 (shown and recorded, whatever it is)
        _fail(error)


def _end_with_launcher() -> None:
    """Let SIGTERM come to this rank when its launcher is killed, which nobody else would tell."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)


def _share_log(log_dir: str) -> None:
    """Let both streams of this rank go to one file, in order, under a name that is known before.

    torch elastic has sent stdout to a file in the folder of this attempt already.
    """
    os.dup2(1, 2)
    captured = Path(os.environ[ERROR_FILE_VARIABLE]).with_name("stdout.log")
    name = Path(log_dir, f"rank{os.environ['RANK']}.log")
    with contextlib.suppress(OSError):
        # A second name of the same file where the file system can, else a link. The log itself
        # is written all the same.
        name.unlink(missing_ok=True)
        try:
            os.link(captured, name)
        except OSError:
            name.symlink_to(os.path.relpath(captured, log_dir))


def _run(mode: str, target: str) -> None:
    if mode == "module":
        _set_first_path(Path.cwd())
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    _set_first_path(Path(target).resolve().parent)
    if Path(target).is_dir() or target.endswith(_ARCHIVES):
        runpy.run_path(target, run_name="__main__")
        return
    _run_source(target)


def _set_first_path(folder: Path) -> None:
    # Python has put this file's own folder there, unless it was told to be safe.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(folder)


def _run_source(target: str) -> None:
    # Not runpy.run_path: it takes the module away when the script ends, and what still runs then
    # (exit handlers, threads that pickle) would miss it.
    module = ModuleType("__main__")
    loader = SourceFileLoader("__main__", target)
    vars(module).update(__file__=target, __loader__=loader, __builtins__=__builtins__)
    code = loader.source_to_code(loader.get_data(target), target)
    sys.modules["__main__"] = module
    exec(code, vars(module))  # noqa: S102 (to run it is the purpose)


def _fail(error: Exception) -> None:
    """Do what the interpreter does for an uncaught exception, without the frames of this file."""
    own_trace = _leave_out_own_frames(error.__traceback__)
    error.__traceback__ = own_trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, own_trace
    sys.excepthook(type(error), error, own_trace)
    text = "".join(traceback.format_exception(type(error), error, own_trace))
    record_failure(_describe(error), text)
    sys.exit(1)


def _describe(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        # Python's own words begin with the place; these end with it.
        return f"{type(error).__name__}: {error}"
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _leave_out_own_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in _OWN_FILES:
        trace = trace.tb_next
    return trace


def record_failure(
    message: str, callstack: str = "", *, status: int = 1, is_first: bool = True
) -> None:
    """Write the file that torch elastic reads about a rank that failed, unless there is one.

    Args:
        message: Type and message of the exception.
        callstack: Its traceback.
        status: The exit status that this process is about to end with.
        is_first: Whether launchers may take it for the first failure: they go by the time.
    """
    path = os.environ.get(ERROR_FILE_VARIABLE)
    # What init_dist has recorded says more: it knows whether another rank ended first.
    if not path or Path(path).exists():
        return
    # Times are whole seconds.
    when = int(time.time()) + (0 if is_first else _DELAY_S)
    extra = {"py_callstack": callstack, "timestamp": str(when)}
    content = json.dumps({"message": {"message": message, "extraInfo": extra, "errorCode": status}})
    unfinished = Path(f"{path}.unfinished")
    with contextlib.suppress(OSError):
        # Whole or not at all: the launcher may end this process at any moment, and reads it then.
        unfinished.write_text(content, encoding="utf-8")
        unfinished.replace(path)


if __name__ == "__main__":
    main()
