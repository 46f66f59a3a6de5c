"""The hash of torch's own sources, which inductor puts into the name of everything that it keeps.

Each process reads and hashes some two thousand files for it, a tenth of a second of a warm start
and more from a disk across the network. Whether any of them has changed shows in a tenth of that.
"""

import hashlib
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import all_suffixes
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import torch

# Besides modules, inductor hashes some files that it generates code with.
_SUFFIXES = (*all_suffixes(), ".cpp", ".h", ".ld")
# No modules are there, but ten thousand headers.
_IGNORED = ("__pycache__", "include", "share")


class _Found(NamedTuple):
    digest: bytes
    # None where the sources may have been others.
    state: str | None


# Torch's function looks only once in a process, and so does this: what the process has imported
# stays as it is, too.
_found: dict[Callable[[], bytes], _Found] = {}


@contextmanager
def remembering_source_hash(hashes: dict[str, str]) -> Iterator[None]:
    """Let inductor hash torch's sources only once for all processes.

    A process that has hashed them before this goes on with what it found, and adds nothing: they
    may have been changed since.

    Args:
        hashes: What is known, as hexadecimal digits by the state of the sources; what is found out
            is added.
    """
    from torch._inductor import codecache  # noqa: PLC0415 - loaded only to compile

    hash_all = getattr(codecache, "torch_key", None)
    if hash_all is None:  # before torch 2.4 or so
        yield
        return

    def hash_once() -> bytes:
        if hash_all not in _found:
            if not _would_hash(hash_all, codecache):
                return hash_all()  # type: ignore[no-any-return]
            _found[hash_all] = _find(hash_all, hashes)
        found = _found[hash_all]
        if found.state is not None:
            hashes[found.state] = found.digest.hex()
        return found.digest

    codecache.torch_key = hash_once
    try:
        yield
    finally:
        codecache.torch_key = hash_all


def state_of_sources(folder: Path) -> str | None:
    """Return what is another text once any file of torch's Python package was changed or moved.

    Returns:
        None if that cannot be told: a link leads nowhere, or a file vanishes meanwhile.
    """
    try:
        lines = sorted(_list_sources(str(folder)))
    except OSError:
        return None
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _find(hash_all: Callable[[], bytes], hashes: dict[str, str]) -> _Found:
    folder = Path(torch.__file__).parent
    state = state_of_sources(folder)
    if state is not None and state in hashes:
        return _Found(bytes.fromhex(hashes[state]), state)
    digest = hash_all()
    # Whoever edits torch at this moment may have been hashed half.
    return _Found(digest, state if state_of_sources(folder) == state else None)


def _would_hash(hash_all: Any, codecache: Any) -> bool:
    """Whether a call would hash torch's files, and not repeat what an earlier call has found."""
    if hasattr(hash_all, "cache_info"):  # before torch 2.7 or so
        function = getattr(hash_all, "__wrapped__", None)
        is_empty = not hash_all.cache_info().currsize
    elif isinstance(hash_all, FunctionType):
        kept = inspect.getclosurevars(hash_all).nonlocals
        function, value = kept.get("func"), kept.get("_cache")
        # Torch keeps the hash in a list; newer ones in place of a sentinel.
        is_empty = (value == [] or type(value) is object) and kept.get("_future") is None
    else:
        return False
    # Makers of devices put functions of their own there, which hash other files as well.
    return is_empty and getattr(function, "__module__", None) == codecache.__name__


def _list_sources(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIXES):
                state = entry.stat()
                yield f"{entry.path} {state.st_size} {state.st_mtime_ns}"
            elif entry.name not in _IGNORED and entry.is_dir():
                yield from _list_sources(entry.path)
