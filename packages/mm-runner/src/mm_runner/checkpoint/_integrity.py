"""Whether a checkpoint file is what was written: torch's archives carry checksums.

``torch.save`` writes a CRC-32 of every record, tensors included, and its own reader checks none.
"""

from __future__ import annotations

import os
import zipfile
from typing import TYPE_CHECKING

from mm_runner.errors import CheckpointError

from ._damage import damage_of

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_integrity"]

_CHUNK = 1 << 20
# In the attributes of a record; torch's reader reads nothing of it then, and returns any memory.
_IS_DIRECTORY = 0x10
# The end of an archive's directory, with the locator before it that large archives have.
_END = 20 + 22
_IN_LOCATOR = 0xFFFFFFFF


def check_integrity(path: Path, *, whole: bool = True) -> None:
    """Compare every record of an archive with its checksum, and their sizes with the file's.

    A record without one is passed over: ``torch.serialization.set_crc32_options(False)`` leaves
    them out.

    Args:
        path: The file.
        whole: Read the records; else only the directory.

    Raises:
        CheckpointError: If one differs, or the file is cut off, or holds a program.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            _refuse_program(path, records)
            _check_sizes(path, records, archive.start_dir)
            for record in (one for one in records if one.CRC != 0 and whole):
                with archive.open(record) as stream:
                    while stream.read(_CHUNK):  # compares at the end
                        pass
    except CheckpointError:
        raise
    except Exception as error:  # damaged bytes make the reader fail in any way
        raise CheckpointError(f"{path} is damaged: {damage_of(path, error)}.") from error
    if any(record.external_attr & _IS_DIRECTORY for record in records):
        raise CheckpointError(f"{path} is damaged: a record is marked as a directory.")


def _refuse_program(path: Path, records: list[zipfile.ZipInfo]) -> None:
    if any(record.filename.endswith("/constants.pkl") for record in records):
        raise CheckpointError(
            f"{path} is a TorchScript program; a checkpoint is needed. Load the program with "
            "torch.jit.load, and save its state_dict."
        )


def _check_sizes(path: Path, records: list[zipfile.ZipInfo], directory: int) -> None:
    """Refuse records that take more memory than the file has bytes, before any is read."""
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
