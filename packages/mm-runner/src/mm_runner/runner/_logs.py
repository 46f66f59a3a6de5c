"""Log lines, scalars and the resolved configuration of a run."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import torch

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.checkpoint import plain
from mm_runner.errors import ConfigError
from mm_runner.registry import LOG_WRITERS, build_from_cfg
from mm_runner.reporting import (
    GuardedWriter,
    JsonLinesWriter,
    RunConsole,
    close_logger,
    open_logger,
)

from ._work_dir import open_work_dir

__all__ = ["RunLogs", "plain_config"]

# What a writer may have besides write().
_EXTRAS = ("add_config", "add_image")
# Items of a list that config.yaml still holds.
_LONGEST_WRITTEN = 1000


class RunLogs:
    """The console, the logger and the log directory of one run.

    Args:
        work_dir: Created if absent.
        experiment_name: Put before the timestamp in the run's name.
        level: As in :mod:`logging`.
        config: The configuration in primitives, kept beside the logs.
        writers: Configs of what keeps scalars besides ``scalars.jsonl``, or such writers, by path.

    Raises:
        WorkDirError: If ``work_dir`` cannot be written.
        ConfigError: On all processes, if a writer cannot be built.
    """

    def __init__(
        self,
        work_dir: str | Path,
        experiment_name: str | None,
        level: str | int,
        config: dict[str, Any],
        writers: Mapping[str, Any] | None = None,
    ) -> None:
        self.work_dir, self.log_dir, self.timestamp = open_work_dir(work_dir)
        self.experiment_name = "_".join(filter(None, (experiment_name, self.timestamp)))
        self._config = config
        self.config_text = _as_yaml(config)
        is_main = mm_dist.is_main_process()
        self.console = RunConsole(is_main=is_main)
        self.logger = open_logger(
            f"{self.experiment_name}.rank{mm_dist.get_rank()}",
            self.console,
            self.log_dir / f"{self.timestamp}.log" if is_main else None,
            level,
        )
        self._writers: list[GuardedWriter] = []  # only the main process has any
        # Closed with the run: a search over many runs must not run out of files.
        weakref.finalize(self, _close, self._writers, self.logger)
        # What writers can do besides keeping records, alike on all processes.
        self.abilities: frozenset[str] = frozenset()
        if is_main:
            self._write_config()
            self._writers.append(GuardedWriter(JsonLinesWriter(self.log_dir), self.logger.warning))
        if writers:
            self.abilities = run_on_main(functools.partial(self._open_writers, writers))

    def dump_config(self, changes: Mapping[str, Any]) -> None:
        """Write the configuration with ``changes``, in primitives; only the main process does."""
        config = {**self._config, **changes}
        if config == self._config:
            return
        self._config, self.config_text = config, _as_yaml(config)
        if self._writers:
            self._write_config()

    def give(self, method: str, *arguments: Any) -> None:
        """Call ``method`` of the writers that have it; only the main process has any."""
        for writer in self._writers:
            writer.call(method, *arguments)

    def write_scalars(
        self,
        phase: str,
        scalars: Mapping[str, Any],
        *,
        epoch: int,
        step: int,
        by_epoch: bool = False,
    ) -> None:
        """Append a record to the files of scalars; only the main process has any.

        Args:
            phase: ``"train"``, ``"val"`` or ``"test"``.
            scalars: Numbers by name.
            epoch: In training the epoch under way, else epochs done.
            step: Training steps done.
            by_epoch: Let writers such as TensorBoard's draw it by epoch instead of by step.
        """
        record = {"mode": phase, "epoch": epoch, "step": step, **scalars}
        for writer in self._writers:
            writer.call("write", {**record, "axis": "epoch"} if by_epoch else record)

    def _write_config(self) -> None:
        (self.log_dir / "config.yaml").write_text(self.config_text, encoding="utf-8")

    def _open_writers(self, writers: Mapping[str, Any]) -> frozenset[str]:
        for where, given in writers.items():
            writer = given
            if isinstance(given, Mapping):
                defaults = {"log_dir": self.log_dir}
                writer = build_from_cfg(given, LOG_WRITERS, defaults, where=where)
            if not callable(getattr(writer, "write", None)):
                raise ConfigError(f"{where}: {type(writer).__name__} has no write(record).")
            self._writers.append(GuardedWriter(writer, self.logger.warning))
        return frozenset(name for name in _EXTRAS if any(one.can(name) for one in self._writers))


def _as_yaml(config: dict[str, Any]) -> str:
    import yaml  # noqa: PLC0415 - importing the Runner stays cheap

    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def _close(writers: list[GuardedWriter], logger: logging.Logger) -> None:
    for writer in writers:
        writer.call("close")
    close_logger(logger)


def plain_config(value: Any) -> Any:
    """Return ``value`` in primitives that YAML can hold; objects appear as their type's name.

    Classes and torch's number types are written as a configuration can name them. Of a list of
    more than 1000 numbers or samples, which takes minutes to write, only the length is named.
    """
    if isinstance(value, Mapping):
        return {str(key): plain_config(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        first = value[0] if len(value) > _LONGEST_WRITTEN else ""
        is_of_configs = isinstance(first, str) or (isinstance(first, Mapping) and "type" in first)
        name = f"<{type(value).__name__} of {len(value)} samples>"
        return [plain_config(one) for one in value] if is_of_configs else name
    value = str(value) if isinstance(value, PurePath) else value
    if value is None or isinstance(value, (bool, int, float, str)):
        return plain(value)  # without a subclass's name, which YAML cannot hold
    if isinstance(value, type):
        return f"{value.__module__}:{value.__qualname__}"
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
