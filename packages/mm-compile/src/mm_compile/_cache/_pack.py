"""A cache packed into one file, and unpacked."""

import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from mm_compile._errors import CacheFileError

from ._directory import FOLDER_NAME, make_folder, parse_directory, refusal_of

# Such names cannot be absolute, leave the directory, or be hidden.
_MEMBER = re.compile(r"(?!\.)[\w.,=+-]+(/(?!\.)[\w.,=+-]+)*", re.ASCII)
# Locks, drafts, and intermediate results of a compiler.
_IGNORED = re.compile(r"(.*/)?locks/.*|.*\.(lock|tmp|o|gch)")
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    UnicodeDecodeError,
)
# Code compresses to a tenth.
_MAX_RATIO = 100


def pack_cache(directory: str | os.PathLike[str], file: str | os.PathLike[str]) -> int:
    """Pack the cache in ``directory`` into one file.

    Packs the code of every torch and machine. The file replaces an older one when it is complete.
    Pack when no job compiles, or a file may be incomplete; it is compiled again where it is used.

    Args:
        directory: The ``cache`` of :func:`mm_compile.compile_model`.
        file: The zip file to write.

    Returns:
        The number of files packed.

    Raises:
        CacheFileError: If there is no compiled code in ``directory``, other users can write there,
            or ``file`` cannot be written.
        ConfigError: If ``directory`` cannot be a cache.

    Example:
        >>> pack_cache("work_dirs/compile_cache", "cache.zip")  # doctest: +SKIP
        12
    """
    place = parse_directory(directory, "the directory for pack_cache")
    folders = [path for path in sorted(place.glob("torch-*")) if FOLDER_NAME.fullmatch(path.name)]
    for folder in folders:
        if (refusal := refusal_of(place, folder)) is not None:
            raise CacheFileError(f"{place} is not packed: {refusal}.")
    members = dict(_find_members(place, folders))
    if not members:
        raise CacheFileError(
            f"{place} holds no compiled code to pack. Name the directory given as cache "
            "to compile_model, after a run that has compiled."
        )
    return _write_zip(Path(file), members)


def unpack_cache(file: str | os.PathLike[str], directory: str | os.PathLike[str]) -> int:
    """Unpack a file of :func:`pack_cache` into a cache's directory, beside what is there.

    Compiled code is a program: unpack files only of people whose programs you would run.

    Args:
        file: A file of :func:`pack_cache`.
        directory: The cache's directory; created, for this user alone, if it is missing.

    Returns:
        The number of files added; files that existed are kept and not counted.

    Raises:
        CacheFileError: If it is no such file, or damaged, and nothing was unpacked; or if the
            directory cannot be written.
        ConfigError: If ``directory`` cannot be a cache.

    Example:
        >>> unpack_cache("cache.zip", "/scratch/compile_cache")  # doctest: +SKIP
        12
    """
    file = Path(file)
    directory = parse_directory(directory, "the directory for unpack_cache")
    try:
        with zipfile.ZipFile(file) as archive:
            _check_members(file, archive)
            names = [name for name in archive.namelist() if not (directory / name).exists()]
            for name in names:
                _add(archive, name, directory)
    except _DAMAGED as error:
        raise CacheFileError(f"{file} is no file of pack_cache, or damaged: {error}.") from error
    except OSError as error:
        raise CacheFileError(
            f"{file} cannot be unpacked into {directory}: {error.strerror or error}."
        ) from error
    return len(names)


def _find_members(place: Path, folders: list[Path]) -> Iterator[tuple[str, Path]]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(place).as_posix()
            if path.is_file() and _MEMBER.fullmatch(name) and not _IGNORED.fullmatch(name):
                yield name, path


def _write_zip(file: Path, members: Mapping[str, Path]) -> int:
    draft = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, path in members.items():
                archive.write(path, name)
        draft.replace(file)
    except OSError as error:
        raise CacheFileError(
            f"{file} cannot be written: {error.strerror}. Name a file elsewhere."
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink()
    return len(members)


def _check_members(file: Path, archive: zipfile.ZipFile) -> None:
    """Check names, sizes and checksums, before anything is unpacked."""
    members = archive.infolist()
    if sum(each.file_size for each in members) > _MAX_RATIO * file.stat().st_size:
        raise CacheFileError(f"{file} declares more than it holds; nothing was unpacked.")
    for each in members:
        folder = each.filename.partition("/")[0]
        if not (_MEMBER.fullmatch(each.filename) and FOLDER_NAME.fullmatch(folder)):
            raise CacheFileError(
                f"{file} has a member {each.filename!r}, which pack_cache does not write; "
                "nothing was unpacked."
            )
        if each.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise CacheFileError(
                f"{file} is not compressed as by pack_cache; nothing was unpacked."
            )
    damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"checksum of {damaged}")


def _add(archive: zipfile.ZipFile, name: str, directory: Path) -> None:
    """Unpack a file that becomes visible when it is complete; not writable by others."""
    target, folder = directory / name, directory / name.partition("/")[0]
    if folder.is_symlink():
        raise CacheFileError(f"{folder} is a link, which a cache does not have. Remove it.")
    make_folder(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    draft.write_bytes(archive.read(name))
    draft.chmod(0o644)
    draft.replace(target)
