"""Reading torch's files with an unpickler that allows only what it knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ._archive import is_archive

__all__ = ["load_restricted"]

# torch's type information does not list these names.
_SERIALIZATION: Any = torch.serialization


def load_restricted(path: Path, pickle_module: Any) -> Any:
    """Read a file of ``torch.save`` onto the CPU.

    Args:
        path: The file.
        pickle_module: Has the only ``Unpickler``, and ``load``, that may be used.
    """
    if hasattr(torch, "compile"):
        return torch.load(path, map_location="cpu", weights_only=False, pickle_module=pickle_module)
    # torch 1.13 takes the argument pickle_module, and unpickles with Python's own all the same.
    options = {"encoding": "utf-8"}
    with path.open("rb") as file:
        if not is_archive(path):
            return _SERIALIZATION._legacy_load(file, "cpu", pickle_module, **options)  # noqa: SLF001
        with _SERIALIZATION._open_zipfile_reader(file) as archive:  # noqa: SLF001
            return _SERIALIZATION._load(archive, "cpu", pickle_module, **options)  # noqa: SLF001
