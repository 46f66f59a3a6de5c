"""Atomic writing of files, by a thread too, and removal of unfinished ones."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from mm_runner.errors import CheckpointWriteError

from ._content import first_line, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

_SUFFIX = ".unfinished"


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
        """Do nothing: ``write_atomically`` flushes the file."""


def write_atomically(path: Path, write: Callable[[Any], object]) -> None:
    """Call ``write`` with a file beside ``path``, flush it to the disk, and rename it.

    Raises:
        CheckpointWriteError: If that failed; what was there before is untouched.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}{_SUFFIX}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            _lock(file)
            write(file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        if os.name != "nt":  # so that the rename survives a power cut
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except BaseException as error:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        if not isinstance(error, (OSError, RuntimeError)):  # torch calls a full disk RuntimeError
            raise
        raise write_error(path, error) from error


def write_error(path: Path, error: BaseException) -> CheckpointWriteError:
    """Return the error for a checkpoint that cannot be written."""
    return CheckpointWriteError(
        f"Writing {path} failed: {first_line(error).rstrip('.')}. Free space or make the directory "
        "writable; the checkpoints before this one are untouched."
    )


def remove_unfinished(directory: Path) -> list[Path]:
    """Remove files of ``directory`` that killed processes left unfinished, and return them.

    A file that another process is writing is locked, and stays. Where files cannot be locked, all
    stay.
    """
    removed = []
    for path in directory.glob(f".*{_SUFFIX}"):
        with suppress(OSError), path.open("rb+") as file:
            if _lock(file):
                path.unlink()
                removed.append(path)
    return removed


def _lock(file: Any) -> bool:
    """Lock ``file`` until it is closed or the process ends; return whether that worked."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


class BackgroundWriter:
    """Copies a checkpoint, and lets a thread write the copy. One is written at a time.

    The copy's memory is kept for the next one, as allocating takes several times as long as
    copying. A program that ends, by an error too, ends after the file is whole.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._under_way: Future[object] | None = None

    def submit(
        self,
        checkpoint: Mapping[str, Any],
        write: Callable[[Any], object],
        copied: Callable[..., Any] = plain,
    ) -> None:
        """Copy ``checkpoint``, and return while a thread calls ``write`` with the copy.

        This waits for the write before: memory is kept for a single copy.

        Args:
            checkpoint: What to copy.
            write: Called with the copy.
            copied: Called with ``checkpoint`` and ``to_host``, a function of a tensor and its path
                that copies the tensor.

        Raises:
            CheckpointError: If ``checkpoint`` holds something that may not be saved.
            Exception: What writing the one before raised; then nothing is submitted.
        """
        self.wait()
        pool = ThreadPoolExecutor(1, thread_name_prefix="mm_runner-checkpoint")
        self._under_way = pool.submit(write, copied(checkpoint, to_host=self._reusing()))
        pool.shutdown(wait=False)

    def wait(self) -> None:
        """Wait until nothing is being written.

        Raises:
            Exception: What writing it raised, once.
        """
        self.join()
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def join(self) -> None:
        """Wait; the next :meth:`wait` raises a failure."""
        if self._under_way is not None:
            wait([self._under_way])

    def _reusing(self) -> Callable[[Tensor, str], Tensor]:
        """Return a function that copies a tensor to the host, reusing the last copy's memory."""
        buffers, self._buffers = self._buffers, {}
        copies: dict[tuple[Any, ...], Tensor] = {}

        def copy(value: Tensor, path: str) -> Tensor:
            # Tied weights are one tensor under two names; in the file they stay one.
            place = getattr(value, "_local_tensor", value).data_ptr()
            key = (place, value.device, value.dtype, value.shape, value.stride())
            if value.numel() == 0 or key not in copies:
                buffer = buffers.pop(path, None)
                form = (value.shape, value.dtype, value.stride())
                if buffer is None or (buffer.shape, buffer.dtype, buffer.stride()) != form:
                    buffer = _allocate(value)
                copies[key] = self._buffers[path] = buffer.copy_(value)
            return copies[key]

        return copy


def _allocate(value: Tensor) -> Tensor:
    """Return an uninitialized tensor on the host, of the same shape, type and memory format."""
    if value.device.type != "cpu":
        with suppress(RuntimeError):  # a device whose memory the host cannot pin
            return torch.empty_like(value, device="cpu", pin_memory=True)
    return torch.empty_like(value, device="cpu")
