"""Temporary folder in which inductor compiles, filled with links into the cache.

Inductor writes some files in place and trusts every file that it finds. In a folder of this process
alone it never meets half a file of a killed process; complete files are copied to the cache.
"""

import logging
import os
import re
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ._directory import make_folder

_logger = logging.getLogger(__name__)

# Locks and drafts, and intermediate results of a compiler.
_IGNORED_FOLDERS = ("locks",)
_IGNORED_SUFFIXES = (".lock", ".tmp", ".o", ".gch")
# Inductor sets the second variable from the first only once in a process.
_VARIABLES = {"TORCHINDUCTOR_CACHE_DIR": ".", "TRITON_CACHE_DIR": "triton"}


class Workspace:
    """A folder for inductor that starts with the files of a cache folder.

    Args:
        folder: The cache folder; it need not exist.
        is_writable: Whether to save new code there.
        is_shared: Whether other users may write there too.
        is_empty: Whether to start without the cached files.

    Attributes:
        path: The temporary folder.
        is_writable: As given; false after saving failed.
        has_code: Whether it started with compiled code.
        has_libraries: Whether it started with compiled C++.
    """

    def __init__(
        self, folder: Path, *, is_writable: bool, is_shared: bool, is_empty: bool = False
    ) -> None:
        _remove_stale_workspaces()
        self._folder = folder
        self._is_shared = is_shared
        self.is_writable = is_writable
        self._pid = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{self._pid}_"))
        self._saved: dict[str, tuple[int, int]] = {}
        found = () if is_empty else list_files(folder)
        self._cached = [name for name, path in found if self._link(name, path)]
        self.has_code = bool(self._cached)
        self.has_libraries = any(name.endswith((".so", ".dylib")) for name in self._cached)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make inductor read and write here."""
        before = {name: os.environ.get(name) for name in _VARIABLES}
        os.environ.update({name: str(self.path / part) for name, part in _VARIABLES.items()})
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

    def save(self) -> None:
        """Copy new files to the cache folder, each atomically; warn if that fails."""
        if not self.is_writable:
            return
        try:
            for name, path in list_files(self.path):
                # Inductor may still rename its drafts in a thread.
                with suppress(FileNotFoundError):
                    self._save(name, path)
        except OSError as error:
            self.is_writable = False
            _logger.warning("compile: nothing more is saved in %s: %s", self._folder, error)

    def _save(self, name: str, path: Path) -> None:
        version = _version_of(path)
        if self._saved.get(name) == version:
            return
        content = path.read_bytes()
        if not self._folder.is_dir():
            make_folder(self._folder, is_shared=self._is_shared)
        write_atomically(self._folder / name, content)
        self._saved[name] = version

    def discard_cached(self) -> None:
        """Delete the cached files that it started with, since some of them do not work."""
        for name in self._cached if self.is_writable else ():
            with suppress(OSError):
                (self._folder / name).unlink()

    def remove(self) -> None:
        """Delete the folder; code loaded from it keeps running."""
        if os.getpid() == self._pid:  # not in a forked child
            shutil.rmtree(self.path, ignore_errors=True)

    def _link(self, name: str, path: Path) -> bool:
        link = self.path / name
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            try:
                link.symlink_to(path)
            except OSError:  # Windows without the privilege to create links
                shutil.copy2(path, link)
            self._saved[name] = _version_of(link)
        except FileNotFoundError:  # another job has just pruned it
            return False
        return True


def list_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the relative name and the path of each complete file in ``folder``."""
    for parent, subfolders, names in os.walk(folder):
        subfolders[:] = [name for name in subfolders if name not in _IGNORED_FOLDERS]
        for name in names:
            path = Path(parent, name)
            relative = path.relative_to(folder).as_posix()
            if not name.endswith(_IGNORED_SUFFIXES) and path.is_file():
                yield relative, path


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that becomes visible when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        # Not writable by others, whatever the umask is.
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _version_of(path: Path) -> tuple[int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns


def _prefix() -> str:
    user = os.getuid() if hasattr(os, "getuid") else "user"
    # Hosts may share the temporary folder, and number their processes separately.
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:64]
    return f"mm_compile_{user}_{host}_"


def _remove_stale_workspaces() -> None:
    """Remove the folders of killed processes."""
    for path in Path(tempfile.gettempdir()).glob(f"{_prefix()}*"):
        pid = path.name.removeprefix(_prefix()).partition("_")[0]
        # On Windows os.kill would end the process.
        if pid.isdigit() and sys.platform != "win32":
            try:
                os.kill(int(pid), 0)
            except ProcessLookupError:
                shutil.rmtree(path, ignore_errors=True)
            except OSError:  # of another user
                continue
