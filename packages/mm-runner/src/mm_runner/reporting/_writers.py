"""Files that keep a run's scalars."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["JsonLinesWriter"]


class JsonLinesWriter:
    """Appends one JSON object per log line to ``scalars.jsonl``.

    Args:
        log_dir: Existing directory of the run's log files.
    """

    def __init__(self, log_dir: Path) -> None:
        self._path = log_dir / "scalars.jsonl"

    def write(self, record: Mapping[str, Any]) -> None:
        """Append ``record``; a value that JSON has no number for (nan, inf) becomes ``null``."""
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        # Opened for each line: lines are rare, and what a killed run wrote last is on the disk.
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite) + "\n")
