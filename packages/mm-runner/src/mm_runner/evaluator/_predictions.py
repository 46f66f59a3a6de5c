"""Predictions for a whole dataset, and the file that holds them."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from mm_runner.checkpoint import load_checkpoint_file, save_checkpoint_file
from mm_runner.errors import CheckpointError, ConfigError, PredictionsError

from ._layout import Layout, join, layout_of, select, size_of, split
from ._metric import BaseMetric

__all__ = ["PREDICTION_SUFFIXES", "DumpResults", "Predictions", "load_predictions"]

PREDICTION_SUFFIXES = (".pkl", ".pickle", ".pth", ".pt")

_logger = logging.getLogger(__name__)


class Predictions(Sequence[Any]):
    """Predictions of a model for a dataset, in the dataset's order; a sequence of samples.

    Args:
        whole: As ``forward(mode='predict')`` returns it for a batch: a list with an entry for each
            sample, or tensors with a row for each; also tuples and dicts of these.

    Attributes:
        whole: The same.

    Raises:
        ConfigError: If a part has no entry for each sample, or they have different numbers.

    Example:
        >>> import torch
        >>> predictions = Predictions((torch.eye(2), ["a", "b"]))
        >>> len(predictions), predictions[1]
        (2, (tensor([0., 1.]), 'b'))
    """

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        self._size = size_of(whole)

    def __len__(self) -> int:
        return self._size

    @override
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Predictions(self.select(range(len(self))[index]))
        return split(self.select([range(len(self))[index]]), with_copies=False)[0]

    def select(self, indices: Sequence[int]) -> Any:
        """Return the predictions for some samples as a step would: in the form of ``whole``."""
        return select(self.whole, indices)


def load_predictions(path: str | os.PathLike[str]) -> Predictions:
    """Read what :class:`DumpResults` has written; no code in the file is run.

    Raises:
        PredictionsError: If there is no such file, or it is damaged or something else.

    Example:
        >>> Evaluator(Accuracy()).offline_evaluate(load_predictions("out.pkl"))  # doctest: +SKIP
    """
    path = Path(path)
    if not path.is_file():
        raise PredictionsError(f"The predictions {path} were asked for; there is no such file.")
    try:
        content = load_checkpoint_file(path)
    except CheckpointError as error:
        raise PredictionsError(
            f"{path} cannot be read as predictions that DumpResults has written, without running "
            f"code from it: {error} MMEngine's DumpResults writes a pickle: if you trust it, give "
            "Evaluator.offline_evaluate the list that pickle.load returns."
        ) from error
    if "results" not in content:
        raise PredictionsError(
            f"{path} holds {', '.join(map(repr, content)) or 'nothing'}; a file of DumpResults is "
            "needed."
        )
    return Predictions(content["results"])


class DumpResults(BaseMetric):
    """Writes what a model predicts to a file, for evaluation without the model.

    The main process writes it at the end of the evaluation, in the order of the dataset, without
    padding. The file holds tensors and primitives, whatever its suffix: :func:`load_predictions`
    reads it, and ``torch.load(path, weights_only=True)`` (under ``"results"``), without running
    code. A full disk is a warning, and the other metrics are reported.

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
        predictions = _on_host(data_samples, "predictions")
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
        return [sample for batch in self.results for sample in split(batch)]

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
        content = {"num_samples": len(results), "results": join(results, self._layout)}
        try:
            save_checkpoint_file(content, self.out_file_path)
        except CheckpointError as error:
            self.failure = PredictionsError(
                f"The predictions could not be written to {self.out_file_path}: "
                f"{error.__cause__ or error}. Free space, or give a path that can be written."
            )
            warnings.warn(str(self.failure), stacklevel=2)
        else:
            _logger.info("The predictions are in %s.", self.out_file_path)
        return {}


def _on_host(value: Any, where: str) -> Any:
    """Return a copy in tensors on the CPU, primitives, lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if type(value).__module__ == "numpy":
        value = value.item() if value.ndim == 0 else torch.from_numpy(value.copy())
    elif hasattr(value, "to_dict") and not isinstance(value, type):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {key: _on_host(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_on_host(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, Tensor) or value is None:
        return value
    for kind in (bool, int, float, str):  # of a subclass a file would hold the name
        if isinstance(value, kind):
            return kind(value)
    raise ConfigError(
        f"{where}: {type(value).__module__}.{type(value).__name__} cannot be kept; a file of "
        "predictions holds tensors, numbers, text, lists and dicts only, so that it is read "
        "without running code. Return these, or give the class a to_dict()."
    )
