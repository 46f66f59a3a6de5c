"""Compiled code on disk: files that are complete or not there, and prove what they are.

A bundle is one zip file that is named by the hash of its bytes. It is written under another name
and renamed, never changed, and read as a whole. So two jobs may write at once, a killed one leaves
nothing but a temporary file, and damage shows before anything of it is used.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import time
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ._directory import distrust_reason, make_folder
from ._key import CacheKey

SUFFIX = ".bundle"
BUNDLE_NAME = re.compile(r"[0-9a-f]{64}\.bundle")
FOLDER_NAME = re.compile(r"torch-[A-Za-z0-9_.+-]{1,64}-[0-9a-f]{24}")
_MANIFEST = "manifest.json"
# A writer that takes longer was killed.
_STALE_S = 3600.0


class BundleError(ValueError):
    """A bundle is damaged, or was made for something else."""


class DamagedBundleError(BundleError):
    """A bundle is not what was once written under its name, and never will be again."""


@dataclass(frozen=True)
class Bundle:
    """Files that compiling some graphs left.

    Attributes:
        key: What they were compiled for.
        marks: Names of the graphs.
        files: Contents by relative path, with slashes.
        verdicts: What inductor found out about the machine.
        source_hashes: Of torch's sources, by their state.
        created_s: When, in seconds since 1970.
    """

    key: CacheKey
    marks: Sequence[str]
    files: Mapping[str, bytes]
    verdicts: Mapping[str, bool] = field(default_factory=dict)
    source_hashes: Mapping[str, str] = field(default_factory=dict)
    created_s: float = field(default_factory=time.time)


def write_bundle(folder: Path, bundle: Bundle, *, is_shared: bool = False) -> str:
    """Publish a bundle in ``folder``, all or nothing.

    Args:
        folder: Where; created if need be.
        bundle: What.
        is_shared: Whether other users are to write in the cache, too.

    Returns:
        The name of the bundle.

    Raises:
        OSError: If the disk is full, for example.
    """
    manifest = {
        "facts": dict(bundle.key.facts),
        "places": dict(bundle.key.places),
        "marks": list(bundle.marks),
        "verdicts": dict(bundle.verdicts),
        "source_hashes": dict(bundle.source_hashes),
        "created_s": bundle.created_s,
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(_MANIFEST, json.dumps(manifest, sort_keys=True))
        for name in sorted(bundle.files):
            archive.writestr(name, bundle.files[name])
    content = buffer.getvalue()
    name = hashlib.sha256(content).hexdigest() + SUFFIX
    make_folder(folder, is_shared=is_shared)
    write_atomically(folder / name, content)
    return name


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file that is seen by others only when it is complete."""
    draft = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        write_private(draft, content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that nobody else can write, whatever the umask is."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags, 0o644), "wb") as file:
        file.write(content)


def read_bundle(path: Path, *, is_trusted: bool = False) -> Bundle:
    """Read a bundle, and believe nothing that its name does not prove.

    Args:
        path: The file.
        is_trusted: Whether it may be a file that other users can write.

    Raises:
        DamagedBundleError: If it is not what was written under this name.
        BundleError: If it is nothing that this package has written.
        OSError: If it cannot be read.
    """
    with path.open("rb") as file:
        reason = None if is_trusted else distrust_reason(os.fstat(file.fileno()))
        if reason is not None:
            raise BundleError(reason)
        content = file.read()
    if hashlib.sha256(content).hexdigest() + SUFFIX != path.name:
        raise DamagedBundleError("its content is not what its name says")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            names = [name for name in archive.namelist() if name != _MANIFEST]
            files = {_checked(name): archive.read(name) for name in names}
        return Bundle(
            key=CacheKey(dict(manifest["facts"]), dict(manifest["places"])),
            marks=[str(mark) for mark in manifest["marks"]],
            files=files,
            verdicts={str(name): bool(value) for name, value in manifest["verdicts"].items()},
            source_hashes={
                str(state): bytes.fromhex(value).hex()
                for state, value in manifest.get("source_hashes", {}).items()
            },
            created_s=float(manifest["created_s"]),
        )
    except Exception as error:  # what somebody else has written may be anything
        raise BundleError(f"it is no bundle of this package ({error})") from error


def list_bundles(folder: Path) -> list[Path]:
    """List the bundles of a folder; nothing if there is no folder."""
    try:
        return sorted(path for path in folder.iterdir() if BUNDLE_NAME.fullmatch(path.name))
    except OSError:
        return []


def list_folders(directory: Path) -> list[Path]:
    """List the folders of a cache, one for each key; nothing if there is no cache."""
    if not directory.is_dir():
        return []
    return sorted(
        path for path in directory.iterdir() if FOLDER_NAME.fullmatch(path.name) and path.is_dir()
    )


def remove_drafts(folder: Path) -> None:
    """Remove what killed writers have left."""
    for draft in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - draft.stat().st_mtime > _STALE_S:
                draft.unlink()


def _checked(name: str) -> str:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or re.search(r"[\\:\0]", name):
        raise BundleError(f"{name!r} is no path inside of a folder")
    return name
