"""Log lines, scalars and the resolved configuration of a run."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.config._config_dict import to_primitives
from mm_runner.errors import ConfigError
from mm_runner.evaluator import as_number
from mm_runner.registry import LOG_WRITERS, build_from_cfg, need_mapping, short_repr
from mm_runner.reporting import (
    GuardedWriter,
    JsonLinesWriter,
    RunConsole,
    close_logger,
    open_logger,
)

from ._work_dir import open_work_dir

if TYPE_CHECKING:
    from ._runner import Runner

# Longer lists of numbers or samples are not written to config.yaml.
_LONGEST_WRITTEN = 1000


class RunLogs:
    """The console, the logger, the log directory and the writers of scalars of one run.

    Args:
        run: The run; as its ``visualizer`` this takes scalars, images and configurations.
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
        run: Runner,
        work_dir: str | Path,
        experiment_name: str | None,
        level: str | int | None,
        config: dict[str, Any],
        writers: Mapping[str, Any],
    ) -> None:
        self._run = run
        self.work_dir, self.log_dir, self.timestamp = open_work_dir(work_dir)
        self.experiment_name = "_".join(filter(None, (experiment_name, self.timestamp)))
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
        self._config: dict[str, Any] = {}
        self.dump_config(config)
        if is_main:
            self._writers.append(GuardedWriter(JsonLinesWriter(self.log_dir), self.logger.warning))
        if writers:
            run_on_main(lambda: self._open_writers(writers))

    def dump_config(self, changes: Mapping[str, Any]) -> None:
        """Write the configuration with ``changes``, in primitives; only the main process does."""
        import yaml  # noqa: PLC0415 - importing the Runner stays cheap

        config = {**self._config, **changes}
        if config != self._config:
            self._config = config
            self.config_text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
            if mm_dist.is_main_process():
                path = self.log_dir / "config.yaml"
                path.write_text(self.config_text, encoding="utf-8")

    def give(self, method: str, *arguments: Any) -> None:
        """Call ``method`` of the writers that have it; only the main process has any."""
        for writer in self._writers:
            writer.call(method, *arguments)

    def _open_writers(self, writers: Mapping[str, Any]) -> None:
        for where, given in writers.items():
            writer = given
            if isinstance(given, Mapping):
                defaults = {"log_dir": self.log_dir}
                writer = build_from_cfg(given, LOG_WRITERS, defaults, where=where)
            if not callable(getattr(writer, "write", None)):
                raise ConfigError(f"{where}: {type(writer).__name__} has no write(record).")
            self._writers.append(GuardedWriter(writer, self.logger.warning))

    # MMEngine's visualizer. Every process may call these: the main one writes.

    def add_scalar(self, name: str, value: float | torch.Tensor, step: int = 0) -> None:
        """Write one scalar; see :meth:`add_scalars`."""
        self.add_scalars({name: value, "step": step})

    def add_scalars(
        self,
        scalar_dict: Mapping[str, float | torch.Tensor],
        step: int = 0,
        file_path: str | None = None,  # noqa: ARG002 - MMEngine's signature
    ) -> None:
        """Write scalars to ``scalars.jsonl`` and all writers; this waits for the device of tensors.

        Args:
            scalar_dict: Numbers, or tensors of one element, by name. The names of a phase begin
                with ``train/``, ``val/`` or ``test/``; the ``mode`` of others is ``"other"``.
            step: Training steps done. Defaults to 0; ``scalar_dict["step"]`` wins, and
                ``scalar_dict["epoch"]`` over the epoch of the run.
            file_path: Accepted for MMEngine's signature; all scalars are in ``scalars.jsonl``.

        Raises:
            ConfigError: If ``scalar_dict`` is no dict, or a value no number.
        """
        place, by_phase = {"step": int(step)}, dict[str, dict[str, Any]]()
        for name, given in need_mapping(scalar_dict, "visualizer.add_scalars").items():
            value = as_number(given)
            if value is None:
                raise ConfigError(
                    f"visualizer.add_scalars: {name!r} needs a number, or a tensor of one element, "
                    f"got {short_repr(given)}."
                )
            phase, _, bare = str(name).partition("/")
            if name in ("step", "epoch"):
                place[name] = int(value)
            elif phase in ("train", "val", "test") and bare:
                by_phase.setdefault(phase, {})[bare] = value
            else:
                by_phase.setdefault("other", {})[name] = value
        for phase, scalars in by_phase.items():
            self._run.write_scalars(phase, {**scalars, **place}, step=place["step"])

    def add_image(self, name: str, image: Any, step: int = 0) -> None:
        """Pass an image to the writers that keep images.

        Args:
            name: Of the image.
            image: An array or a tensor of shape ``(height, width)`` or ``(height, width,
                channels)``, with 1, 3 or 4 channels, red first.
            step: Training steps done. Defaults to 0.
        """
        # The caller may keep drawing into it.
        copied = image.cpu().clone() if isinstance(image, torch.Tensor) else image.copy()
        self.give("add_image", name, copied, int(step))

    def add_config(self, config: Mapping[str, Any]) -> None:
        """Add keys of a configuration to ``config.yaml``, and to the writers that keep it."""
        self.dump_config(plain_config(config))
        self.give("add_config", plain_config(config))


def _close(writers: list[GuardedWriter], logger: logging.Logger) -> None:
    for writer in writers:
        writer.call("close")
    close_logger(logger)


def plain_config(value: Any) -> Any:
    """Return ``value`` in primitives that YAML can hold; objects appear as their type's name.

    Classes, functions and torch's number types are written as a configuration can name them. Of a
    list of more than 1000 numbers or samples, which takes minutes to write, only the length is
    named.
    """
    if isinstance(value, Mapping):
        return {str(key): plain_config(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        first = value[0] if len(value) > _LONGEST_WRITTEN else ""
        is_of_configs = isinstance(first, str) or (isinstance(first, Mapping) and "type" in first)
        name = f"<{type(value).__name__} of {len(value)} samples>"
        return [plain_config(one) for one in value] if is_of_configs else name
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return to_primitives(value)
