"""Writing a checkpoint of which every process writes the part that it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import (
    PARTS,
    PARTS_VERSION,
    PartsFolder,
    part_name,
    plain,
    save_checkpoint_file,
    split_parts,
)
from mm_runner.errors import CheckpointWriteError

from ._outcomes import PartOutcomes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mm_runner.checkpoint import BackgroundWriter
    from mm_runner.runner import Runner

__all__ = ["PartsWriting"]


@dataclass(frozen=True)
class _Save:
    """One checkpoint on this process.

    Args:
        path: The checkpoint.
        folder: Of its parts.
        filling: The same, on the process that made it.
        finish: Called there with the path once the checkpoint is whole.
    """

    path: Path
    folder: Path
    filling: PartsFolder | None
    finish: Callable[[], object]


class PartsWriting:
    """Writes checkpoints in parts. Every process must make the same calls."""

    def __init__(self) -> None:
        self._outcomes: PartOutcomes | None = None

    def write(
        self,
        runner: Runner,
        checkpoint: dict[str, Any],
        path: Path,
        finish: Callable[[], object],
        writer: BackgroundWriter | None = None,
    ) -> None:
        """Write ``checkpoint``, in which tensors may be spread over the processes.

        Args:
            runner: The run.
            checkpoint: Of the first process all counts, of the others their parts.
            path: The file.
            finish: Called on the first process once the checkpoint is whole.
            writer: Writes a copy while training goes on.

        Raises:
            CheckpointError: On all processes, if something cannot be saved.
            CheckpointWriteError: On all processes, if a part is not whole; without a writer, or of
                what was known when it was submitted.
        """
        split = split_parts(checkpoint)
        filling: list[PartsFolder] = []
        folder = run_on_main(lambda: _open_folder(path, filling))
        save = _Save(path, folder, filling[0] if filling else None, finish)
        content: dict[str, Any] = {"chunks": split.chunks}
        if runner.rank == 0:
            files = [part_name(rank) for rank in range(runner.world_size)]
            parts = {"folder": folder.name, "files": files, "tensors": split.layout}
            meta = {**split.rest["meta"], "format_version": PARTS_VERSION}
            content["rest"] = {**split.rest, "meta": meta, PARTS: parts}
        outcomes = self._open(runner) if writer is not None else None
        if writer is None or outcomes is None:
            _write_now(runner, content, save)
        else:
            _submit(runner, content, save, writer, outcomes)

    def close(self) -> None:
        """Disconnect from the other processes."""
        if self._outcomes is not None:
            self._outcomes.close()
            self._outcomes = None

    def _open(self, runner: Runner) -> PartOutcomes | None:
        if self._outcomes is None:
            self._outcomes = PartOutcomes(runner.rank, runner.world_size, runner.logger)
        return self._outcomes if self._outcomes.is_open else None


def _open_folder(path: Path, opened: list[PartsFolder]) -> Path:
    opened.append(PartsFolder(path))
    return opened[0].path


def _write_now(runner: Runner, content: dict[str, Any], save: _Save) -> None:
    failure = _write_part(runner.rank, content, save)
    failures = [one for one in mm_dist.all_gather_object(failure) if one]

    def write() -> None:
        if failures:
            _take_back(save)
            raise CheckpointWriteError(f"Writing {save.path} failed: {failures[0]}")
        _write_rest(content["rest"], save)

    run_on_main(write)


def _submit(
    runner: Runner,
    content: dict[str, Any],
    save: _Save,
    writer: BackgroundWriter,
    outcomes: PartOutcomes,
) -> None:
    number, rank = outcomes.begin(), runner.rank

    def write(copied: dict[str, Any]) -> None:
        try:
            outcomes.report(number, _write_part(rank, copied, save))
            if rank == 0:
                outcomes.wait(number, writer.is_abandoned)
        except (OSError, RuntimeError) as error:
            _take_back(save)
            if rank != 0:  # the store is gone, and so is the run
                return
            raise CheckpointWriteError(f"Writing {save.path} failed: {error}") from error
        if rank == 0:
            _write_rest(copied["rest"], save)

    def submit() -> None:
        try:
            writer.submit(content, write)
        except BaseException:
            _take_back(save)
            raise

    if rank != 0:
        submit()
    run_on_main(submit)


def _write_part(rank: int, content: dict[str, Any], save: _Save) -> str:
    """Write this process's part; return why that failed, or nothing."""
    try:
        save_checkpoint_file(plain({"chunks": content["chunks"]}), save.folder / part_name(rank))
    except Exception as error:  # noqa: BLE001 - whatever it is, the others must learn of it
        return str(error) or type(error).__name__
    return ""


def _write_rest(rest: dict[str, Any], save: _Save) -> None:
    assert save.filling is not None
    try:
        save_checkpoint_file(plain(rest), save.path)
    except BaseException:
        _take_back(save)
        raise
    save.filling.close()
    save.finish()


def _take_back(save: _Save) -> None:
    if save.filling is not None:
        save.filling.remove()
