"""Whether a checkpoint file is what was written: torch's archives carry checksums.

``torch.save`` writes a CRC-32 of every record, tensors included, and its own reader checks none.
"""

from __future__ import annotations

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


def check_integrity(path: Path) -> None:
    """Compare every record of an archive with its checksum.

    A record without one is passed over: ``torch.serialization.set_crc32_options(False)`` leaves
    them out.

    Raises:
        CheckpointError: If one differs, or the file is cut off, or holds a program.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
            for record in (one for one in records if one.CRC != 0):
                with archive.open(record) as stream:
                    while stream.read(_CHUNK):  # compares at the end
                        pass
    except Exception as error:  # damaged bytes make the reader fail in any way
        raise CheckpointError(f"{path} is damaged: {damage_of(path, error)}.") from error
    if any(record.external_attr & _IS_DIRECTORY for record in records):
        raise CheckpointError(f"{path} is damaged: a record is marked as a directory.")
    if any(record.filename.endswith("/constants.pkl") for record in records):
        raise CheckpointError(
            f"{path} is a TorchScript program; a checkpoint is needed. Load the program with "
            "torch.jit.load, and save its state_dict."
        )
