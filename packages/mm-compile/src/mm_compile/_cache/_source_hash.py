"""The hash of torch's own sources, which inductor puts into the name of everything that it keeps.

Each process reads and hashes some two thousand files for it, a tenth of a second of a warm start
and more from a disk across the network. Whether any of them has changed shows in a tenth of that.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import all_suffixes
from pathlib import Path

import torch

# Besides modules, inductor hashes two files that it generates code with.
_SUFFIXES = (*all_suffixes(), ".cpp", ".ld")
# No modules are there, but ten thousand headers.
_IGNORED = ("__pycache__", "include", "share")


@contextmanager
def remembering_source_hash(hashes: dict[str, str]) -> Iterator[None]:
    """Let inductor hash torch's sources only once for all processes.

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
        state = state_of_sources(Path(torch.__file__).parent)
        if state not in hashes:
            hashes[state] = hash_all().hex()
        return bytes.fromhex(hashes[state])

    codecache.torch_key = hash_once
    try:
        yield
    finally:
        codecache.torch_key = hash_all


@cache  # inductor, too, looks only once in a process
def state_of_sources(folder: Path) -> str:
    """Return what is another text once any file of torch's Python package was changed or moved."""
    lines = sorted(_list_sources(str(folder)))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _list_sources(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIXES):
                state = entry.stat()
                yield f"{entry.path} {state.st_size} {state.st_mtime_ns}"
            elif entry.name not in _IGNORED and entry.is_dir():
                yield from _list_sources(entry.path)
