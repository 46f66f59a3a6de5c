"""Tell whose code a file is, and shorten its path."""

import runpy
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path

import torch

_TORCH = Path(torch.__file__).absolute().parent
_OWN = Path(__file__).absolute().parents[1]
_PYTHON = Path(sysconfig.get_path("stdlib")).absolute()
_INSTALL_FOLDERS = ("site-packages", "dist-packages")
_START_FILES = (str(_OWN / "_command" / "_worker.py"), runpy.__file__, "<frozen runpy>")


def is_start(file: str) -> bool:
    """Return whether a file's code starts programs, and is no part of what it starts."""
    return file in _START_FILES


@lru_cache(maxsize=1024)
def find_origin(file: str) -> str:
    """Return whose code a file is: ``torch``, ``own``, ``installed``, ``python`` or ``user``."""
    if file.startswith(("<frozen", "<eval_with_key>")):
        return "torch" if file.startswith("<eval") else "python"
    path = Path(file).absolute()
    parents = set(path.parents)
    if _TORCH in parents:
        return "torch"
    if _OWN in parents:
        return "own"
    # torch's folder lies among the installed packages, whatever that folder is called.
    if _TORCH.parent in parents or any(folder in path.parts for folder in _INSTALL_FOLDERS):
        return "installed"
    return "python" if _PYTHON in parents else "user"


@lru_cache(maxsize=1024)
def shorten_path(file: str) -> str:
    """Return a path relative to the script's folder, the current one, or the installed packages."""
    path = Path(file).absolute()
    script_folder = Path(sys.path[0] if sys.path and sys.path[0] else ".").absolute()
    for root in (script_folder, Path.cwd(), _TORCH.parent, _OWN.parent):
        if root in path.parents:
            return str(path.relative_to(root))
    for folder in _INSTALL_FOLDERS:
        if folder in path.parts:
            return str(Path(*path.parts[path.parts.index(folder) + 1 :]))
    return str(path.relative_to(_PYTHON)) if _PYTHON in path.parents else str(path)
