"""Collect the results of an evaluation in the order of its data set."""

import operator
import os
from itertools import chain, zip_longest
from typing import Any

from mm_dist._collectives._exchange import Exchange
from mm_dist._collectives._failure import raise_failure
from mm_dist._collectives._object_wire import ObjectWire
from mm_dist._collectives._result_files import pass_through_files
from mm_dist._collectives._result_stream import dump_results, load_results
from mm_dist._errors import ArgumentTypeError, CollectiveError, ConfigError
from mm_dist._process_group import is_distributed

_DEVICES = ("cpu", "gpu", "npu")
_NOTHING = object()


def collect_results(
    results: list[Any], size: int, device: str = "cpu", tmpdir: str | None = None
) -> list[Any] | None:
    """Collect every rank's results on rank 0, in the order of the data set.

    The ranks' results are interleaved, as the usual samplers deal the data: rank 0 has items 0,
    N, 2N, ... of N ranks. What such a sampler added at the end to give all ranks the same number
    is cut off. A result can be anything that can be pickled, ``None`` too, which is kept.

    Results travel to rank 0 only, one rank after the other, in chunks of 32 MiB: beside all the
    results, rank 0 needs memory for one chunk, and the others for one of their own. Tensors arrive
    as in ``all_gather_object``; what lies on an accelerator should be moved to the CPU before, or
    rank 0 needs room for all of it on its own accelerator.

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
        CollectiveError: If writing or reading results failed on a rank, or the ranks passed
            different arguments; raised on all ranks.
        ConfigError: If the ranks together have fewer than ``size`` results (raised on all of
            them), if the device is not known, or if ``tmpdir`` is not shared by all ranks.

    Example:
        >>> collect_results([0.5, 0.7, 0.5], size=2)
        [0.5, 0.7]
    """
    if not is_distributed():
        _check_arguments(results, size, device, tmpdir)
        _check_total([len(results)], size)
        return results[:size]
    wire = ObjectWire()
    counts = _agree_on_call(wire, results, size, device, tmpdir)
    _check_total(counts, size)
    if tmpdir is not None:
        parts = pass_through_files(wire, results, tmpdir)
    else:
        parts = _pass_through_group(wire, results)
    return None if parts is None else _interleave(parts)[:size]


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


def _agree_on_call(
    wire: ObjectWire, results: list[Any], size: int, device: str, tmpdir: str | None
) -> list[int]:
    """Return how many results each rank has, if all of them can go on; else all raise."""
    error: Exception | None = None
    own = [1, 0, 0, 0]
    try:
        _check_arguments(results, size, device, tmpdir)
        own = [0, len(results), operator.index(size), int(tmpdir is not None)]
    except (ArgumentTypeError, ConfigError) as caught:
        error = caught
    have_failed, counts, sizes, use_files = zip(*wire.gather_numbers(own), strict=True)
    if all(have_failed) and error is not None:
        raise error
    if any(have_failed):
        raise_failure(wire, "collect_results", have_failed.index(1), error)
    if len(set(sizes)) > 1 or len(set(use_files)) > 1:
        raise CollectiveError(
            f"collect_results was called with size={list(sizes)} and with a tmpdir on "
            f"{sum(use_files)} of {len(use_files)} ranks; pass the same on all of them."
        )
    return list(counts)


def _check_total(counts: list[int], size: int) -> None:
    total = sum(counts)
    if total < size:
        raise ConfigError(
            f"collect_results was asked for {size} results, but all {len(counts)} ranks together "
            f"have {total}; pass the data set's length, and evaluate all of it."
        )


def _pass_through_group(wire: ObjectWire, results: list[Any]) -> list[list[Any]] | None:
    is_receiver = wire.index == 0
    exchange = Exchange("collect_results", load_results, receiver=0)
    loaded = exchange.run(None if is_receiver else lambda file: dump_results(results, file))
    if not is_receiver:
        return None
    return [results, *(loaded[index] for index in range(1, len(wire.ranks)))]


def _interleave(parts: list[list[Any]]) -> list[Any]:
    rounds = chain.from_iterable(zip_longest(*parts, fillvalue=_NOTHING))
    return [result for result in rounds if result is not _NOTHING]
