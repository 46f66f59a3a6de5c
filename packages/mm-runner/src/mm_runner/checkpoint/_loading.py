"""Find the newest usable checkpoint of a work directory."""

from __future__ import annotations

import os
import re
import reprlib
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mm_runner._untrusted import is_file_name, is_finite
from mm_runner.errors import CheckpointError

from ._shards import load_checkpoint_file
from ._writing import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

# Names the newest whole checkpoint, relative to the work directory.
LAST_CHECKPOINT = "last_checkpoint"
_LONGEST_PATH = 1024

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
    text = text.replace("\0", "").strip()
    return text if len(text) <= _LONGEST_PATH and text.isprintable() else ""


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
    candidates, marker = find_latest_checkpoint(work_dir), work_dir / LAST_CHECKPOINT
    if marker.is_file() and not _name_in(marker):
        warn(f"{marker} names no file; the newest checkpoints beside it are tried.")
    for path in candidates:
        try:
            content = load_checkpoint_file(path, shards=shards)
            check_resumable(content, path)
        except CheckpointError as error:
            warn(f"Passing over a checkpoint: {error}")
        else:
            return path, content
    if candidates or marker.is_file():  # it may have named one elsewhere
        raise CheckpointError(
            f"resume was asked for, and none of the {len(candidates)} checkpoints in {work_dir} "
            f"can be read. Name one with load_from; or move them away, {LAST_CHECKPOINT} included, "
            "to train from the start."
        )
    return None, None


# No run counts further, and whatever computes with it stays an exact number.
_MOST = 2**53
_MISSING = object()
_DICT = ("a dict", lambda value: isinstance(value, dict))
_LIST = ("a list", lambda value: isinstance(value, (list, tuple)))
_COUNT = ("an integer >= 0", lambda value: type(value) is int and 0 <= value <= _MOST)
_NUMBER = (
    "a number",
    lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
)
_FLAG = ("True or False", lambda value: isinstance(value, bool))
_TENSOR = ("a tensor", lambda value: isinstance(value, Tensor))
_SEED = ("a seed", lambda value: type(value) is int and 0 <= value < 2**63)
_FILE = ("the name of a file without a directory", is_file_name)
_STEPS = ("a count of steps", is_finite)

# Which entries of a checkpoint, by their path, have to be what. ``*`` stands for all keys or
# items; what ends in ``!`` must be there, and in ``?`` may be ``None``. Parents come first.
_NEEDED = {
    "meta": _DICT,
    **dict.fromkeys(("meta.epoch", "meta.iter", "meta.world_size"), _COUNT),
    "meta.seed?": _SEED,
    **dict.fromkeys(("state_dict", "optimizer"), _DICT),
    "rng": _LIST,
    "rng.*": _DICT,
    "data": _LIST,
    "data.*": _DICT,
    **dict.fromkeys(("data.*.epoch!", "data.*.iter!"), _COUNT),
    "data.*.is_validated": _FLAG,
    **dict.fromkeys(("data.*.pass!", "data.*.pass.rng", "data.*.pass.generators"), _DICT),
    "data.*.pass.generators.*": _TENSOR,
    "data.*.position": _DICT,
    **dict.fromkeys(("data.*.position.epoch!", "data.*.position.batch!"), _COUNT),
    **dict.fromkeys(("data.*.position.samples!?", "data.*.position.num_batches!?"), _COUNT),
    "data.*.position.state?": _DICT,
    "data.*.position.state.generators!": _DICT,
    "data.*.position.state.generators.*": _TENSOR,
    "data.*.position.state.loader!": ("a state", lambda _: True),
    "message_hub": _LIST,
    "message_hub.*": _DICT,
    "message_hub.*.*": _LIST,
    "message_hub.*.*.*": _NUMBER,
    **dict.fromkeys(("hooks", "hooks.EarlyStoppingHook"), _DICT),
    "hooks.EarlyStoppingHook.best_score!": _NUMBER,
    "hooks.EarlyStoppingHook.wait_count!": _COUNT,
    "param_schedulers": _LIST,
    "param_schedulers.*": _DICT,
    **dict.fromkeys(("param_schedulers.*.count", "param_schedulers.*.length"), _COUNT),
    "param_schedulers.*.epoch_length": _COUNT,
    "param_schedulers.*.scheduler?": _DICT,
    "param_schedulers.*.scheduler.best?": _NUMBER,
    "param_schedulers.*.scheduler.num_bad": _COUNT,
    "param_schedulers.*.scheduler.cooldown_left": _COUNT,
    "ema_state_dict": _DICT,
    "ema_state_dict.steps*!": _STEPS,
    "checkpoint_hook*": _DICT,
    "checkpoint_hook*.kept": _LIST,
    "checkpoint_hook*.kept.*": _FILE,
    **dict.fromkeys(("checkpoint_hook*.best", "checkpoint_hook*.best.*"), _DICT),
    "checkpoint_hook*.best.*.score!": _NUMBER,
    **dict.fromkeys(("checkpoint_hook*.best.*.epoch!", "checkpoint_hook*.best.*.iter!"), _COUNT),
    "checkpoint_hook*.best.*.file!": _FILE,
}


def check_resumable(checkpoint: Mapping[str, Any], path: Path) -> None:
    """Check the entries that a resumed run reads, each of them if it is there.

    Entries of custom hooks, datasets and schedulers are left to these.

    Raises:
        CheckpointError: Naming the first entry that cannot be used.
    """
    schedules, wrapped = checkpoint.get("param_schedulers", []), dict(checkpoint)
    if isinstance(schedules, dict):  # of several optimizers
        parts = [one for group in schedules.values() if isinstance(group, list) for one in group]
        wrapped["param_schedulers"] = parts
    is_ours = "rng" in checkpoint
    required = [(f"{name}!", _NEEDED[name]) for name in ("meta", "state_dict", "data")]
    for pattern, (needed, test) in [*(required if is_ours else ()), *_NEEDED.items()]:
        for where, value in _entries(wrapped, pattern.rstrip("?").split("."), ""):
            is_allowed = value is None and pattern.endswith("?")
            if value is _MISSING or not (is_allowed or test(value)):
                _refuse(path, where, value, needed)
    if is_ours and not checkpoint["data"]:
        _refuse(path, "data", checkpoint["data"], "the place of each process")
    for index, place in enumerate(checkpoint.get("data", ())):
        position = place.get("position", {"epoch": 0, "batch": 0, "num_batches": None})
        where = f"data.{index}.position"
        if position["num_batches"] is not None and position["batch"] > position["num_batches"]:
            _refuse(path, f"{where}.batch", position["batch"], "a batch of the pass")
        if position["epoch"] > place["iter"]:
            _refuse(path, f"{where}.epoch", position["epoch"], "no more passes than steps")


def _entries(value: Any, keys: list[str], where: str) -> Iterator[tuple[str, Any]]:
    """Yield the paths and values that ``keys`` match, ``_MISSING`` for one that must be there."""
    if not keys:
        yield where.removeprefix("."), value
        return
    items: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, (list, tuple)):
        items = enumerate(value)
    key = keys[0].rstrip("!")
    found = [(name, item) for name, item in items if fnmatchcase(str(name), key)]
    if not found and keys[0].endswith("!") and value is not None:
        yield f"{where}.{key}".removeprefix("."), _MISSING
    for name, item in found:
        yield from _entries(item, keys[1:], f"{where}.{ascii(str(name)[:80])[1:-1]}")


def _refuse(path: Path, where: str, value: Any, needed: str) -> None:
    shown = f"got {reprlib.repr(value)}"
    if isinstance(value, Tensor):
        shown = f"got a tensor of the shape {tuple(value.shape)}"
    elif value is _MISSING:
        shown = "it is missing"
    raise CheckpointError(f"{path} cannot be resumed from: {where}: {shown}; {needed} is needed.")
