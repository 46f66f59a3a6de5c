"""Files that keep a run's scalars."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JsonLinesWriter", "LogWriter", "axis_of", "is_number", "named_scalars"]

_POSITION = ("mode", "epoch", "step", "axis")


class LogWriter(Protocol):
    """What keeps scalars; the Runner builds one from ``dict(type=..., **arguments)``.

    It is given ``log_dir``, the existing directory of the run's log files (a ``Path``), where
    ``config.yaml`` is the resolved configuration, besides the arguments. All calls come from one
    thread, which is not the training's; an exception is told once and ends nothing.
    ``close()``, if there is one, is called at the end, and for ``runner.visualizer``
    ``add_image(name, image, step)`` and ``add_config(config)``.
    """

    def write(self, record: Mapping[str, Any]) -> None:
        """Keep a record: ``mode`` (``"train"``, ``"val"``, ``"test"``), ``epoch``, ``step``, ...

        One that is to be drawn by epoch has ``axis="epoch"``; what belongs to no phase has the mode
        ``"other"``.
        """


class JsonLinesWriter:
    """Appends one JSON object per log line to ``scalars.jsonl``.

    Args:
        log_dir: Existing directory of the run's log files.
        save_dir: Where to write instead; created if absent.
    """

    def __init__(self, log_dir: Path, save_dir: str | Path | None = None) -> None:
        directory = log_dir if save_dir is None else Path(save_dir)
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "scalars.jsonl"

    def write(self, record: Mapping[str, Any]) -> None:
        """Append ``record``; a value that JSON has no number for (nan, inf) becomes ``null``."""
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
            if key != "axis"  # both are here
        }
        line = (json.dumps(finite) + "\n").encode()
        try:
            self._append(line)
        except FileNotFoundError:  # its directory was removed
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._append(line)

    def _append(self, line: bytes) -> None:
        # Opened for each line: lines are rare, and what a killed run wrote last is on the disk.
        # Without Python's layers of files, which take five times as long.
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            while line:
                line = line[os.write(file, line) :]
        finally:
            os.close(file)


def axis_of(record: Mapping[str, Any]) -> str:
    """Return the name of what ``record`` is drawn by: ``"step"``, or ``"epoch"`` if it says so."""
    return "epoch" if record.get("axis") == "epoch" else "step"


def is_number(value: Any) -> bool:
    """Tell whether ``value`` can be a point of a curve."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def named_scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of ``record`` with its mode before their names, unless it is ``"other"``.

    Example:
        >>> named_scalars({"mode": "val", "epoch": 1, "step": 6, "accuracy": 0.5})
        {'val/accuracy': 0.5}
    """
    mode = record.get("mode", "train")
    prefix = "" if mode == "other" else f"{mode}/"
    return {
        f"{prefix}{name}": value
        for name, value in record.items()
        if name not in _POSITION and is_number(value)
    }
