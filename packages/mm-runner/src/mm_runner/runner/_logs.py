"""What a run writes besides checkpoints: lines, scalars, its configuration."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import mm_dist
from mm_runner.checkpoint import plain
from mm_runner.registry import LOG_WRITERS
from mm_runner.reporting import LogProcessor, RunConsole, close_logger, open_logger

from ._checks import checked_mapping
from ._work_dir import open_work_dir

__all__ = ["RunLogs", "build_log_processor", "plain_config"]


class RunLogs:
    """The console, the logger and the files of one run, in a directory of its own.

    Args:
        work_dir: Created if absent.
        experiment_name: Put before the timestamp in the run's name.
        level: As in :mod:`logging`.
        config: The configuration in primitives, kept beside the logs.

    Raises:
        WorkDirError: If ``work_dir`` cannot be written.
    """

    def __init__(
        self,
        work_dir: str | Path,
        experiment_name: str | None,
        level: str | int,
        config: dict[str, Any],
    ) -> None:
        self.work_dir, self.log_dir, self.timestamp = open_work_dir(work_dir)
        self.experiment_name = "_".join(filter(None, (experiment_name, self.timestamp)))
        self.config_text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        is_main = mm_dist.is_main_process()
        self.console = RunConsole(is_main=is_main)
        self.logger = open_logger(
            f"{self.experiment_name}.rank{mm_dist.get_rank()}",
            self.console,
            self.log_dir / f"{self.timestamp}.log" if is_main else None,
            level,
        )
        # The file is closed with the run: a search over many runs must not run out of files.
        weakref.finalize(self, close_logger, self.logger)
        self._writers: list[Any] = []
        if is_main:
            (self.log_dir / "config.yaml").write_text(self.config_text, encoding="utf-8")
            self._writers = [LOG_WRITERS.get("JsonLinesWriter")(self.log_dir)]

    def write_scalars(self, record: Mapping[str, Any]) -> None:
        """Append ``record`` to the files of scalars; only the main process has any."""
        for writer in self._writers:
            writer.write(record)


def build_log_processor(value: Any) -> LogProcessor:
    """Return ``value`` if it is a :class:`LogProcessor`, else one built from its arguments.

    Raises:
        ConfigError: If an argument is unknown.
    """
    if isinstance(value, LogProcessor):
        return value
    known = ("type", "window_size", "by_epoch", "num_digits")
    arguments = checked_mapping(value, "log_processor", known)
    arguments.pop("type", None)  # MMEngine's configs name the one there is
    return LogProcessor(**arguments)


def plain_config(value: Any) -> Any:
    """Return ``value`` in primitives that YAML can hold; objects appear as their type's name."""
    if isinstance(value, Mapping):
        return {str(key): plain_config(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_config(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return plain(value)  # without a subclass's name, which YAML cannot hold
    if isinstance(value, type):
        return f"{value.__module__}:{value.__qualname__}"
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
