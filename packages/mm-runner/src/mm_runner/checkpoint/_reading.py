"""Safe reading of checkpoint files.

A file is data: no code in it runs, declared sizes are compared with the file's before memory is
taken, and checksums are compared: ``torch.save`` writes a CRC-32 of every record of its archive,
and torch's own reader checks none.
"""

from __future__ import annotations

import os
import pickle
import warnings
import zipfile
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from typing_extensions import override

from mm_runner._torch_private import read_with
from mm_runner._untrusted import check_nesting
from mm_runner.errors import CheckpointError

from ._content import FORMAT_VERSION, first_line

if TYPE_CHECKING:
    from pathlib import Path

# What an archive begins with.
_ARCHIVE = b"PK\x03\x04"
_CHUNK = 1 << 20
# In the attributes of a record; torch's reader reads nothing of it then, and returns any memory.
_IS_DIRECTORY = 0x10
# The end of an archive's directory, with the locator before it that large archives have.
_END = 20 + 22
_IN_LOCATOR = 0xFFFFFFFF
_OF_TENSORS = {
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.storage", "UntypedStorage"),
    ("torch._utils", "_rebuild_parameter"),
    *(("torch._utils", f"_rebuild_tensor{version}") for version in ("", "_v2", "_v3")),
}
# Not in typeshed's type information.
_Unpickler: Any = pickle._Unpickler  # noqa: SLF001 - C's lets no opcode be overridden


def check_file(path: Path, *, checksums: bool = True) -> bool:
    """Check a file before it is read, and return whether it is an archive.

    A record without a checksum is passed over: ``torch.serialization.set_crc32_options(False)``
    leaves them out.

    Args:
        path: The file.
        checksums: Compare them, which reads the whole file.

    Raises:
        CheckpointError: If it is absent or cut off, a checksum differs, it declares more bytes than
            it has, or it is a program.
    """
    if not os.path.isfile(path):  # noqa: PTH113 - is_file() raises if the name is too long
        raise CheckpointError(f"The checkpoint {path} was asked for; there is no such file.")
    # Either end may be damaged: torch goes by the beginning, Python's reader by the end.
    if not (_begin_of(path).startswith(_ARCHIVE) or _has_end(path)):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            _check_directory(path, records, archive.start_dir)
            for record in (one for one in records if one.CRC != 0 and checksums):
                with archive.open(record) as stream:
                    while stream.read(_CHUNK):  # compares at the end
                        pass
    except CheckpointError:
        raise
    except Exception as error:  # damaged bytes make the reader fail in any way
        raise damaged(path, error) from error
    return True


def _check_directory(path: Path, records: list[zipfile.ZipInfo], directory: int) -> None:
    """Refuse a program, records larger than the file, and a second directory."""
    if any(record.filename.endswith("/constants.pkl") for record in records):
        raise CheckpointError(
            f"{path} is a TorchScript program; a checkpoint is needed. Load the program with "
            "torch.jit.load, and save its state_dict."
        )
    if any(record.external_attr & _IS_DIRECTORY or record.is_dir() for record in records):
        raise CheckpointError(f"{path} is damaged: a record is marked as a directory.")
    num_bytes, unpacked = path.stat().st_size, sum(record.file_size for record in records)
    if unpacked > num_bytes:
        raise CheckpointError(
            f"{path} unpacks to {unpacked:,} bytes, and the file has {num_bytes:,}; torch.save "
            "compresses nothing. Unpack it and save it again with torch.save, if you trust it."
        )
    with path.open("rb") as file:
        file.seek(-_END, os.SEEK_END)
        end = file.read()
        begin = int.from_bytes(end[-6:-2], "little")
        if begin == _IN_LOCATOR:  # it is in the record that the locator before names
            file.seek(int.from_bytes(end[8:16], "little") + 48)
            begin = int.from_bytes(file.read(8), "little")
    # Readers differ in where they look for it, so that each could find another one.
    if begin != directory:
        raise CheckpointError(f"{path} is damaged: its directory is not where its end says.")


def read_file(
    path: Path, *, is_mapped: bool = False, unpickler: type[TensorUnpickler] | None = None
) -> dict[str, Any]:
    """Read a file onto the CPU.

    Args:
        path: The file.
        is_mapped: Leave tensors in the file, which must not change, until they are used, and
            compare no checksums. Before torch 2.1 they are read.
        unpickler: Decides which names the file may use; by default those of tensors. torch's own
            safe loader allows more, by which a small file takes much memory.

    Raises:
        CheckpointError: If it is absent, damaged, or holds pickled objects.
    """
    is_archive = check_file(path, checksums=not is_mapped)
    reader, how = unpickler or TensorUnpickler, {"is_archive": is_archive, "is_mapped": is_mapped}
    try:
        with warnings.catch_warnings():
            # torch 2.0's own loader raises it.
            warnings.filterwarnings("ignore", "TypedStorage is deprecated")
            checkpoint = read_with(reader, path, **how)
        check_nesting(checkpoint, path.stat().st_size)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        refused = isinstance(error, RefusalError)
        if not (is_archive or refused):
            raise damaged(path, error) from error
        convert = f" Try 'mm-runner convert {path} <new file>'."
        raise CheckpointError(
            f"{path} holds something besides tensors and primitives"
            f"{f': {error}' if refused else ''}. It is refused, and nothing in it was executed."
            f"{convert if unpickler is None else ''} A program that trusts it can save its "
            "state_dict again with torch.save."
        ) from error
    except Exception as error:  # damaged bytes make torch's loader fail in any way
        raise damaged(path, error) from error
    if not isinstance(checkpoint, dict):
        raise CheckpointError(f"{path} holds a {type(checkpoint).__name__}, not a dict.")
    meta = checkpoint.get("meta")
    version = meta.get("format_version") if isinstance(meta, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format {version}; this mm-runner reads formats up to {FORMAT_VERSION}. "
            "Upgrade mm-runner."
        )
    return checkpoint


def damaged(path: Path, error: BaseException) -> CheckpointError:
    """Return the error for an unreadable file, described by its size and first bytes.

    Args:
        path: The file.
        error: Raised by the loader; its reason follows what looks like a checkpoint.
    """
    begin, what = _begin_of(path), first_line(error).split(". ")[0].rstrip(".")
    if isinstance(error, pickle.UnpicklingError):
        what = "a part of it cannot be read"
    if not begin:
        what = "it is empty"
    elif not _has_end(path):
        size = path.stat().st_size
        what = f"it is cut off, or no checkpoint: {size:,} bytes that begin with {begin!r}"
    return CheckpointError(f"{path} is damaged: {what}.")


def _begin_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(16)
    except OSError:  # the disk does not give it
        return b""


def _has_end(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except (zipfile.BadZipFile, OSError):  # the end of the file is damaged
        return False


class RefusalError(pickle.UnpicklingError):
    """Something that a file holds and its unpickler does not allow; the file is not damaged."""


class RestrictedUnpickler(_Unpickler):  # type: ignore[misc]
    """Unpickler that sets state of allowed classes only, and loads storages only.

    A subclass decides in ``find_class`` which names a file may use.
    """

    # Classes whose instances take their state from a file, by their own __setstate__.
    with_state: tuple[type, ...] = ()
    dispatch: ClassVar[dict[int, Any]] = dict(_Unpickler.dispatch)

    def load_build(self) -> None:
        """Set the state of the object on the stack; functions and classes have none to set."""
        state = self.stack.pop()
        target = self.stack[-1]
        if type(target) is OrderedDict:  # a state_dict, whose only attribute is its metadata
            if isinstance(state, dict) and "_metadata" in state:
                vars(target)["_metadata"] = state["_metadata"]
        elif not isinstance(target, self.with_state):
            raise RefusalError(f"it sets the state of a {type(target).__name__}")
        elif hasattr(type(target), "__setstate__"):
            target.__setstate__(state)  # type: ignore[attr-defined]
        else:
            vars(target).update(state)

    def load_reduce(self) -> None:
        """Call an allowed function; torch.save never gives OrderedDict arguments."""
        if self.stack[-1] and self.stack[-2] is OrderedDict:
            raise RefusalError("it calls OrderedDict with arguments")
        super().load_reduce()

    def load_persistent(self) -> None:
        """Load a storage; torch would write a file for the id of a module."""
        saved_id = self.stack.pop()
        is_storage = isinstance(saved_id, tuple) and saved_id[:1] in (("storage",), (b"storage",))
        if not is_storage:
            raise RefusalError("it refers to something besides a storage")
        self.stack.append(self.persistent_load(saved_id))

    def refuse(self) -> None:
        """Refuse an opcode that torch.save does not write."""
        raise pickle.UnpicklingError("an opcode that torch.save does not write")

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BINPERSID[0]] = load_persistent
    dispatch[pickle.REDUCE[0]] = load_reduce
    # Extension codes bypass find_class, INST and OBJ bypass load_reduce, and BYTEARRAY8 allocates
    # the size it declares.
    _others = pickle.PERSID + pickle.EXT1 + pickle.EXT2 + pickle.EXT4 + pickle.INST + pickle.OBJ
    dispatch.update(dict.fromkeys(_others + pickle.BYTEARRAY8, refuse))


class TensorUnpickler(RestrictedUnpickler):
    """Build tensors and primitives only."""

    @override
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and (module, name) not in _OF_TENSORS:
            raise RefusalError(f"it names {module}.{name}")
        return super().find_class(module, name)
