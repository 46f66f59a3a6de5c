"""The work directory of a run: created, locked for one training, kept from being overwritten."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING

from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import checkpoints_in, remove_checkpoint
from mm_runner.errors import ConfigError, WorkDirError
from mm_runner.hooks import CheckpointHook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ._runner import Runner

# Host and process id, as the lock's holder writes them.
_HOLDER = re.compile(r"([\w.-]{1,255}) (\d{1,10})\n")
# How many files a refusal names.
_MAX_NAMED = 5


def open_work_dir(work_dir: str | Path) -> tuple[Path, Path, str]:
    """Create ``work_dir`` and in it a log directory of this run, and check that it is writable.

    Only the main process touches the disk; every process gets its result.

    Returns:
        The work directory, the log directory inside it, and the timestamp that this is named by.

    Raises:
        ConfigError: If ``work_dir`` is no path.
        WorkDirError: On all processes, if the directory cannot be written.
    """
    if not isinstance(work_dir, (str, Path)):
        raise ConfigError(f"work_dir: the path of a directory is needed, got {work_dir!r}.")

    def create() -> tuple[Path, Path, str]:
        path = Path(work_dir).absolute()
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass  # permission bits do not tell: ask the file system
            timestamp = started = datetime.now().astimezone().strftime("%Y%m%d_%H%M%S")
            # A second run started in the same second must not write into the first one's logs.
            attempts = count(1)
            while (path / timestamp).exists():
                timestamp = f"{started}_{next(attempts)}"
            (path / timestamp).mkdir()
        except OSError as error:
            raise WorkDirError(
                f"work_dir={str(work_dir)!r} was asked for; it cannot be written: {error}. "
                "Give a directory that you may write to."
            ) from error
        return path, path / timestamp, timestamp

    return run_on_main(create)


@contextmanager
def holding_work_dir(run: Runner, *, is_fresh: bool) -> Iterator[Callable[[], None]]:
    """Keep other trainings out of ``work_dir`` while the block trains; every process must enter it.

    The main process holds a POSIX record lock, which works on NFS too, which forked workers do not
    inherit, and which the system releases when the process dies.

    Yields:
        Deletes the checkpoints that a fresh run with ``overwrite`` finds, but for the one it starts
        from; every process calls it once the run is able to train.

    Raises:
        WorkDirError: On all processes, if another training is under way in ``work_dir``, or if a
            fresh one finds checkpoints there that it may not delete.
    """
    if not run.interruption.saves:  # nothing is kept
        yield lambda: None
        return
    held: list[IO[str]] = []  # on the main process
    load_from = run.starting_point.load_from
    spared = None if load_from is None else os.path.realpath(load_from)

    def claim() -> None:
        with suppress(ImportError):  # fcntl, on Windows
            _lock(run, held)
        found = _checkpoints(run) if is_fresh and not run.overwrite else []
        if found:
            names = ", ".join(path.name for path in found[:_MAX_NAMED])
            more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
            raise WorkDirError(
                f"work_dir={str(run.work_dir)!r} holds the checkpoints of an earlier run "
                f"({names}{more}), and this one starts from the beginning. Resume that run with "
                "resume=True (--resume), choose another work_dir (--work-dir), or delete them "
                "with overwrite=True (--overwrite)."
            )

    def delete() -> None:
        for path in _checkpoints(run) if is_fresh and run.overwrite else []:
            if os.path.realpath(path) != spared:
                remove_checkpoint(path)

    try:
        run_on_main(claim)
        yield lambda: run_on_main(delete)
    finally:
        for file in held:
            with suppress(OSError), file:  # its share may be gone
                file.truncate(0)


def _lock(run: Runner, held: list[IO[str]]) -> None:
    """Lock a file of the work directory; warn where the file system has no locks."""
    import fcntl  # noqa: PLC0415 - not on Windows

    try:
        run.work_dir.mkdir(parents=True, exist_ok=True)
        file = (run.work_dir / ".lock").open("a+", encoding="utf-8", errors="replace")
        held.append(file)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        file.write(f"{platform.node()} {os.getpid()}\n")
        file.flush()
    except OSError as error:
        if not held or not isinstance(error, (BlockingIOError, PermissionError)):
            run.logger.warning(
                f"{run.work_dir} cannot be locked ({error}): a second run there would go unnoticed."
            )
            return
        with held.pop() as taken:
            taken.seek(0)
            holder = _HOLDER.fullmatch(taken.read(300))
        who = f"process {holder[2]} on host {holder[1]}" if holder else "another process"
        raise WorkDirError(
            f"work_dir={str(run.work_dir)!r} is in use: {who} is training there. Wait until it "
            "ends, or choose another work_dir (--work-dir)."
        ) from None


def _checkpoints(run: Runner) -> list[Path]:
    """Return the checkpoints in the work directory, and where hooks save instead."""
    hooks = [hook for hook in run.hooks if isinstance(hook, CheckpointHook)]
    directories = [run.work_dir, *(hook.directory(run) for hook in hooks)]
    return [path for one in dict.fromkeys(directories) for path in checkpoints_in(one)]
