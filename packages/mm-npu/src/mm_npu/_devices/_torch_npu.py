"""Import of ``torch_npu`` that leaves the process unchanged if it fails.

A broken installation ends its import in any exception, ``SystemExit`` included; it sets an
environment variable first, leaves partially loaded modules, and prints.
"""

import os
import sys
from contextlib import redirect_stdout
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

AUTOLOAD_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_NAME = "torch_npu"

# What torch_npu raises where it is installed but cannot work: a library of CANN is missing, the
# driver does not answer, CANN's folders are incomplete (a plain Exception), and worse.
BROKEN = (Exception, SystemExit)


def is_loaded() -> bool:
    """Return whether ``torch_npu`` is imported already."""
    return sys.modules.get(_NAME) is not None


def is_installed() -> bool:
    """Return whether ``torch_npu`` could be imported, without importing it."""
    # A name that is None in sys.modules has been blocked there.
    return is_loaded() or (_NAME not in sys.modules and find_spec(_NAME) is not None)


def installed_version() -> str | None:
    """Return the version in the metadata of the installed ``torch_npu``, None without any."""
    try:
        return version(_NAME)
    except PackageNotFoundError:
        return None


def load() -> Any:
    """Import ``torch_npu`` and return it.

    What it prints while it is imported goes to the standard error, so that the standard output of
    a command stays what the command writes.
    """
    if is_loaded():
        return sys.modules[_NAME]
    autoload, modules = os.environ.get(AUTOLOAD_VARIABLE), set(sys.modules)
    try:
        with redirect_stdout(sys.stderr):
            return import_module(_NAME)
    except BROKEN:
        # Only after a failure: a working torch_npu needs the variable that it sets.
        set_environment(AUTOLOAD_VARIABLE, autoload)
        _forget_modules_except(modules)
        raise


def describe_error(error: BaseException) -> str:
    """Return an exception's type and message as a part of a sentence, on one line."""
    cause = " ".join(str(error).split()).rstrip(".") or "no message"
    return f"{type(error).__name__}: {cause}"


def set_environment(name: str, value: str | None) -> None:
    """Set a variable of this process, or remove it."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _forget_modules_except(modules: set[str]) -> None:
    """Drop partially loaded modules, where the next import would fail for another reason."""
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] == _NAME:
            del sys.modules[name]
