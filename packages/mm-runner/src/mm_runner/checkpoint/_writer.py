"""Background writing of checkpoints."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from ._content import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

__all__ = ["BackgroundWriter"]


class BackgroundWriter:
    """Copies a checkpoint, and lets a thread write the copy. One is written at a time.

    The copy's memory is kept for the next one: new memory has to be given to the process page by
    page, which takes several times as long as the copy itself.

    The thread is none that the interpreter leaves behind: a program that ends, by an error too,
    ends after the file is whole.

    Example:
        >>> writer = BackgroundWriter()
        >>> writer.submit({"step": 3}, print)
        {'step': 3}
        >>> writer.wait()

    Attributes:
        is_abandoned: Set while a run that failed waits for the thread: other processes may have
            exited.
    """

    def __init__(self) -> None:
        self.is_abandoned = threading.Event()
        self._buffers: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, checkpoint: Mapping[str, Any], write: Callable[[Any], object]) -> None:
        """Copy ``checkpoint``, and return while a thread calls ``write`` with the copy.

        The one before is waited for: memory is kept for a single copy.

        Raises:
            CheckpointError: If ``checkpoint`` holds something that may not be saved.
            Exception: What writing the one before raised; then nothing is submitted.
        """
        self.wait()
        copied = self._copied(checkpoint)
        self._thread = threading.Thread(
            target=self._run, args=(write, copied), name="mm_runner-checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until nothing is being written.

        Raises:
            Exception: What writing it raised, once.
        """
        self.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def join(self) -> None:
        """Wait likewise, and leave a failure to the next :meth:`wait`."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def abandon(self) -> None:
        """Wait likewise, but not for other processes."""
        self.is_abandoned.set()
        self.join()
        self.is_abandoned.clear()

    def _copied(self, checkpoint: Mapping[str, Any]) -> Any:
        """Return ``checkpoint`` with every tensor copied to the host, into the memory kept."""
        buffers, self._buffers = self._buffers, {}
        copies: dict[tuple[Any, ...], Tensor] = {}

        def copy(value: Tensor, path: str) -> Tensor:
            if value.layout is not torch.strided or value.is_quantized:
                return value.cpu().clone()
            # Tied weights are one tensor under two names; in the file they stay one.
            key = (value.data_ptr(), value.device, value.dtype, value.shape, value.stride())
            if value.numel() == 0 or key not in copies:
                buffer = buffers.pop(path, None)
                if buffer is None or not _is_alike(buffer, value):
                    buffer = _allocate(value)
                copies[key] = self._buffers[path] = buffer.copy_(value)
            return copies[key]

        return plain(checkpoint, to_host=copy)

    def _run(self, write: Callable[[Any], object], copied: Any) -> None:
        try:
            write(copied)
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            self._failure = error


def _is_alike(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


def _allocate(value: Tensor) -> Tensor:
    """Return an uninitialised tensor on the host, of the same shape, type and memory format."""
    if value.device.type != "cpu":
        with suppress(RuntimeError):  # a device whose memory the host cannot pin
            return torch.empty_like(value, device="cpu", pin_memory=True)
    return torch.empty_like(value, device="cpu")
