"""The folder in which inductor compiles: this process's own, filled from bundles.

Inductor writes some files in place (a linker does), trusts whatever it finds, and names its folder
by an environment variable. In a folder of its own it never meets half a file of a killed process,
nor one that changed after it was checked.
"""

import contextlib
import os
import re
import shutil
import socket
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_PREFIX = "mm_compile_"
_OWNER = "owner"
# Lock files, half-written files, and what only the building of another file needed.
_IGNORED_FOLDERS = ("locks",)
_IGNORED_SUFFIXES = (".lock", ".tmp", ".o", ".gch")
# Inductor's workers, which live as long as the process, set the second one by the first one once,
# unless they are told both.
_VARIABLES = {"TORCHINDUCTOR_CACHE_DIR": ".", "TRITON_CACHE_DIR": "triton"}


class Workspace:
    """A folder for inductor, removed with this object.

    Attributes:
        path: The folder.
    """

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}_"))
        self._seen: dict[str, tuple[int, int]] = {}
        descriptor = _claim(self.path)
        self._remove = weakref.finalize(self, _remove, self.path, descriptor, os.getpid())
        # At the end of the process its owner removes it, after a last look.
        self._remove.atexit = False

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Let inductor work here, and nothing remember it afterwards."""
        before = {name: os.environ.get(name) for name in _VARIABLES}
        os.environ.update({name: str(self.path / part) for name, part in _VARIABLES.items()})
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

    def put(self, files: Mapping[str, bytes]) -> None:
        """Write files that others have compiled, but none that is there: it may be loaded."""
        for name, content in files.items():
            path = self.path / name
            if path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o700)
            self._seen[name] = _version_of(path)

    def take_new(self) -> dict[str, bytes]:
        """Read files that appeared or changed since this was last asked."""
        new = {}
        for name, path in self._walk():
            # A thread or worker of inductor may rename its drafts meanwhile.
            with contextlib.suppress(FileNotFoundError):
                state = _version_of(path)
                if self._seen.get(name) != state:
                    new[name] = path.read_bytes()
                    self._seen[name] = state
        return new

    def remove(self) -> None:
        """Delete the folder; code loaded from it goes on running."""
        self._remove()

    def _walk(self) -> Iterator[tuple[str, Path]]:
        for folder, subfolders, names in os.walk(self.path):
            subfolders[:] = [name for name in subfolders if name not in _IGNORED_FOLDERS]
            for name in names:
                path = Path(folder) / name
                relative = path.relative_to(self.path).as_posix()
                is_file = path.is_file() and not path.is_symlink()
                if is_file and relative != _OWNER and not name.endswith(_IGNORED_SUFFIXES):
                    yield relative, path


def _version_of(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns


def _prefix() -> str:
    user = os.getuid() if hasattr(os, "getuid") else "user"
    # Machines may share the temporary folder and yet not see each other's locks.
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
    return f"{_PREFIX}{user}_{host}_"


def _claim(folder: Path) -> int | None:
    """Lock a file in ``folder`` for as long as this process lives."""
    if sys.platform == "win32":
        return None
    draft = folder / f"{_OWNER}.tmp"
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Under this name it is never seen unlocked while the process lives.
    draft.rename(folder / _OWNER)
    return descriptor


def _remove(folder: Path, descriptor: int | None, pid: int) -> None:
    if os.getpid() != pid:  # a forked child
        return
    shutil.rmtree(folder, ignore_errors=True)
    if descriptor is not None:
        os.close(descriptor)


def _sweep(parent: Path) -> None:
    """Remove the folders of processes that were killed."""
    if sys.platform == "win32":
        return
    own = f"{_prefix()}{os.getpid()}_"
    for owner in parent.glob(f"{_prefix()}*/{_OWNER}"):
        # A lock does not part this process from itself.
        if not owner.parent.name.startswith(own):
            # Its process may end, and remove it, at any moment.
            with contextlib.suppress(OSError):
                _remove_if_left(owner)


def _remove_if_left(owner: Path) -> None:
    if owner.lstat().st_uid != os.getuid():
        return
    with owner.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(owner.parent, ignore_errors=True)
