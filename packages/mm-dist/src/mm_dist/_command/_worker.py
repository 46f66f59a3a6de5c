"""Start one rank's program, and record how it failed.

``mm-dist run`` starts every rank through this file, by its path: it imports nothing but the
standard library, so that the program is still the first to import torch. An uncaught exception is
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
from pathlib import Path
from types import ModuleType

_SET_DEATH_SIGNAL = 1


def main() -> None:
    """Run ``_worker.py MODE TARGET ARGUMENTS...``."""
    mode, target, *arguments = sys.argv[1:]
    if sys.platform.startswith("linux"):
        # The rank ends with its launcher, also where that is killed.
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if mode == "program":
        os.execvp(target, [target, *arguments])  # noqa: S606 (what --no-python asks for)
    sys.argv = [target, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path.cwd() if mode == "module" else Path(target).resolve().parent)
    try:
        if mode == "module":
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            _run_script(target)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if status:
            _record(f"SystemExit: {error.code}", "", status)
        raise
    except Exception as error:  # noqa: BLE001 (shown and recorded, whatever it is)
        trace = error.__traceback__
        while trace is not None and _is_start(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        error = error.with_traceback(trace)
        # What the interpreter does for an uncaught exception.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error, trace)
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        _record(message, "".join(traceback.format_exception(type(error), error, trace)), 1)
        sys.exit(1)


def _run_script(path: str) -> None:
    # Not runpy.run_path: it removes the module when the script ends, and what still runs then
    # (exit handlers, threads that pickle) would miss it.
    module = sys.modules["__main__"] = ModuleType("__main__")
    vars(module).update(__file__=path, __builtins__=__builtins__)
    exec(compile(Path(path).read_bytes(), path, "exec"), vars(module))  # noqa: S102 (its purpose)


def _is_start(file: str) -> bool:
    return file in (__file__, runpy.__file__) or file.startswith("<frozen")


def _record(message: str, callstack: str, status: int) -> None:
    """Write the file that torch elastic reads about a failed rank, unless init_dist has."""
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
