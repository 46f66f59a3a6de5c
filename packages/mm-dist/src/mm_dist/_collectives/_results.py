"""Collect the results of an evaluation in the order of its data set."""

import operator
from itertools import chain, zip_longest
from typing import Any

from mm_dist._collectives._objects import all_gather_object, gather_object
from mm_dist._errors import ArgumentTypeError, CollectiveError, ConfigError

_DEVICES = ("cpu", "gpu", "npu")
_NOTHING = object()


def collect_results(
    results: list[Any],
    size: int,
    device: str = "cpu",
    tmpdir: str | None = None,  # noqa: ARG001 (MMEngine's signature)
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
        tmpdir: Unused, as ``device``: the results travel through the process group.

    Returns:
        On rank 0 exactly ``size`` results; elsewhere ``None``.

    Raises:
        ArgumentTypeError: If ``results`` is no list.
        CollectiveError: If a rank failed, or the ranks passed different arguments; raised on all
            ranks.
        ConfigError: If the ranks together have fewer than ``size`` results, or an argument is not
            known.

    Example:
        >>> collect_results([0.5, 0.7, 0.5], size=2)
        [0.5, 0.7]
    """
    counts = _agree_on_call(results, size, device)
    if sum(counts) < size:
        raise ConfigError(
            f"collect_results was asked for {size} results, but all {len(counts)} ranks together "
            f"have {sum(counts)}; pass the data set's length, and evaluate all of it."
        )
    parts = gather_object(results)
    if parts is None:
        return None
    rounds = chain.from_iterable(zip_longest(*parts, fillvalue=_NOTHING))
    return [result for result in rounds if result is not _NOTHING][:size]


def collect_results_cpu(
    result_part: list[Any], size: int, tmpdir: str | None = None
) -> list[Any] | None:
    """Collect every rank's results on rank 0; ``collect_results`` under another name."""
    return collect_results(result_part, size, "cpu", tmpdir)


def collect_results_gpu(result_part: list[Any], size: int) -> list[Any] | None:
    """Collect every rank's results on rank 0; ``collect_results`` under another name."""
    return collect_results(result_part, size, "gpu")


def _agree_on_call(results: object, size: Any, device: str) -> list[int]:
    """Return the number of results of each rank; raise on all ranks what is wrong on one."""
    error: Exception | None = None
    own: tuple[str, int, int] = ("", 0, 0)
    try:
        _check_arguments(results, size, device)
        own = ("", len(results), operator.index(size))  # type: ignore[arg-type]
    except (ArgumentTypeError, ConfigError) as caught:
        error = caught
        own = (f"{type(caught).__name__}: {caught}", 0, 0)
    messages, counts, sizes = zip(*all_gather_object(own), strict=True)
    if all(messages) and error is not None:
        raise error
    for rank, message in enumerate(messages):
        if message:
            raise CollectiveError(f"collect_results failed on rank {rank}: {message}") from error
    if len(set(sizes)) > 1:
        raise CollectiveError(
            f"collect_results was called with size={list(sizes)}; pass the same on all ranks."
        )
    return list(counts)


def _check_arguments(results: object, size: Any, device: str) -> None:
    if not isinstance(results, list):
        raise ArgumentTypeError(f"collect_results takes a list, got {type(results)}.")
    if not hasattr(size, "__index__") or operator.index(size) < 0:
        raise ConfigError(f"size={size!r} is no length; pass that of the data set.")
    if device not in _DEVICES:
        raise ConfigError(f"device={device!r} is not known; there are: {', '.join(_DEVICES)}.")
