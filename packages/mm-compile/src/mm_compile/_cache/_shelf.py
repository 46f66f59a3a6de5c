"""The part of a cache that fits this process: its bundles, and the folder they are used in."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

from mm_compile._counted import counted

from ._bundle import (
    Bundle,
    BundleError,
    DamagedBundleError,
    list_bundles,
    read_bundle,
    remove_drafts,
    write_bundle,
)
from ._directory import refusal_of
from ._inductor import (
    forget_loaded,
    keeping_graphs,
    probing_until_found,
    remembering_probes,
)
from ._key import CacheKey
from ._prune import note_use, prune
from ._source_hash import remembering_source_hash
from ._workspace import Workspace

_logger = logging.getLogger(__name__)
# Looking for what to remove costs a look at every bundle.
_PRUNE_EVERY = 32


class Shelf:
    """Compiled code of one key.

    Args:
        directory: The cache's directory.
        key: What the code must have been compiled for.
        is_writable: Whether anything may be written there.
        is_trusted: Whether code is taken from whoever can write there.

    Raises:
        OSError: If untrusted users can write there, or the temporary folder is full.

    Attributes:
        folder: Where the bundles of the key lie.
        marks: Names of the graphs whose code is at hand.
        is_writable: Whether what is compiled is still kept.
    """

    # What inductor has loaded it knows by content, for the whole process.
    _last_entered: ClassVar[Path | None] = None

    def __init__(
        self,
        directory: Path,
        key: CacheKey,
        *,
        is_writable: bool = True,
        is_trusted: bool = False,
    ) -> None:
        self.is_writable = is_writable
        self.folder = directory / key.name
        if not is_trusted and (refusal := refusal_of(self.folder)) is not None:
            raise PermissionError(refusal)
        self._is_trusted = is_trusted
        self.marks: set[str] = set()
        self._key = key
        self._read: set[str] = set()
        self._verdicts: dict[str, bool] = {}
        self._source_hashes: dict[str, str] = {}
        self._has_told_of_places = False
        # Where the code of each graph was read.
        self._sources: dict[str, Path] = {}
        self._num_written = 0
        # None once there can be none: the code of this process is not kept then.
        self._workspace: Workspace | None = Workspace()
        self.refresh()
        _logger.info(
            "compile: %s has code of %s for this run.",
            self.folder,
            counted(len(self.marks), "graph"),
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let inductor find and put its files here."""
        path = None if self._workspace is None else self._workspace.path
        if Shelf._last_entered != path:
            forget_loaded()
            Shelf._last_entered = path
        if self._workspace is None:
            yield
            return
        with ExitStack() as stack:
            stack.enter_context(self._workspace.entered())
            stack.enter_context(keeping_graphs())
            stack.enter_context(remembering_probes(self._verdicts))
            stack.enter_context(probing_until_found())
            stack.enter_context(remembering_source_hash(self._source_hashes))
            try:
                yield
            except (KeyboardInterrupt, SystemExit):
                # A compiler that inductor has started may still be writing.
                self.is_writable = False
                raise

    def refresh(self) -> None:
        """Take in what was published since."""
        if self._workspace is None:
            return
        bundles, refused = [], []
        for path in list_bundles(self.folder):
            if path.name in self._read:
                continue
            self._read.add(path.name)
            try:
                bundles.append(
                    (self._checked(read_bundle(path, is_trusted=self._is_trusted)), path)
                )
            except FileNotFoundError:
                continue  # another job has removed it: it had not been used for long
            except (BundleError, OSError) as error:
                refused.append((path, error))
        if refused:
            self._refuse(refused)
        # The newest first: it was written where an older one of the same graph did not work.
        try:
            for bundle, path in sorted(bundles, key=lambda each: each[0].created_s, reverse=True):
                self._take(bundle, path, self._workspace)
        except OSError as error:
            # A full disk leaves half a file.
            self.start_anew(error)

    def publish(self, mark: str | None) -> None:
        """Write what inductor has made since, for a graph or after all of them."""
        if self._workspace is None:
            return
        files = self._workspace.take_new()
        is_new = False
        if mark is not None and mark not in self.marks:
            self.refresh()
            if mark in self.marks:  # another machine was quicker
                return
            self.marks.add(mark)
            is_new = True
        if not (is_new or files) or not self.is_writable:
            return
        try:
            marks = [mark] if mark else []
            # What has failed may have failed for a reason that passes: a full disk, a slow one.
            verdicts = {name: works for name, works in self._verdicts.items() if works}
            bundle = Bundle(self._key, marks, files, verdicts, self._source_hashes)
            name = write_bundle(self.folder, bundle, is_shared=self._is_trusted)
            self._read.add(name)
            remove_drafts(self.folder)
            if self._num_written % _PRUNE_EVERY == 0:
                prune(self.folder.parent)
            self._num_written += 1
        except OSError as error:
            self.is_writable = False
            _logger.warning("compile: nothing more is kept in %s: %s", self.folder, error)

    def note_use(self, mark: str) -> None:
        """Note that the code of a graph was of use, so that it is kept."""
        path = self._sources.pop(mark, None)  # once for each process
        if path is not None:
            note_use(path)

    def start_anew(self, error: Exception) -> None:
        """Forget everything that was read, since some of it does not work."""
        _logger.warning(
            "compile: code from %s cannot be used here and is compiled again: %s: %s",
            self.folder,
            type(error).__name__,
            str(error).partition("\n")[0],
        )
        self.marks.clear()
        self._verdicts.clear()
        self._source_hashes.clear()
        if self._workspace is not None:
            self._workspace.remove()
        try:
            self._workspace = Workspace()
        except OSError as reason:
            self._workspace, self.is_writable = None, False
            _logger.warning("compile: the cache is not used any more: %s", reason)

    def close(self) -> None:
        """Write the rest, and remove the folder."""
        with suppress(OSError):
            self.publish(None)
        if self._workspace is not None:
            self._workspace.remove()

    def _refuse(self, refused: Sequence[tuple[Path, Exception]]) -> None:
        damaged = [path for path, error in refused if isinstance(error, DamagedBundleError)]
        num_removed = 0
        for path in damaged if self.is_writable else ():
            # Each start would tell of it. Nobody is writing it: it got its name when it was whole.
            with suppress(OSError):
                path.unlink()
                num_removed += 1
        path, error = refused[0]
        _logger.warning(
            "compile: %d files in %s are ignored%s (%s: %s).",
            len(refused),
            self.folder,
            f"; {num_removed} damaged ones are removed" if num_removed else "",
            path.name[:12],
            error,
        )

    def _checked(self, bundle: Bundle) -> Bundle:
        if bundle.key.name != self._key.name:
            raise BundleError("it was made for another torch, machine or config")
        return bundle

    def _take(self, bundle: Bundle, path: Path, workspace: Workspace) -> None:
        if bundle.marks and self.marks.issuperset(bundle.marks):
            return
        self._sources.update(dict.fromkeys(bundle.marks, path))
        if not bundle.marks:  # results of autotuning, code for other settings: of use to all
            note_use(path)
        workspace.put(bundle.files)
        if bundle.key.places == self._key.places:
            self.marks.update(bundle.marks)
            self._verdicts.update(bundle.verdicts)
            self._source_hashes.update(bundle.source_hashes)
        elif not self._has_told_of_places:
            self._has_told_of_places = True
            changes = [
                f"{name} lay in {place}, here in {self._key.places.get(name)}"
                for name, place in bundle.key.places.items()
                if self._key.places.get(name) != place
            ]
            _logger.warning(
                "compile: code in %s comes from an installation that lies elsewhere (%s): its C++ "
                "is built again.",
                self.folder,
                "; ".join(changes),
            )
