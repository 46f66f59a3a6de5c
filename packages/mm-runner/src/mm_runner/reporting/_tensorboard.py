"""Scalars for TensorBoard."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from mm_runner.errors import ConfigError

from ._writers import axis_of, named_scalars

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TensorBoardWriter"]


class TensorBoardWriter:
    """Writes scalars as TensorBoard's events: ``train/loss`` by training step, ``val/accuracy``.

    Those of validations are by epoch or by step, as ``LoggerHook.log_metric_by_epoch`` says.
    ``tensorboard --logdir work_dir`` shows the runs of a work directory beside one another, each
    with its configuration as a text.

    Args:
        log_dir: Existing directory of the run's log files, where the events go.
        save_dir: Where they go instead; created if absent.

    Raises:
        ConfigError: If tensorboard, the extra ``tensorboard``, is not installed.
    """

    def __init__(self, log_dir: Path, save_dir: str | Path | None = None) -> None:
        try:
            with warnings.catch_warnings():  # of its own dependencies, about each other
                warnings.simplefilter("ignore")
                from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ConfigError(
                f"TensorBoardWriter needs tensorboard, which cannot be imported ({error}). "
                "Install the extra: pip install 'mm-runner[tensorboard]'."
            ) from error
        self._events: Any = SummaryWriter(str(log_dir if save_dir is None else save_dir))
        config = log_dir / "config.yaml"
        if config.is_file():
            self._add_config(config.read_text(encoding="utf-8"))

    def write(self, record: Mapping[str, Any]) -> None:
        """Add the numbers of ``record`` at its step, or at its epoch."""
        for name, value in named_scalars(record).items():
            self._events.add_scalar(name, value, record[axis_of(record)])
        self._events.flush()  # what a killed run wrote last is on the disk

    def add_image(self, name: str, image: Any, step: int) -> None:
        """Add an image of shape ``(height, width)`` or ``(height, width, channels)``."""
        self._events.add_image(name, image, step, dataformats="HWC"[: image.ndim])
        self._events.flush()

    def add_config(self, config: Mapping[str, Any]) -> None:
        """Add keys of a configuration, as a text."""
        self._add_config(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
        self._events.flush()

    def close(self) -> None:
        """End the file."""
        self._events.close()

    def _add_config(self, text: str) -> None:
        indented = text.replace("\n", "\n    ")
        self._events.add_text("config", f"    {indented}", 0)
