"""What a power cut may leave of a directory, from the record of everything that was done to it.

The model is POSIX's, and no kinder: what was written is on the disk once its file was
synchronized, what a directory says once that directory was; before, data may be there in whole, in
part or not at all, and changes of the directory up to any of them, in their order.
"""

import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

# Parts of unsynchronized data that reached the disk.
_PARTS = (0.0, 0.5, 1.0)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class DiskRecord:
    """The steps taken in a directory, each of which a power cut may follow.

    Args:
        directory: Empty; folders in it are not looked at.

    Attributes:
        steps: ``("create", name)``, ``("data", name, content)``, ``("sync", name)``,
            ``("rename", old, new)``, ``("remove", name)``, ``("sync_directory",)``, and what
            ``note`` adds.
    """

    def __init__(self, directory):
        self.directory = Path(directory)
        self.steps = []
        self._unsynced = {}

    def note(self, *step):
        """Add a step of one's own, such as that a save has returned."""
        self.steps.append(step)

    @contextmanager
    def recording(self):
        """Record what this process does in the directory, by any thread."""
        _hook.records.append(self)
        if not _hook.is_installed:
            # An audit hook stays for good; it does nothing when nobody records.
            sys.addaudithook(_hook)
            _hook.is_installed = True
        fsync = os.fsync
        os.fsync = lambda file: (self.on_sync(file), fsync(file))[1]
        try:
            yield self
        finally:
            os.fsync = fsync
            _hook.records.remove(self)

    def on_event(self, event, arguments):
        """Take in what the interpreter is about to do."""
        if event == "open" and isinstance(arguments[0], (str, os.PathLike)):
            name = self._name(arguments[0])
            if name and arguments[2] & _WRITING:
                self._look_at_data()
                self.steps.append(("create", name))
                self._unsynced[name] = b""
        elif event == "os.rename":
            old, new = map(self._name, arguments[:2])
            if old and new:
                self._look_at_data()
                self.steps.append(("rename", old, new))
                if old in self._unsynced:
                    self._unsynced[new] = self._unsynced.pop(old)
        elif event == "os.remove" and (name := self._name(arguments[0])):
            self.steps.append(("remove", name))
            self._unsynced.pop(name, None)

    def on_sync(self, file):
        """Take in that a file or directory is about to be synchronized."""
        number = file if isinstance(file, int) else file.fileno()
        path = Path(f"/proc/self/fd/{number}").readlink()
        self._look_at_data()
        if path == self.directory:
            self.steps.append(("sync_directory",))
        elif name := self._name(path):
            self.steps.append(("sync", name))
            self._unsynced.pop(name, None)

    def _look_at_data(self):
        for name, known in list(self._unsynced.items()):
            path = self.directory / name
            content = path.read_bytes() if path.exists() else known
            if content != known:
                self._unsynced[name] = content
                self.steps.append(("data", name, content))

    def _name(self, path):
        path = Path(path)
        return path.name if path.parent == self.directory else None


class _Hook:
    def __init__(self):
        self.records, self.is_installed, self._own = [], False, threading.local()

    def __call__(self, event, arguments):
        is_of_interest = event in ("open", "os.rename", "os.remove")
        if not self.records or not is_of_interest or getattr(self._own, "is_busy", False):
            return
        # Reading what was written opens files, too.
        self._own.is_busy = True
        try:
            for record in self.records:
                record.on_event(event, arguments)
        finally:
            self._own.is_busy = False


_hook = _Hook()


def states_after_cuts(steps):
    """Yield ``(steps done, {name: content})`` for all that a power cut may leave.

    Args:
        steps: Of a ``DiskRecord``.
    """
    seen = set()
    for count in range(len(steps) + 1):
        changes, contents, synced, num_sure = _replay(steps[:count])
        for num_kept in range(num_sure, len(changes) + 1):
            names = _apply(changes[:num_kept])
            for part in _PARTS:
                state = {
                    name: contents[file]
                    if file in synced
                    else contents[file][: int(part * len(contents[file]))]
                    for name, file in names.items()
                }
                key = (_last_note(steps[:count]), frozenset(state.items()))
                if key not in seen:
                    seen.add(key)
                    yield count, state


def _replay(steps):
    """Return changes of the directory, contents by file, what is synchronized, and sure changes.

    Files are numbered: a name may be given to several, one after the other.
    """
    changes, contents, synced, names, num_sure = [], [], set(), {}, 0
    for kind, *arguments in steps:
        if kind == "create":
            names[arguments[0]] = len(contents)
            contents.append(b"")
            changes.append(("link", arguments[0], names[arguments[0]]))
        elif kind == "data":
            contents[names[arguments[0]]] = arguments[1]
        elif kind == "sync":
            synced.add(names[arguments[0]])
        elif kind == "rename":
            old, new = arguments
            names[new] = names.pop(old)
            changes.append(("rename", old, new))
        elif kind == "remove":
            names.pop(arguments[0], None)
            changes.append(("remove", arguments[0]))
        elif kind == "sync_directory":
            num_sure = len(changes)
    return changes, contents, synced, num_sure


def _apply(changes):
    names = {}
    for kind, *arguments in changes:
        if kind == "link":
            names[arguments[0]] = arguments[1]
        elif kind == "rename":
            names[arguments[1]] = names.pop(arguments[0])
        else:
            names.pop(arguments[0], None)
    return names


def _last_note(steps):
    return max((index for index, step in enumerate(steps) if step[0] == "saved"), default=-1)
