"""One live training per work directory, and none from the start over another's checkpoints."""

from __future__ import annotations

import os
import platform
import re
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import checkpoints_in, remove_checkpoint
from mm_runner.errors import WorkDirError
from mm_runner.hooks import CheckpointHook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mm_runner.runner import Runner

__all__ = ["holding_work_dir"]

_LOCK = ".lock"
# Host and process id, as the lock's holder writes them.
_HOLDER = re.compile(r"([\w.-]{1,255}) (\d{1,10})\n")
# How many files a refusal names.
_MAX_NAMED = 5


@contextmanager
def holding_work_dir(
    runner: Runner, *, is_fresh: bool, overwrite: bool, load_from: str | None
) -> Iterator[Callable[[], None]]:
    """Keep other trainings out of ``work_dir`` while the block trains; every process must enter it.

    The main process holds a POSIX record lock, which works on NFS too, which forked workers do not
    inherit, and which the system releases when the process dies.

    Args:
        runner: The run.
        is_fresh: Whether it trains from the start.
        overwrite: Whether the checkpoints that a fresh run finds may be deleted.
        load_from: A checkpoint that is not.

    Yields:
        Deletes these checkpoints; to be called by every process once the run is able to train.

    Raises:
        WorkDirError: On all processes, if another training is under way in ``work_dir``, or if a
            fresh one finds checkpoints there that it may not delete.
    """
    held: list[IO[str]] = []  # on the main process

    def claim() -> None:
        file = _locked(runner)
        if file is not None:
            held.append(file)
        found = _checkpoints(runner) if is_fresh and not overwrite else []
        if found:
            raise WorkDirError(_refusal(runner.work_dir, found))

    def delete() -> None:
        if is_fresh and overwrite:
            _delete([path for path in _checkpoints(runner) if not _is_same(path, load_from)])

    try:
        run_on_main(claim)
        yield lambda: run_on_main(delete)
    finally:
        for file in held:
            with suppress(OSError), file:  # its share may be gone
                file.truncate(0)


def _locked(runner: Runner) -> IO[str] | None:
    """Return the locked file; ``None``, with a warning, where the file system has no locks."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    path = Path(runner.work_dir) / _LOCK
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8", errors="replace")
    except OSError as error:
        _warn_unlocked(runner, error)
        return None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        with file:
            raise WorkDirError(_occupied(runner.work_dir, file)) from None
    except OSError as error:
        file.close()
        _warn_unlocked(runner, error)
        return None
    file.truncate(0)
    file.write(f"{platform.node()} {os.getpid()}\n")
    file.flush()
    return file


def _warn_unlocked(runner: Runner, error: OSError) -> None:
    runner.logger.warning(
        f"{runner.work_dir} cannot be locked ({error}): a second run there would go unnoticed."
    )


def _occupied(work_dir: str | Path, file: IO[str]) -> str:
    file.seek(0)
    holder = _HOLDER.fullmatch(file.read(300))
    who = f"process {holder[2]} on host {holder[1]}" if holder else "another process"
    return (
        f"work_dir={str(work_dir)!r} is in use: {who} is training there. Wait until it ends, or "
        "choose another work_dir (--work-dir)."
    )


def _checkpoints(runner: Runner) -> list[Path]:
    """Return the checkpoints in the work directory, and where hooks save instead."""
    hooks = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
    directories = [Path(runner.work_dir), *(hook.directory(runner) for hook in hooks)]
    return [path for one in dict.fromkeys(directories) for path in checkpoints_in(one)]


def _refusal(work_dir: str | Path, found: list[Path]) -> str:
    names = [path.name for path in found[:_MAX_NAMED]]
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return (
        f"work_dir={str(work_dir)!r} holds the checkpoints of an earlier run "
        f"({', '.join(names)}{more}), and this one starts afresh. Go on from them with "
        "resume=True (--resume), choose another work_dir (--work-dir), or delete them with "
        "overwrite=True (--overwrite)."
    )


def _delete(paths: list[Path]) -> None:
    for path in paths:
        try:
            remove_checkpoint(path)
        except OSError as error:
            raise WorkDirError(
                f"overwrite=True was given, and {path} cannot be deleted: {error}. Choose another "
                "work_dir (--work-dir)."
            ) from error


def _is_same(path: Path, load_from: str | None) -> bool:
    return load_from is not None and os.path.realpath(path) == os.path.realpath(load_from)
