"""Writing a checkpoint whole or not at all, and reading one without running code from it."""

from __future__ import annotations

import os
import pickle
import re
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mm_runner.errors import CheckpointError, CheckpointWriteError

from ._allow_list import ALLOW_LIST_PICKLE
from ._content import FORMAT_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "LAST_CHECKPOINT",
    "find_latest_checkpoint",
    "is_validated",
    "latest_readable",
    "load_checkpoint_file",
    "mark_latest",
    "mark_validated",
    "save_checkpoint_file",
]

# Names the newest whole checkpoint, relative to the work directory.
LAST_CHECKPOINT = "last_checkpoint"
# Says which validation was the last to end: a stop may come between a checkpoint and its own.
_LAST_VALIDATION = "last_validation"

_NUMBERED = re.compile(r"^(?:epoch|iter)_(\d+)\.pth$")


def save_checkpoint_file(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Write ``checkpoint`` so that ``path`` is at any moment either absent, the old or the new.

    Raises:
        CheckpointWriteError: If the file cannot be written; what was there before is untouched.
    """

    def write(file: Any) -> None:
        torch.save(dict(checkpoint), file)

    _write_atomically(path, write)


def mark_latest(path: Path, work_dir: Path) -> None:
    """Let ``work_dir/last_checkpoint`` name ``path``."""
    name = os.path.relpath(path, work_dir)
    _write_atomically(work_dir / LAST_CHECKPOINT, lambda file: file.write(f"{name}\n".encode()))


def mark_validated(work_dir: Path, epoch: int, seed: int) -> None:
    """Note that the validation after ``epoch`` of the run with ``seed`` is done."""
    text = f"epoch {epoch} seed {seed}\n".encode()
    _write_atomically(work_dir / _LAST_VALIDATION, lambda file: file.write(text))


def is_validated(work_dir: Path, epoch: int, seed: int) -> bool:
    """Tell whether the newest validation in ``work_dir`` was that one."""
    marker = work_dir / _LAST_VALIDATION
    return marker.is_file() and marker.read_text(errors="replace").split() == [
        *("epoch", str(epoch)),
        *("seed", str(seed)),
    ]


def load_checkpoint_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; no code in the file is run.

    Raises:
        CheckpointError: If the file is absent, damaged, or holds pickled objects.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"The checkpoint {path} was asked for; there is no such file.")
    _warn_if_unsafe()
    try:
        checkpoint = _load_safely(path)
    except pickle.UnpicklingError as error:
        if _is_zip(path):
            raise CheckpointError(
                f"{path} holds objects besides tensors and primitives, and loading them would run "
                f"code from the file: {_first_line(error)} Save its state_dict again with "
                "torch.save, from a program that trusts it."
            ) from error
        raise CheckpointError(f"{path} is damaged: {_first_line(error)}") from error
    except Exception as error:  # damaged bytes make torch's loader fail in any way
        raise CheckpointError(f"{path} is damaged: {_first_line(error)}") from error
    if not isinstance(checkpoint, dict):
        raise CheckpointError(f"{path} holds a {type(checkpoint).__name__}, not a dict.")
    _check_format(checkpoint, path)
    return checkpoint


def find_latest_checkpoint(work_dir: Path) -> list[Path]:
    """List the checkpoints to try when resuming, the newest first.

    First the one that ``last_checkpoint`` names, then the numbered ones by falling number.
    """
    candidates: list[Path] = []
    marker = work_dir / LAST_CHECKPOINT
    if marker.is_file():
        # MMEngine writes an absolute path here; joining keeps that as it is.
        candidates.append(work_dir / marker.read_text(encoding="utf-8", errors="replace").strip())
    numbered = [(path, _NUMBERED.match(path.name)) for path in work_dir.glob("*.pth")]
    found = [(int(match[1]), path) for path, match in numbered if match]
    candidates += [path for _, path in sorted(found, reverse=True) if path not in candidates]
    return candidates


def latest_readable(
    work_dir: Path, tell: Callable[[str], None]
) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest checkpoint that can be read, with its content.

    Args:
        work_dir: Where the checkpoints lie.
        tell: Called with one line for each file that was passed over.

    Returns:
        ``None`` if the directory has no checkpoint at all.

    Raises:
        CheckpointError: If there are checkpoints, and none of them can be read. Training from the
            start would overwrite what may still be saved.
    """
    candidates = find_latest_checkpoint(work_dir)
    for path in candidates:
        try:
            return path, load_checkpoint_file(path)
        except CheckpointError as error:
            tell(f"Passing over a checkpoint: {error}")
    if candidates:
        raise CheckpointError(
            f"resume was asked for, and none of the {len(candidates)} checkpoints in {work_dir} "
            "can be read. Move them away to train from the start."
        )
    return None


def _write_atomically(path: Path, write: Callable[[Any], object]) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        _sync_directory(path.parent)
    except BaseException as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        if not isinstance(error, (OSError, RuntimeError)):  # torch calls a full disk RuntimeError
            raise
        raise CheckpointWriteError(
            f"Writing {path} failed: {_first_line(error)} Free space or make the directory "
            "writable; the checkpoints before this one are untouched."
        ) from error


def _sync_directory(directory: Path) -> None:
    """Make the renaming itself survive a power cut, where directories can be opened."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_format(checkpoint: Mapping[str, Any], path: Path) -> None:
    meta = checkpoint.get("meta")
    version = meta.get("format_version", 0) if isinstance(meta, dict) else 0
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format {version}; this mm-runner reads formats up to {FORMAT_VERSION}. "
            "Upgrade mm-runner."
        )


def _load_safely(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            # torch 2.0 says so of its own loader.
            warnings.filterwarnings("ignore", "TypedStorage is deprecated")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch 1.13 cannot read a float this way, so no learning rate either.
        if "Unsupported operand" not in str(error) or not _is_zip(path):
            raise
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=ALLOW_LIST_PICKLE)


def _is_zip(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # the end of the file is damaged just so
        return False


def _warn_if_unsafe() -> None:
    # torch 2.6 closed ways around the safe loader, and brought this function with it.
    if hasattr(torch.serialization, "get_unsafe_globals_in_checkpoint"):
        return
    warnings.warn(
        f"torch {torch.__version__} reads checkpoints with a loader whose safety has known holes; "
        "load only files that you trust, or use torch >= 2.6.",
        stacklevel=4,
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
