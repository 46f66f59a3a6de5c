"""Find the newest usable checkpoint of a work directory."""

from __future__ import annotations

import os
import re
import reprlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mm_runner.errors import CheckpointError

from ._shards import load_checkpoint_file
from ._writing import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

__all__ = [
    "LAST_CHECKPOINT",
    "check_resumable",
    "checkpoints_in",
    "find_latest_checkpoint",
    "latest_readable",
    "mark_latest",
]

# Names the newest whole checkpoint, relative to the work directory.
LAST_CHECKPOINT = "last_checkpoint"
_LONGEST_PATH = 1024
# No run counts further.
_MOST = 2**53

# Prefix and suffix of the usual names.
_USUAL = {("epoch_", ".pth"), ("iter_", ".pth")}
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)")


def mark_latest(path: Path, work_dir: Path) -> None:
    """Let ``work_dir/last_checkpoint`` name ``path``."""
    # Resolve links first: ".." leads up from the target of a link.
    folder = os.path.relpath(os.path.realpath(path.parent), os.path.realpath(work_dir))
    name = os.path.normpath(os.path.join(folder, path.name))  # noqa: PTH118 - own separators
    write_atomically(work_dir / LAST_CHECKPOINT, lambda file: file.write(f"{name}\n".encode()))


def checkpoints_in(directory: Path) -> list[Path]:
    """List the checkpoints in ``directory`` by name, after the file ``last_checkpoint``."""
    marker = directory / LAST_CHECKPOINT
    files = sorted(
        path
        for path in _files_in([directory])
        if _kind_and_number(path)[0] in _USUAL or path.match("best_*.pth")
    )
    return [marker, *files] if marker.is_file() else files


def find_latest_checkpoint(work_dir: Path) -> list[Path]:
    """List the checkpoints to try when resuming, the newest first.

    First the one that ``last_checkpoint`` names, then the numbered ones by falling number: those
    of the usual names, and those beside the named one, which may lie elsewhere, whose names differ
    from its in the number only. Numbers of epochs and of steps cannot be compared: where several
    kinds lie, they are ordered by the time of writing.
    """
    candidates: list[Path] = []
    kinds, directories = set(_USUAL), [work_dir]
    name = _name_in(work_dir / LAST_CHECKPOINT)
    if name:
        # MMEngine writes an absolute path here; joining keeps that as it is.
        named = work_dir / name
        candidates.append(named)
        kinds.add(_kind_and_number(named)[0])
        if os.path.realpath(named.parent) != os.path.realpath(work_dir):
            directories.append(named.parent)
    found = {path: _kind_and_number(path) for path in _files_in(directories)}
    numbered = [(path, kind, number) for path, (kind, number) in found.items() if kind in kinds]
    is_mixed = len({kind for _, kind, _ in numbered}) > 1
    numbered.sort(key=lambda one: (one[0].stat().st_mtime_ns if is_mixed else 0, one[2]))
    candidates += [path for path, _, _ in reversed(numbered) if path not in candidates]
    return candidates


def _name_in(marker: Path) -> str:
    """Return what ``last_checkpoint`` names; ``""`` without it, and after a power cut."""
    if not marker.is_file():
        return ""
    with marker.open(encoding="utf-8", errors="replace") as file:
        text = file.read(_LONGEST_PATH + 1)
    return "" if len(text) > _LONGEST_PATH else text.replace("\0", "").strip()


def _files_in(directories: list[Path]) -> Iterator[Path]:
    for directory in directories:
        with suppress(OSError):  # it is gone
            yield from (path for path in directory.iterdir() if path.is_file())


def _kind_and_number(path: Path) -> tuple[tuple[str, str], int]:
    """Split a file name into what surrounds its last number, and the number."""
    found = _NUMBERED.fullmatch(path.name)
    return ((found[1], found[3]), int(found[2])) if found else ((path.name, ""), 0)


def latest_readable(
    work_dir: Path, warn: Callable[[str], None], *, shards: bool = True
) -> tuple[Path, dict[str, Any]] | tuple[None, None]:
    """Return the newest checkpoint that can be read, with its content.

    Args:
        work_dir: Where the checkpoints lie.
        warn: Called with one line for each file that was passed over.
        shards: As :func:`load_checkpoint_file` has it.

    Returns:
        ``None`` twice if the directory has no checkpoint at all.

    Raises:
        CheckpointError: If there are checkpoints, and none of them can be read. Training from the
            start would overwrite what may still be saved.
    """
    candidates = find_latest_checkpoint(work_dir)
    for path in candidates:
        try:
            content = load_checkpoint_file(path, shards=shards)
            check_resumable(content, path)
        except CheckpointError as error:
            warn(f"Passing over a checkpoint: {error}")
        else:
            return path, content
    if candidates or (work_dir / LAST_CHECKPOINT).is_file():  # it may have named one elsewhere
        raise CheckpointError(
            f"resume was asked for, and none of the {len(candidates)} checkpoints in {work_dir} "
            f"can be read. Name one with load_from; or move them away, {LAST_CHECKPOINT} included, "
            "to train from the start."
        )
    return None, None


def check_resumable(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Check the counters and positions of a checkpoint; a part checks its own state as it loads.

    Raises:
        CheckpointError: Naming the first entry that cannot be used.
    """

    def need(where: str, value: Any, kind: type) -> None:
        is_right = isinstance(value, kind) and not isinstance(value, bool)
        if not is_right or (kind is int and not 0 <= value <= _MOST):
            what = "an integer >= 0" if kind is int else f"a {kind.__name__}"
            raise CheckpointError(
                f"{path} cannot be resumed from: {where}: {what} is needed, got "
                f"{reprlib.repr(value)}."
            )

    is_ours = "rng" in checkpoint  # MMEngine's have no position in the data
    missing = [name for name in ("meta", "state_dict", "data") if not checkpoint.get(name)]
    if is_ours and missing:
        raise CheckpointError(f"{path} cannot be resumed from: {', '.join(missing)}: missing.")
    meta, places = checkpoint.get("meta", {}), checkpoint.get("data", [])
    need("meta", meta, dict)
    need("state_dict", checkpoint.get("state_dict", {}), dict)
    need("data", places, list)
    for name in ("epoch", "iter", "world_size"):
        need(f"meta.{name}", meta.get(name, 0), int)
    for index, place in enumerate(places):
        where = f"data.{index}"
        need(where, place, dict)
        for name in ("epoch", "iter"):
            need(f"{where}.{name}", place.get(name), int)
        if "position" in place:  # of our own loops
            need(f"{where}.position", place["position"], dict)
            need(f"{where}.pass", place.get("pass"), dict)
            for name in ("epoch", "batch"):
                need(f"{where}.position.{name}", place["position"].get(name), int)
