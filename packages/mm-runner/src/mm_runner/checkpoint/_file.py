"""Atomic writing and safe reading of checkpoint files."""

from __future__ import annotations

import inspect
import os
import pickle
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mm_runner._torch_private import read_with
from mm_runner._untrusted import check_nesting
from mm_runner.errors import CheckpointError

from ._archive import check_archive, check_exists, damaged, is_archive, refused_global
from ._atomic import write_atomically
from ._content import SHARDED_VERSION
from ._shards import SHARDS, join_shards
from ._unpickling import TensorUnpickler

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["load_checkpoint_file", "save_checkpoint_file"]


def save_checkpoint_file(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write ``checkpoint`` so that ``path`` is at any moment either absent, the old or the new.

    Raises:
        CheckpointWriteError: If the file cannot be written; what was there before is untouched.
    """

    def write(file: Any) -> None:
        sink: Any = _Sink(file)  # torch's type information wants more of a file than torch
        torch.save(dict(checkpoint), sink)
        if sink.error is not None:
            raise sink.error

    write_atomically(path, write)


class _Sink:
    """A file whose first error is kept for later.

    torch's writer of archives cannot end otherwise: in older versions its destructor then aborts
    the process, and in newer ones a full disk is "unexpected pos".
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Do nothing: whoever opened the file does that."""


def load_checkpoint_file(path: str | os.PathLike[str], *, outline: bool = False) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, checksums compared; no code in the file is run.

    Args:
        path: The file.
        outline: For a process that another one gives the tensors: neither read them nor compare
            checksums. Tensors stay in the file until one is looked at, which must not change or
            be removed meanwhile (before torch 2.1 they are read); sharded ones have a shape only,
            on the device "meta".

    Raises:
        CheckpointError: If the file, or its folder, is absent, damaged, or holds pickled objects.
    """
    path = Path(path)
    check_exists(path)
    # torch 2.6 closed ways around its loader of safe files, and brought this function with it.
    if not hasattr(torch.serialization, "get_unsafe_globals_in_checkpoint"):
        warnings.warn(
            f"torch {torch.__version__} reads checkpoints with a loader whose safety has known "
            "holes; load only files that you trust, or use torch >= 2.6.",
            stacklevel=3,
        )
    checkpoint = _read(path, outline=outline)
    if SHARDS in checkpoint:
        join_shards(checkpoint, path, outline=outline)
    return checkpoint


def _read(path: Path, *, outline: bool) -> dict[str, Any]:
    with_checksums = is_archive(path)
    if with_checksums:
        check_archive(path, whole=not outline)
    try:
        checkpoint = _load_safely(path, stays_in_file=with_checksums and outline)
        check_nesting(checkpoint, path.stat().st_size)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        name = refused_global(error)
        if not (with_checksums or name):
            raise damaged(path, error) from error
        raise CheckpointError(
            f"{path} holds something besides tensors and primitives"
            f"{f': it names {name}' if name else ''}. It is refused, and nothing in it was "
            f"executed. If MMEngine wrote it, convert it with 'mm-runner convert {path} <new "
            "file>'; else save its state_dict again with torch.save, from a program that trusts it."
        ) from error
    except Exception as error:  # damaged bytes make torch's loader fail in any way
        raise damaged(path, error) from error
    if not isinstance(checkpoint, dict):
        raise CheckpointError(f"{path} holds a {type(checkpoint).__name__}, not a dict.")
    meta = checkpoint.get("meta")
    version = meta.get("format_version") if isinstance(meta, dict) else None
    if isinstance(version, int) and version > SHARDED_VERSION:
        raise CheckpointError(
            f"{path} has format {version}; this mm-runner reads formats up to {SHARDED_VERSION}. "
            "Upgrade mm-runner."
        )
    return checkpoint


def _load_safely(path: Path, *, stays_in_file: bool) -> Any:
    can_stay = "mmap" in inspect.signature(torch.load).parameters
    options: dict[str, Any] = {"mmap": True} if stays_in_file and can_stay else {}
    try:
        with warnings.catch_warnings():
            # torch 2.0 says so of its own loader.
            warnings.filterwarnings("ignore", "TypedStorage is deprecated")
            # A pickle of another program, which is refused in words of our own.
            warnings.filterwarnings("ignore", "Detected pickle protocol")
            return torch.load(path, map_location="cpu", weights_only=True, **options)
    except pickle.UnpicklingError as error:
        # torch 1.13 cannot read a float this way, so no learning rate either.
        if hasattr(torch, "compile") or "Unsupported operand" not in str(error):
            raise
    return read_with(TensorUnpickler, path, is_archive=is_archive(path))
