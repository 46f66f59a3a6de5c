"""Private names of torch that this package uses, each with what happens without it.

==================================================  =============================================
Name                                                Without it
==================================================  =============================================
``torch.serialization._open_zipfile_reader``,       No checkpoint is read, as one line says
``_load``; ``_legacy_load`` for old files
``_MultiProcessingDataLoaderIter``'s                Workers end when Python collects the loader,
``_shutdown_workers``, ``DataLoader._iterator``     or at the end of the process
``Tensor._version``                                 No change in place is noticed
``torch.utils.data._utils.worker._worker_info``     Sources of a stream that split by worker are
                                                    refused when they end too early
``lr_scheduler._LRScheduler`` (torch 1.13)          Only newer torch has ``LRScheduler``
==================================================  =============================================
"""

from __future__ import annotations

import inspect
import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data
from torch import Tensor
from torch.optim import lr_scheduler
from typing_extensions import override

from mm_runner.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_READERS, _LEGACY_READERS = ("_open_zipfile_reader", "_load"), ("_legacy_load",)


def read_with(
    unpickler: type[Any], path: Path, *, is_archive: bool, is_mapped: bool = False
) -> Any:
    """Read a file of ``torch.save`` onto the CPU with ``unpickler`` alone.

    ``torch.load`` itself would run a file that it takes for a TorchScript program.

    Raises:
        CheckpointError: If this version of torch lacks the functions.
    """
    names = _READERS if is_archive else _LEGACY_READERS
    found: list[Any] = [getattr(torch.serialization, name, None) for name in names]
    if None in found:
        raise CheckpointError(
            f"{path} cannot be read: torch {torch.__version__} lacks {', '.join(names)}, by which "
            "checkpoints are read without running code. Use another version of torch."
        )
    module, options = _PickleModule(unpickler), dict[str, Any](encoding="utf-8")
    if not is_archive:
        with io.BufferedReader(_Stream(path)) as stream:
            return found[0](stream, "cpu", module, **options)
    open_archive, load = found
    if is_mapped and "overall_storage" in inspect.signature(load).parameters:
        size = path.stat().st_size
        options["overall_storage"] = torch.UntypedStorage.from_file(
            str(path), shared=False, nbytes=size
        )
    with path.open("rb") as file, open_archive(file) as archive:
        return load(archive, "cpu", module, **options)


class _Stream(io.FileIO):
    """A file without a descriptor, with which torch reads no archive of its version 0.1."""

    @override
    def fileno(self) -> int:
        raise io.UnsupportedOperation


class _PickleModule:
    """The part of the module ``pickle`` that torch uses."""

    __name__ = "pickle"

    def __init__(self, unpickler: type[Any]) -> None:
        self.Unpickler = unpickler
        self.load = lambda file, **options: unpickler(file, **options).load()


def stop_workers(batches: Any, loader: Any = None) -> None:
    """End the workers of a ``DataLoader``'s iterator now, and those that the loader keeps.

    An iterator that ends up with Python's collector of cycles closes the queues to its workers
    first, so that they never hear of the end, and torch waits five seconds for each of them.

    Args:
        batches: The iterator; any other one is left alone.
        loader: With persistent workers; its next pass starts others.
    """
    for one in (batches, getattr(loader, "_iterator", None)):
        shut_down = getattr(one, "_shutdown_workers", None)
        if shut_down is not None:
            shut_down()
    if getattr(loader, "_iterator", None) is not None:
        loader._iterator = None  # noqa: SLF001


@contextmanager
def hidden_worker() -> Iterator[None]:
    """Let ``get_worker_info`` return ``None``, as in the main process."""
    worker: Any = getattr(torch.utils.data._utils, "worker", None)  # noqa: SLF001
    info = getattr(worker, "_worker_info", None)
    if info is None:
        yield
        return
    worker._worker_info = None  # noqa: SLF001
    try:
        yield
    finally:
        worker._worker_info = info  # noqa: SLF001


def version_of(tensor: Tensor) -> int:
    """Return torch's count of changes in place; tensors of inference mode have none."""
    return -1 if tensor.is_inference() else getattr(tensor, "_version", -1)


def scheduler_base() -> Any:
    """Return the base class of torch's schedules."""
    newer = getattr(lr_scheduler, "LRScheduler", None)
    return newer or lr_scheduler._LRScheduler  # noqa: SLF001
