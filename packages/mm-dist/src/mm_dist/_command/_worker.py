"""Start one rank's program, and record how it failed.

``mm-dist run`` starts every rank through this file, by its path: it imports nothing but the
standard library, so that the program still is the first to import torch. An uncaught exception is
printed as Python prints it, and recorded in the file that torch elastic reads.
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
from types import ModuleType

_SET_DEATH_SIGNAL = 1
_OWN_FILES = (__file__, runpy.__file__)


def main() -> None:
    """Run ``_worker.py MODE TARGET ARGUMENTS...``."""
    mode, target, *arguments = sys.argv[1:]
    if sys.platform.startswith("linux"):
        # This rank ends with its launcher, also where that is killed.
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if mode == "program":
        os.execvp(target, [target, *arguments])  # noqa: S606 (what --no-python asks for)
    sys.argv = [target, *arguments]
    try:
        _run(mode, target)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if status:
            _record(f"SystemExit: {error.code}", "", status)
        raise
    except Exception as error:  # noqa: BLE001 (shown and recorded, whatever it is)
        _fail(error)


def _run(mode: str, target: str) -> None:
    folder = Path.cwd() if mode == "module" else Path(target).resolve().parent
    if not getattr(sys.flags, "safe_path", False):
        # In the place of this file's own folder.
        sys.path[0] = str(folder)
    if mode == "module":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
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
    trace = error.__traceback__
    while trace is not None and (
        trace.tb_frame.f_code.co_filename in _OWN_FILES
        or trace.tb_frame.f_code.co_filename.startswith("<frozen")
    ):
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    _record(message, "".join(traceback.format_exception(type(error), error, trace)), 1)
    sys.exit(1)


def _record(message: str, callstack: str, status: int) -> None:
    """Write the file that torch elastic reads about a rank that failed, unless there is one.

    What init_dist has recorded says more: it knows whether another rank ended first.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or Path(path).exists():
        return
    extra = {"py_callstack": callstack, "timestamp": str(int(time.time()))}
    content = {"message": {"message": message, "extraInfo": extra, "errorCode": status}}
    unfinished = Path(f"{path}.unfinished")
    with contextlib.suppress(OSError):
        # Whole or not at all: the launcher may end this process at any moment, and reads it then.
        unfinished.write_text(json.dumps(content), encoding="utf-8")
        unfinished.replace(path)


if __name__ == "__main__":
    main()
