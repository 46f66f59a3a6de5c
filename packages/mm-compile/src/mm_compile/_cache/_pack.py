"""A cache as one file, to be stored or sent to machines of the same kind."""

import hashlib
import os
import shutil
import tempfile
import uuid
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mm_compile._errors import CacheFileError, ConfigError

from ._bundle import (
    BUNDLE_NAME,
    FOLDER_NAME,
    BundleError,
    list_bundles,
    list_folders,
    read_bundle,
    write_private,
)
from ._directory import check_directory, make_folder, parse_cache, refusal_of

_DESCRIPTION = b"A compile cache of mm-compile; unpack it with mm_compile.unpack_cache.\n"


def pack_cache(
    directory: str | os.PathLike[str] | Mapping[str, Any], file: str | os.PathLike[str]
) -> int:
    """Pack the cache in ``directory`` into one file.

    Takes what is whole, for every torch and machine that has written there; jobs may go on using
    the cache meanwhile. The file appears when it is complete, and replaces an older one.

    Args:
        directory: What was the ``cache`` of :func:`mm_compile.compile_model`; from one that other
            users can write, nothing is packed unless it says ``trusted=True``.
        file: The file to write; a zip.

    Returns:
        How many bundles of compiled code it holds.

    Raises:
        CacheFileError: If there is no compiled code in ``directory``, other users can write there,
            or ``file`` cannot be written.
        ConfigError: If ``directory`` cannot be a cache.

    Example:
        >>> pack_cache("work_dirs/compile_cache", "cache.zip")  # doctest: +SKIP
        3
    """
    place, is_trusted = parse_cache(directory)
    if place is None:
        raise ConfigError("pack_cache got False; it takes the directory of a cache.")
    file = Path(file)
    folders = list_folders(place)
    for path in () if is_trusted else (place, *folders):
        if (refusal := refusal_of(path)) is not None:
            raise CacheFileError(f"{place} is not packed: {refusal}.")
    bundles = [path for folder in folders for path in list_bundles(folder)]
    draft = file.with_name(f".{uuid.uuid4().hex}.tmp")
    num_packed = 0
    try:
        # Bundles are compressed.
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as archive:
            archive.comment = _DESCRIPTION
            for path in bundles:
                # A job may remove one meanwhile, for its age.
                with suppress(FileNotFoundError):
                    if _is_whole(path, is_trusted=is_trusted):
                        archive.write(path, f"{path.parent.name}/{path.name}")
                        num_packed += 1
        if not num_packed:
            raise CacheFileError(
                f"{place} holds no compiled code to pack. Name the directory given as cache "
                "to compile_model, after a run that has compiled."
            )
        draft.replace(file)
    except OSError as error:
        raise CacheFileError(
            f"{file} cannot be written: {error.strerror}. Name a file elsewhere."
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink()
    return num_packed


def unpack_cache(file: str | os.PathLike[str], directory: str | os.PathLike[str]) -> int:
    """Unpack a file of :func:`pack_cache` into a cache's directory, beside what is there.

    The file is read as a list of bundles and as nothing else: one with any other member, or a
    bundle that is not what its name says, is refused as a whole. Compiled code is a program: unpack
    files only of people whose programs you would run.

    Args:
        file: A file of :func:`pack_cache`.
        directory: The cache's directory; created, for this user alone, if need be.

    Returns:
        How many bundles were added; those that were there are not counted.

    Raises:
        CacheFileError: If it is no such file, or damaged. Nothing was unpacked then.
        ConfigError: If ``directory`` cannot be one. It is not created then.

    Example:
        >>> unpack_cache("cache.zip", "/scratch/compile_cache")  # doctest: +SKIP
        3
    """
    file = Path(file)
    directory = check_directory(directory, name="the directory for unpack_cache")
    new = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    # Beside its destination, so that bundles are renamed and not copied.
    draft = Path(tempfile.mkdtemp(prefix=".unpack_", dir=directory))
    try:
        members = _extract(file, draft)
        return sum(_move(draft / name, directory / name) for name in members)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        # What stayed empty, since nothing was unpacked.
        with suppress(OSError):
            for path in new:
                path.rmdir()


def _extract(file: Path, draft: Path) -> list[str]:
    try:
        opened = file.open("rb")
    except OSError as error:
        raise CacheFileError(
            f"{file} cannot be read: {error.strerror}. Name a file of pack_cache."
        ) from error
    try:
        with opened, zipfile.ZipFile(opened) as archive:
            names = archive.namelist()
            # They are stored as they are: what declares more than the file holds is no such file.
            if sum(each.file_size for each in archive.infolist()) > file.stat().st_size:
                raise CacheFileError(f"{file} declares more than it holds; nothing was unpacked.")
            for name in names:
                _check_member(file, name)
                content = archive.read(name)
                if hashlib.sha256(content).hexdigest() != name.partition("/")[2][:64]:
                    raise CacheFileError(f"{file} is damaged in {name!r}; nothing was unpacked.")
                (draft / name).parent.mkdir(exist_ok=True)
                write_private(draft / name, content)
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        EOFError,
        FileExistsError,
    ) as error:
        if isinstance(error, CacheFileError):
            raise
        raise CacheFileError(f"{file} is no file of pack_cache, or damaged: {error}.") from error
    return names


def _check_member(file: Path, name: str) -> None:
    # With such names there are no links, no paths out of the directory and no other folders.
    folder, _, bundle = name.partition("/")
    if not FOLDER_NAME.fullmatch(folder) or not BUNDLE_NAME.fullmatch(bundle):
        raise CacheFileError(
            f"{file} has a member {name!r}, which pack_cache does not write; nothing was unpacked."
        )


def _move(source: Path, destination: Path) -> bool:
    if destination.exists():
        return False
    make_folder(destination.parent)
    source.replace(destination)
    return True


def _is_whole(path: Path, *, is_trusted: bool) -> bool:
    try:
        return read_bundle(path, is_trusted=is_trusted).key.name == path.parent.name
    except (BundleError, OSError):
        return False
