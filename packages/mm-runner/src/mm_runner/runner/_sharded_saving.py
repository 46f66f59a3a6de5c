"""Saving a sharded model: all processes write the folder of its tensors, the first one the file."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import (
    SHARDED_VERSION,
    SHARDS,
    ShardFolder,
    first_line,
    plain,
    save_checkpoint_file,
    split_shards,
)
from mm_runner.errors import CheckpointError, CheckpointWriteError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from mm_runner.checkpoint import BackgroundWriter

    from ._runner import Runner

__all__ = ["ShardedSaving", "can_save_shards"]

_LOOK_S = 0.02
# How long to wait for others once this process ends by an error: they may be gone.
_PATIENCE_S = 30.0


def can_save_shards() -> bool:
    """Return whether this torch saves sharded tensors as they are; else they are gathered."""
    return tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)


class ShardedSaving:
    """Writes checkpoints of sharded models. Every process must make the same calls."""

    def __init__(self) -> None:
        # Of its own: a thread must not use a group that the training uses.
        self._group: dist.ProcessGroup | None = None

    def write(
        self,
        runner: Runner,
        checkpoint: dict[str, Any],
        path: Path,
        finish: Callable[[], object],
        writer: BackgroundWriter | None = None,
    ) -> None:
        """Write ``checkpoint``, in which tensors may be sharded.

        Args:
            runner: The run.
            checkpoint: Of the first process all counts, of the others their shards.
            path: The file.
            finish: Called on the first process once the checkpoint is whole.
            writer: Writes a copy while training continues.

        Raises:
            CheckpointError: On all processes, if something cannot be saved or written.
        """
        split = split_shards(checkpoint)
        opened: list[ShardFolder] = []
        folder = run_on_main(lambda: _open(path, opened))
        meta = {**split.rest["meta"], "format_version": SHARDED_VERSION}
        shards = {"folder": folder.name, "tensors": split.layout}
        rest = plain({**split.rest, "meta": meta, SHARDS: shards}) if runner.rank == 0 else {}

        def write_file() -> None:
            save_checkpoint_file(rest, path)
            opened[0].close()
            finish()

        with _removing(opened, path):
            future = self._begin(split.tensors, folder, is_async=writer is not None)
        if writer is None:
            with _removing(opened, path):
                run_on_main(write_file)
            return
        is_abandoned = writer.is_abandoned

        def end(_: Any) -> None:
            with _removing(opened, path):
                _wait(future, is_abandoned)
                write_file()

        def end_elsewhere(_: Any) -> None:
            with suppress(BaseException):  # the first process reports it
                _wait(future, is_abandoned)

        writer.submit({}, end if opened else end_elsewhere)

    def _begin(self, tensors: dict[str, Any], folder: Path, *, is_async: bool) -> Any:
        """Save ``tensors``, or copy them and let a thread save them; return its future."""
        from torch.distributed.checkpoint.filesystem import (  # noqa: PLC0415 - slow to import
            FileSystemWriter,
        )
        from torch.distributed.checkpoint.state_dict_saver import (  # noqa: PLC0415
            async_save,
            save,
        )

        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        options: dict[str, Any] = {
            "storage_writer": FileSystemWriter(folder),
            "process_group": self._group,
        }
        if not is_async:
            return save(tensors, **options)
        response: Any = async_save(tensors, **options)
        return getattr(response, "upload_completion", response)

    def close(self) -> None:
        """Leave the group of processes."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None


def _open(path: Path, opened: list[ShardFolder]) -> Path:
    opened.append(ShardFolder(path))
    return opened[0].path


@contextmanager
def _removing(opened: list[ShardFolder], path: Path) -> Iterator[None]:
    """Remove the folder if the block fails, and raise what the run can survive."""
    try:
        yield
    except BaseException as error:
        for folder in opened:
            folder.remove()
        # torch's CheckpointException, of all ranks alike, is no Exception.
        failures = list(getattr(error, "failures", {}).values())
        if isinstance(error, CheckpointError) or not (failures or isinstance(error, Exception)):
            raise
        cause = failures[0][0] if failures else error
        raise CheckpointWriteError(f"Writing {path} failed: {first_line(cause)}") from error


def _wait(future: Future[Any], is_abandoned: threading.Event) -> None:
    limit = None
    while not future.done():
        if is_abandoned.is_set():
            limit = limit or time.monotonic() + _PATIENCE_S
            if time.monotonic() > limit:
                raise CheckpointWriteError("other processes did not write their shards")
        time.sleep(_LOOK_S)
    future.result()
