"""One process of a machine compiles a graph while the others wait, whoever comes first.

Locks of the kernel decide, not ranks: a rank waits only for one that is compiling the very same
graph at this moment, and compiling needs no other rank. So nobody waits for a rank that compiles
something else or never comes; a process that dies or raises gives its lock back, and the next one
in the queue compiles. The lock file lies on the machine's own disk, so that processes of one
machine meet there, in the same job or not.
"""

import errno
import hashlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":  # there, every process compiles for itself
    import fcntl

_logger = logging.getLogger(__name__)

_POLL_S = 0.1
_TELL_AFTER_S = 5.0
# Compiling alone is then better than to wait for somebody who seems to be stopped.
_LIMIT_S = 600.0
# Closing any descriptor of a file gives all locks of the process on it back, those of other threads
# as well: each file is opened once, and stays open.
_descriptors: dict[Path, int] = {}


@contextmanager
def turn(
    subject: str, *, limit_s: float = _LIMIT_S, clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """Wait until no other process of this machine is at ``subject``, at most ``limit_s``."""
    descriptor = _lock_file()
    if descriptor is None:
        yield
        return
    offset = _offset(subject)
    try:
        _wait(descriptor, offset, limit_s, clock)
        yield
    finally:
        # Unlike locks that a child inherits, it ends with the process, too.
        with suppress(OSError):
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, offset)


def _wait(descriptor: int, offset: int, limit_s: float, clock: Callable[[], float]) -> None:
    begin = clock()
    has_told = False
    while not _try_lock(descriptor, offset):
        waited_s = clock() - begin
        if waited_s > limit_s:
            _logger.warning(
                "compile: another process has compiled the same graph for %.0f s; this one does "
                "not wait longer and compiles it, too.",
                waited_s,
            )
            return
        if waited_s > _TELL_AFTER_S and not has_told:
            has_told = True
            _logger.info(
                "compile: waiting for another process of this machine that compiles the same "
                "graph; at most %.0f s.",
                limit_s,
            )
        time.sleep(_POLL_S)


def _try_lock(descriptor: int, offset: int) -> bool:
    try:
        # One byte for each subject: they need no files of their own that nobody would remove.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        # Nobody holds it: the disk has no locks, and waiting would change nothing.
        _logger.debug("compile: no lock on this machine's turns: %s", error)
    return True


def _offset(subject: str) -> int:
    return int.from_bytes(hashlib.sha256(subject.encode()).digest()[:4], "big")


def _lock_file() -> int | None:
    if sys.platform == "win32":
        return None
    path = Path(tempfile.gettempdir()) / f"mm_compile_{os.getuid()}.lock"
    descriptor = _descriptors.get(path)
    if descriptor is None or not _is_open(descriptor, path):
        descriptor = _open(path)
        if descriptor is not None:
            _descriptors[path] = descriptor
    return descriptor


def _is_open(descriptor: int, path: Path) -> bool:
    # Somebody may have tidied the folder, or closed what was open.
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


def _open(path: Path) -> int | None:
    try:
        # The name is known to all users of the machine: theirs is not followed and not trusted.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        _logger.debug("compile: no lock file at %s: %s", path, error)
        return None
    if os.fstat(descriptor).st_uid != os.getuid():
        os.close(descriptor)
        return None
    return descriptor
