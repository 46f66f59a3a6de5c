"""Pass results through files in a directory that all ranks share."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from mm_dist._collectives._check import describe_ranks
from mm_dist._collectives._failure import raise_on_all
from mm_dist._collectives._object_wire import ObjectWire
from mm_dist._collectives._result_stream import dump_results, load_results
from mm_dist._errors import ConfigError

_CALL = "collect_results"


def pass_through_files(wire: ObjectWire, results: list[Any], tmpdir: str) -> list[list[Any]] | None:
    """Write every rank's results to a file of its own, and read them all on the first rank.

    The files lie in a new folder below ``tmpdir``, which is removed in any case.

    Returns:
        On the first rank the results of each; elsewhere ``None``.

    Raises:
        CollectiveError: If writing or reading failed on any rank; raised on all.
        ConfigError: If ``tmpdir`` cannot be used, or not by all ranks; raised on all.
    """
    folder = _make_folder(wire, tmpdir)
    try:
        _check_shared(wire, folder, tmpdir)
        _write(wire, results, folder)
        return _read(wire, results, folder)
    finally:
        # The others have stopped writing: all have met since, unless one is gone.
        if wire.index == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _make_folder(wire: ObjectWire, tmpdir: str) -> Path:
    """Make a new folder on the first rank, and return it on all."""
    path, problem = "", ""
    if wire.index == 0:
        try:
            Path(tmpdir).mkdir(parents=True, exist_ok=True)
            path = tempfile.mkdtemp(prefix="results-", dir=Path(tmpdir).resolve())
        except OSError as error:
            problem = str(error)
    problem = wire.gather_texts(problem)[0]
    if problem:
        raise ConfigError(f"tmpdir={tmpdir!r} cannot be used by rank 0: {problem}.")
    return Path(wire.gather_texts(path)[0])


def _check_shared(wire: ObjectWire, folder: Path, tmpdir: str) -> None:
    rows = wire.gather_numbers([int(folder.is_dir())])
    blind = [wire.ranks[index] for index, (sees,) in enumerate(rows) if not sees]
    if blind:
        raise ConfigError(
            f"tmpdir={tmpdir!r} is not shared: rank 0 made {folder}, which {describe_ranks(blind)} "
            "cannot see. Use a directory of a shared file system, or leave tmpdir out."
        )


def _write(wire: ObjectWire, results: list[Any], folder: Path) -> None:
    error = None
    try:
        if wire.index > 0:
            with _file_of(folder, wire.index).open("wb") as file:
                dump_results(results, file)
    except Exception as caught:  # noqa: BLE001 (raised on all ranks)
        error = caught
    raise_on_all(wire, _CALL, error)


def _read(wire: ObjectWire, results: list[Any], folder: Path) -> list[list[Any]] | None:
    parts: list[list[Any]] | None = None
    error = None
    try:
        if wire.index == 0:
            others = range(1, len(wire.ranks))
            parts = [results, *(_read_file(_file_of(folder, index)) for index in others)]
    except Exception as caught:  # noqa: BLE001 (raised on all ranks)
        error = caught
    raise_on_all(wire, _CALL, error)
    return parts


def _read_file(file: Path) -> list[Any]:
    with file.open("rb") as opened:
        return load_results(opened)


def _file_of(folder: Path, index: int) -> Path:
    return folder / f"{index}.pkl"
