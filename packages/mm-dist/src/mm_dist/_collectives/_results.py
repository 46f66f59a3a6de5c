"""Collect the results of an evaluation in the order of its data set."""

import pickle
import shutil
import tempfile
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from mm_dist._collectives._objects import all_gather_object, broadcast_object_list, gather_object
from mm_dist._errors import ArgumentTypeError, ConfigError
from mm_dist._info import barrier, get_rank, get_world_size, is_main_process
from mm_dist._process_group import is_distributed

_DEVICES = ("cpu", "gpu", "npu")
_NOTHING = object()


def collect_results(
    results: list[Any], size: int, device: str = "cpu", tmpdir: str | None = None
) -> list[Any] | None:
    """Collect every rank's results on rank 0, in the order of the data set.

    The ranks' results are interleaved, as the usual samplers deal the data: rank 0 has items 0,
    N, 2N, ... of N ranks. What such a sampler added at the end to give all ranks the same number
    is cut off.

    Args:
        results: This rank's results; ranks may have different numbers, or none.
        size: Length of the data set.
        device: ``cpu``, ``gpu`` or ``npu``, for MMEngine's sake: the backend decides anyway.
        tmpdir: A directory that all ranks share, to pass the results through files instead of
            the process group. It is created if need be; what else is in it stays.

    Returns:
        On rank 0 exactly ``size`` results; elsewhere ``None``.

    Raises:
        ArgumentTypeError: If ``results`` is no list.
        ConfigError: If the ranks together have fewer than ``size`` results (raised on all of
            them), if the device is not known, or if ``tmpdir`` is not shared by all ranks.

    Example:
        >>> collect_results([0.5, 0.7, 0.5], size=2)
        [0.5, 0.7]
    """
    _check_arguments(results, device, tmpdir)
    # Every rank learns the total: one that raised alone would leave the others waiting.
    total = sum(all_gather_object(len(results)))
    if total < size:
        raise ConfigError(
            f"collect_results was asked for {size} results, but all {get_world_size()} ranks "
            f"together have {total}; pass the data set's length, and evaluate all of it."
        )
    use_files = tmpdir is not None and is_distributed()
    parts = _pass_through_files(results, str(tmpdir)) if use_files else gather_object(results)
    return None if parts is None else _interleave(parts)[:size]


def _check_arguments(results: object, device: str, tmpdir: str | None) -> None:
    if not isinstance(results, list):
        raise ArgumentTypeError(f"collect_results takes a list, got {type(results)}.")
    if device not in _DEVICES:
        raise ConfigError(f"device={device!r} is not known; there are: {', '.join(_DEVICES)}.")
    if tmpdir is not None and device != "cpu":
        raise ConfigError(f"tmpdir={tmpdir!r} goes with device='cpu' only, got {device!r}.")


def _interleave(parts: list[list[Any]]) -> list[Any]:
    rounds = chain.from_iterable(zip_longest(*parts, fillvalue=_NOTHING))
    return [result for result in rounds if result is not _NOTHING]


def _pass_through_files(results: list[Any], tmpdir: str) -> list[list[Any]] | None:
    folder = _make_shared_folder(tmpdir)
    (folder / f"{get_rank()}.pkl").write_bytes(pickle.dumps(results))
    barrier()
    if not is_main_process():
        return None
    files = [folder / f"{rank}.pkl" for rank in range(get_world_size())]
    parts = [pickle.loads(file.read_bytes()) for file in files]  # noqa: S301 (own ranks)
    shutil.rmtree(folder)
    return parts


def _make_shared_folder(tmpdir: str) -> Path:
    """Make a new folder on rank 0, and check that every rank sees it."""
    answer: list[Any] = [None]
    if is_main_process():
        answer = [_make_folder(tmpdir)]
    broadcast_object_list(answer)
    if isinstance(answer[0], OSError):
        raise ConfigError(f"tmpdir={tmpdir!r} cannot be used by rank 0: {answer[0]}.")
    folder = Path(answer[0])
    blind = [rank for rank, sees in enumerate(all_gather_object(folder.is_dir())) if not sees]
    if blind:
        raise ConfigError(
            f"tmpdir={tmpdir!r} is not shared: rank 0 made {folder}, which ranks {blind} do not "
            "see. Use a directory of a shared file system, or leave tmpdir out."
        )
    return folder


def _make_folder(tmpdir: str) -> str | OSError:
    # The error is returned, not raised: the other ranks are waiting for an answer.
    try:
        Path(tmpdir).mkdir(parents=True, exist_ok=True)
        return tempfile.mkdtemp(prefix="results-", dir=Path(tmpdir).resolve())
    except OSError as error:
        return error
