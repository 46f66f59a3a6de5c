"""Collect the results of an evaluation in the order of its data set."""

import operator
import os
import pickle
from contextlib import suppress
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from mm_dist._collectives._objects import all_gather_object, gather_object
from mm_dist._collectives._pickling import TensorPickler
from mm_dist._collectives._seed import sync_random_seed
from mm_dist._errors import ArgumentTypeError, CollectiveError, ConfigError
from mm_dist._info import get_rank, get_world_size
from mm_dist._process_group import is_distributed

_DEVICES = ("cpu", "gpu", "npu")
_NOTHING = object()


def collect_results(
    results: list[Any], size: int, device: str = "cpu", tmpdir: str | None = None
) -> list[Any] | None:
    """Collect every rank's results on rank 0, in the order of the data set.

    The ranks' results are interleaved, as the usual samplers deal the data: rank 0 has items 0,
    N, 2N, ... of N ranks. What such a sampler added at the end to give all ranks the same number
    is cut off. A result can be anything that can be pickled, ``None`` too, which is kept. Tensors
    arrive as in ``all_gather_object``.

    Args:
        results: This rank's results; ranks may have different numbers, or none.
        size: Length of the data set.
        device: ``cpu``, ``gpu`` or ``npu``, for MMEngine's sake: the backend decides anyway.
        tmpdir: A directory that all ranks share, to pass the results through files instead of
            the process group. It is created if need be; what else is in it stays.

    Returns:
        On rank 0 exactly ``size`` results; elsewhere ``None``.

    Raises:
        ArgumentTypeError: If ``results`` is no list, or ``tmpdir`` no path.
        CollectiveError: If a rank failed, or the ranks passed different arguments; raised on all
            ranks.
        ConfigError: If the ranks together have fewer than ``size`` results, or an argument is not
            known.

    Example:
        >>> collect_results([0.5, 0.7, 0.5], size=2)
        [0.5, 0.7]
    """
    counts = _agree_on_call(results, size, device, tmpdir)
    if sum(counts) < size:
        raise ConfigError(
            f"collect_results was asked for {size} results, but all {len(counts)} ranks together "
            f"have {sum(counts)}; pass the data set's length, and evaluate all of it."
        )
    if not is_distributed():
        return results[:size]
    parts = gather_object(results) if tmpdir is None else _pass_through_files(results, Path(tmpdir))
    if parts is None:
        return None
    rounds = chain.from_iterable(zip_longest(*parts, fillvalue=_NOTHING))
    return [result for result in rounds if result is not _NOTHING][:size]


def collect_results_cpu(
    result_part: list[Any], size: int, tmpdir: str | None = None
) -> list[Any] | None:
    """Collect every rank's results on rank 0; ``collect_results`` under another name.

    Args:
        result_part: This rank's results.
        size: Length of the data set.
        tmpdir: A directory that all ranks share, to pass the results through files.

    Returns:
        On rank 0 exactly ``size`` results; elsewhere ``None``.

    Raises:
        MMDistError: As ``collect_results``.

    Example:
        >>> collect_results_cpu([0.5, 0.7, 0.5], size=2)
        [0.5, 0.7]
    """
    return collect_results(result_part, size, "cpu", tmpdir)


def collect_results_gpu(result_part: list[Any], size: int) -> list[Any] | None:
    """Collect every rank's results on rank 0; ``collect_results`` under another name.

    Args:
        result_part: This rank's results.
        size: Length of the data set.

    Returns:
        On rank 0 exactly ``size`` results; elsewhere ``None``.

    Raises:
        MMDistError: As ``collect_results``.

    Example:
        >>> collect_results_gpu([0.5, 0.7, 0.5], size=2)
        [0.5, 0.7]
    """
    return collect_results(result_part, size, "gpu")


def _agree_on_call(results: object, size: Any, device: str, tmpdir: str | None) -> list[int]:
    """Return how many results each rank has, if all of them can go on; else all raise."""
    error: Exception | None = None
    own: tuple[Any, ...] = ("", 0, 0, False)
    try:
        _check_arguments(results, size, device, tmpdir)
        own = ("", len(results), operator.index(size), tmpdir is not None)  # type: ignore[arg-type]
    except (ArgumentTypeError, ConfigError) as caught:
        error = caught
        own = (f"{type(caught).__name__}: {caught}", 0, 0, False)
    messages, counts, sizes, use_files = zip(*all_gather_object(own), strict=True)
    if all(messages) and error is not None:
        raise error
    for rank, message in enumerate(messages):
        if message:
            raise CollectiveError(f"collect_results failed on rank {rank}: {message}") from error
    if len(set(sizes)) > 1 or len(set(use_files)) > 1:
        raise CollectiveError(
            f"collect_results was called with size={list(sizes)} and with a tmpdir on "
            f"{sum(use_files)} of {len(use_files)} ranks; pass the same on all of them."
        )
    return list(counts)


def _check_arguments(results: object, size: Any, device: str, tmpdir: str | None) -> None:
    if not isinstance(results, list):
        raise ArgumentTypeError(f"collect_results takes a list, got {type(results)}.")
    if not hasattr(size, "__index__") or operator.index(size) < 0:
        raise ConfigError(f"size={size!r} is no length; pass that of the data set.")
    if device not in _DEVICES:
        raise ConfigError(f"device={device!r} is not known; there are: {', '.join(_DEVICES)}.")
    if tmpdir is not None and not isinstance(tmpdir, (str, os.PathLike)):
        raise ArgumentTypeError(
            f"tmpdir={tmpdir!r} is no path; pass that of a directory which all ranks share, or "
            "None to send the results through the process group."
        )
    if tmpdir is not None and device != "cpu":
        raise ConfigError(f"tmpdir={tmpdir!r} goes with device='cpu' only, got {device!r}.")


def _pass_through_files(results: list[Any], folder: Path) -> list[list[Any]] | None:
    """Write every rank's results to a file, and read them all on rank 0."""
    run = sync_random_seed()
    files = [folder / f"results-{run}-{rank}.pkl" for rank in range(get_world_size())]
    try:
        _raise_on_all(_try_to_write(results, files[get_rank()]))
        parts, error = _try_to_read(files) if get_rank() == 0 else (None, "")
        _raise_on_all(error)
    finally:
        with suppress(OSError):
            files[get_rank()].unlink()
    return parts


def _try_to_write(results: list[Any], path: Path) -> str:
    """Return the error in one line; empty if there is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            TensorPickler(file).dump(results)
    except Exception as error:  # noqa: BLE001 (raised on all ranks)
        return f"{type(error).__name__}: {error}"
    return ""


def _try_to_read(files: list[Path]) -> tuple[list[list[Any]] | None, str]:
    try:
        return [pickle.loads(file.read_bytes()) for file in files], ""  # noqa: S301 (own ranks)
    except Exception as error:  # noqa: BLE001 (raised on all ranks)
        return None, f"{type(error).__name__}: {error}; do all ranks share tmpdir?"


def _raise_on_all(error: str) -> None:
    for rank, message in enumerate(all_gather_object(error)):
        if message:
            raise CollectiveError(f"collect_results failed on rank {rank}: {message}")
