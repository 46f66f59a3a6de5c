"""Collect the results of an evaluation in the order of its data set."""

import operator
from itertools import chain, zip_longest
from typing import Any

from mm_dist._collectives._objects import all_gather_object, gather_object
from mm_dist._errors import ArgumentTypeError, CollectiveError, ConfigError

_NOTHING = object()


def collect_results(
    results: list[Any],
    size: int,
    device: str = "cpu",  # noqa: ARG001 (MMEngine's signature)
    tmpdir: str | None = None,  # noqa: ARG001 (as above)
) -> list[Any] | None:
    """Collect every rank's results on rank 0, in the order of the data set.

    The ranks' results are interleaved, as the usual samplers deal the data: rank 0 has items 0,
    N, 2N, ... of N ranks. What such a sampler added at the end to give all ranks the same number
    is cut off. A result can be anything that can be pickled, ``None`` too, which is kept. Tensors
    arrive as in ``all_gather_object``.

    Args:
        results: This rank's results; ranks may have different numbers, or none.
        size: Length of the data set.
        device: Unused: the results travel through the process group.
        tmpdir: Unused, as ``device``.

    Returns:
        On rank 0 exactly ``size`` results; elsewhere ``None``.

    Raises:
        ArgumentTypeError: If ``results`` is no list.
        CollectiveError: If a result cannot be pickled, or the ranks passed different sizes; raised
            on all ranks.
        ConfigError: If the ranks together have fewer than ``size`` results.

    Example:
        >>> collect_results([0.5, 0.7, 0.5], size=2)
        [0.5, 0.7]
    """
    if not isinstance(results, list):
        raise ArgumentTypeError(f"collect_results takes a list, got {type(results)}.")
    if not hasattr(size, "__index__") or operator.index(size) < 0:
        raise ConfigError(f"size={size!r} is no length; pass that of the data set.")
    counts, sizes = zip(*all_gather_object((len(results), operator.index(size))), strict=True)
    if len(set(sizes)) > 1:
        raise CollectiveError(
            f"collect_results was called with size={list(sizes)}; pass the same on all ranks."
        )
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
