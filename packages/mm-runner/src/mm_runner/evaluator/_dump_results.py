"""Keeps the predictions for a dataset in a file."""

from __future__ import annotations

import logging
import os
import warnings
from pathlib import Path
from typing import Any

from typing_extensions import override

from mm_runner.errors import ConfigError, PredictionsError

from ._layout import Layout, join, layout_of, split
from ._metric import BaseMetric
from ._on_host import on_host
from ._predictions import PREDICTION_SUFFIXES, Predictions, save_predictions

__all__ = ["DumpResults"]

_logger = logging.getLogger(__name__)


class DumpResults(BaseMetric):
    """Writes what a model predicts to a file, for evaluation without the model.

    The main process writes it at the end of the evaluation, in the order of the dataset, without
    the samples that fill up processes or batches. What MMEngine pickles is an archive of tensors
    and primitives here, whatever its name ends in: :func:`load_predictions` reads it, and
    ``torch.load(path, weights_only=True)`` (under ``"results"``), without running code. A disk that
    is full is a warning, and the other metrics are reported.

    Args:
        out_file_path: Ends in ``.pkl``, ``.pickle``, ``.pth`` or ``.pt``; its folder is made.
        collect_device: As in :class:`BaseMetric`.
        collect_dir: As in :class:`BaseMetric`.

    Attributes:
        failure: Why the file could not be written in the last evaluation; ``None`` if it was, and
            on other processes than the main one.

    Raises:
        ConfigError: If ``out_file_path`` ends otherwise; in an evaluation if the predictions have
            no entry for each sample, or something that cannot be kept.

    Example:
        >>> metrics = [dict(type="Accuracy"), dict(type="DumpResults", out_file_path="out.pkl")]
    """

    reported_metrics = ()

    def __init__(
        self,
        out_file_path: str | os.PathLike[str],
        collect_device: str = "cpu",
        collect_dir: str | None = None,
    ) -> None:
        is_path = isinstance(out_file_path, (str, os.PathLike))
        if not is_path or Path(out_file_path).suffix.lower() not in PREDICTION_SUFFIXES:
            raise ConfigError(
                f"out_file_path: a path that ends in {', '.join(PREDICTION_SUFFIXES)} is needed, "
                f"got {out_file_path!r}."
            )
        super().__init__(collect_device=collect_device, collect_dir=collect_dir)
        self.out_file_path = Path(out_file_path)
        self.failure: PredictionsError | None = None
        self._layout: Layout = None
        self._size = 0

    @override
    def process(self, data_batch: Any, data_samples: Any) -> None:
        predictions = on_host(data_samples)
        layout = layout_of(predictions)
        if self._layout is None:
            self._layout = layout
        elif self._layout != layout:
            raise ConfigError(
                f"DumpResults: the predictions for one batch were {self._layout!r}, and now are "
                f"{layout!r}; they cannot be put together. Return the same parts for each batch, "
                "or a list with one entry per sample."
            )
        self.results.append(predictions)

    @override
    def sample_results(self) -> list[Any]:
        return [sample for batch in self.results for sample in split(batch, self._layout)]

    @override
    def reset(self) -> None:
        super().reset()
        self._layout = None

    @override
    def evaluate(self, size: int) -> dict[str, float]:
        self._size = size
        return super().evaluate(size)

    @override
    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        if len(results) < self._size:
            warnings.warn(
                f"DumpResults has predictions for {len(results):,} of {self._size:,} samples. Let "
                "forward(mode='predict') return one entry, or row, per sample.",
                stacklevel=2,
            )
        self.failure = None
        try:
            whole = join(results, self._layout) if results else []
            save_predictions(Predictions(whole), self.out_file_path)
        except PredictionsError as error:
            self.failure = error
            warnings.warn(str(error), stacklevel=2)
        else:
            _logger.info("The predictions are in %s.", self.out_file_path)
        return {}
