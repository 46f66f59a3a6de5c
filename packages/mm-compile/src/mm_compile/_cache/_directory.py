"""Cache directory: its folder for this torch and machine, permissions, ownership."""

import hashlib
import json
import os
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mm_compile._errors import ConfigError

# Increases when the layout of a cache changes.
_FORMAT = 4
FOLDER_NAME = re.compile(r"torch-[A-Za-z0-9_.+-]{1,64}-[0-9a-f]{24}")


def parse_directory(value: Any, name: str) -> Path:
    """Return the absolute path of a cache directory; create nothing."""
    if value is True:
        raise ConfigError(
            f"{name} is True; it takes a directory here. Only mm-runner chooses one for True. "
            "Write cache='DIR', the same for all runs of a project."
        )
    if not isinstance(value, (str, os.PathLike)) or not str(value) or "\0" in str(value):
        raise ConfigError(f"{name} is {value!r}; it takes a directory.")
    path = Path(value).expanduser().absolute()
    existing = next(each for each in (path, *path.parents) if each.exists())
    if not existing.is_dir():
        raise ConfigError(
            f"{name} is {str(value)!r}, but {existing} is a file; it takes a directory."
        )
    return path


def refusal_of(directory: Path, folder: Path) -> str | None:
    """Return why code in a folder of a cache is not run, in one line, or None."""
    for path in _find_trusted(directory, folder):
        try:
            reason = _distrust_reason(path.lstat())
        except FileNotFoundError:
            continue
        if reason is not None:
            return (
                f"code in {path} is not trusted: {reason}. Make it yours alone (chown, chmod "
                "go-w), or unpack a file of pack_cache into a directory of your own"
            )
    return None


def _find_trusted(directory: Path, folder: Path) -> Iterator[Path]:
    """Yield the paths whose owner and permissions are checked."""
    yield directory
    if folder.exists():
        yield folder
        # Nobody else can reach what lies in a private folder.
        if folder.stat().st_mode & 0o077:
            yield from folder.rglob("*")


def _distrust_reason(state: os.stat_result) -> str | None:
    if not hasattr(os, "geteuid"):  # Windows does not express permissions as modes
        return None
    if state.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {state.st_uid}, not to you"
    if state.st_mode & 0o022:
        return f"its mode {state.st_mode & 0o7777:o} lets group or others write"
    return None


def make_folder(folder: Path) -> None:
    """Create a folder in a cache, and the cache's directory, for this user alone."""
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def folder_name() -> str:
    """Return the name of the folder for code of this torch, Python and processor.

    It depends on what inductor's own keys leave out.
    """
    facts = {
        "format": _FORMAT,
        "torch": [torch.__version__, torch.version.git_version],
        "python": sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag,
        "system": [platform.system(), platform.machine(), *platform.libc_ver()],
        "cpu": _instruction_sets(),
        # Generated loops contain the number of threads.
        "threads": torch.get_num_threads(),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    release = re.sub(r"[^A-Za-z0-9.+-]", "_", torch.__version__)
    return f"torch-{release[:64]}-{digest[:24]}"


def _instruction_sets() -> str:
    capability = str(torch.backends.cpu.get_cpu_capability())
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return f"{capability} {platform.processor()}"
    # Flags that change with the kernel alone only cost a compilation.
    lines = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return " ".join([capability, *sorted(lines[1].split() if lines else [])])
