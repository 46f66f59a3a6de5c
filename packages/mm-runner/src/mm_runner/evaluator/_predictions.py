"""Predictions for batches and whole datasets, and the file that holds them.

Predictions are a list with an entry for each sample, of any form; a tensor of shape
``(batch, ...)``; ``None``; or a tuple or dict of these.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from mm_runner.checkpoint import load_checkpoint_file, save_checkpoint_file
from mm_runner.errors import CheckpointError, ConfigError, PredictionsError
from mm_runner.registry import short_repr

from ._metric import BaseMetric

PREDICTION_SUFFIXES = (".pkl", ".pickle", ".pth", ".pt")

_logger = logging.getLogger(__name__)


def size_of(predictions: Any) -> int:
    """Return the number of samples.

    Raises:
        ConfigError: If a part has no entry for each sample, or they have different numbers.
    """
    sizes: list[int] = []
    _map(predictions, lambda part: sizes.append(len(part)))
    if len(set(sizes)) != 1:
        raise ConfigError(
            f"The predictions hold {' and '.join(map(str, sizes)) or 'no'} samples: "
            f"{short_repr(predictions)}. Let each part have one entry per sample; a list holds one "
            "of any form for each."
        )
    return sizes[0]


def layout_of(predictions: Any) -> Any:
    """Return the form of predictions: ``"rows"``, ``"list"``, ``None``, or a tuple or dict."""
    return _map(predictions, lambda part: "rows" if isinstance(part, Tensor) else "list")


def split(predictions: Any) -> list[Any]:
    """Return the predictions for each sample; those of tensors share their memory."""
    return [_map(predictions, itemgetter(index)) for index in range(size_of(predictions))]


def join(samples: Sequence[Any], layout: Any) -> Any:
    """Return the predictions of which ``samples`` are the entries, the inverse of :func:`split`."""
    if isinstance(layout, tuple):
        return tuple(join([one[i] for one in samples], part) for i, part in enumerate(layout))
    if isinstance(layout, Mapping):
        return {key: join([one[key] for one in samples], part) for key, part in layout.items()}
    if layout is None:
        return None
    if layout == "rows" and len({(row.shape, row.dtype) for row in samples}) == 1:
        return torch.stack(list(samples))
    return list(samples)


def select(predictions: Any, part: slice) -> Any:
    """Return the predictions for some of the samples, in the same form."""
    return _map(predictions, itemgetter(part))


def _map(part: Any, function: Callable[[Any], Any]) -> Any:
    """Return the structure with the results of ``function`` for each tensor and list in it."""
    if isinstance(part, tuple):
        return tuple(_map(one, function) for one in part)
    if isinstance(part, Mapping):
        return {key: _map(one, function) for key, one in part.items()}
    if part is None:
        return None
    if not isinstance(part, list) and not (isinstance(part, Tensor) and part.ndim):
        raise ConfigError(
            f"predictions: {short_repr(part)} has no entry for each sample. Let "
            "forward(mode='predict') return a list with one entry per sample, or tensors with "
            "one row per sample."
        )
    return function(part)


def load_predictions(path: str | os.PathLike[str]) -> Any:
    """Read what :class:`DumpResults` has written; no code in the file is run.

    Returns:
        Predictions for the whole dataset, in the form that the model returned for a batch.

    Raises:
        PredictionsError: If there is no such file, or it is damaged or something else.

    Example:
        >>> Evaluator(Accuracy()).offline_evaluate(load_predictions("out.pkl"))  # doctest: +SKIP
    """
    try:
        content = load_checkpoint_file(path)
    except CheckpointError as error:
        raise PredictionsError(
            f"{path} cannot be read as predictions that DumpResults has written, without running "
            f"code from it: {error} MMEngine's DumpResults writes a pickle: if you trust it, give "
            "Evaluator.offline_evaluate the list that pickle.load returns."
        ) from error
    if "results" not in content:
        given = ", ".join(map(repr, content)) or "nothing"
        raise PredictionsError(f"{path} holds {given}; a file of DumpResults is needed.")
    return content["results"]


class CollectPredictions(BaseMetric):
    """Collects what a model predicts, in the order of the dataset, without padding.

    Attributes:
        predictions: After an evaluation, on the main process, those of the whole dataset in the
            form that the model returned for a batch, on the CPU.
    """

    reported_metrics = ()
    predictions: Any = None
    _layout: Any = None

    @override
    def process(self, data_batch: Any, data_samples: Any) -> None:
        predictions = on_host(data_samples)
        layout = layout_of(predictions)
        if self.results and layout != self._layout:
            raise ConfigError(
                f"{type(self).__name__}: the predictions for one batch were {self._layout!r}, and "
                f"now are {layout!r}; return the same parts for each batch."
            )
        self._layout = layout
        # Copied: a row would be sent to the main process with all of its batch.
        self.results += [on_host(one) for one in split(predictions)]

    @override
    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        self.predictions = join(results, self._layout)
        return {}


class DumpResults(CollectPredictions):
    """Writes what a model predicts to a file, for evaluation without the model.

    The main process writes it at the end of the evaluation, in the order of the dataset, without
    padding. The file holds tensors and primitives, whatever its suffix: :func:`load_predictions`
    reads it, and ``torch.load(path, weights_only=True)`` (under ``"results"``), without running
    code.

    Args:
        out_file_path: Ends in ``.pkl``, ``.pickle``, ``.pth`` or ``.pt``; its folder is made.
        collect_device: As in :class:`BaseMetric`.
        collect_dir: As in :class:`BaseMetric`.

    Raises:
        ConfigError: If ``out_file_path`` ends otherwise; in an evaluation if the predictions have
            no entry for each sample, or something that cannot be kept.
        PredictionsError: In an evaluation, if the file cannot be written.

    Example:
        >>> metrics = [dict(type="Accuracy"), dict(type="DumpResults", out_file_path="out.pkl")]
    """

    def __init__(
        self,
        out_file_path: str | os.PathLike[str],
        collect_device: str = "cpu",
        collect_dir: str | None = None,
    ) -> None:
        self.out_file_path = Path(out_file_path)
        if self.out_file_path.suffix.lower() not in PREDICTION_SUFFIXES:
            raise ConfigError(
                f"out_file_path: a path that ends in {', '.join(PREDICTION_SUFFIXES)} is needed, "
                f"got {out_file_path!r}."
            )
        super().__init__(collect_device=collect_device, collect_dir=collect_dir)

    @override
    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        save_predictions(join(results, self._layout), self.out_file_path)
        _logger.info("The predictions are in %s.", self.out_file_path)
        return {}


def save_predictions(predictions: Any, path: Path) -> None:
    """Write a file that :func:`load_predictions` reads.

    Raises:
        PredictionsError: If it cannot be written.
    """
    try:
        content = {"num_samples": size_of(predictions), "results": predictions}
        save_checkpoint_file(content, path)
    except CheckpointError as error:
        raise PredictionsError(
            f"The predictions could not be written to {path}: {error.__cause__ or error}. Free "
            "space, or give a path that can be written."
        ) from error


def on_host(value: Any, where: str = "predictions") -> Any:
    """Return a copy in tensors on the CPU, primitives, lists, tuples and dicts."""
    if type(value).__module__ == "numpy":
        value = value.item() if value.ndim == 0 else torch.from_numpy(value)
    elif hasattr(value, "to_dict") and not isinstance(value, type):
        value = value.to_dict()
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: on_host(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [on_host(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    for kind in (bool, int, float, str):  # of a subclass a file would hold the name
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return None
    raise ConfigError(
        f"{where}: {type(value).__module__}.{type(value).__name__} cannot be kept; a file of "
        "predictions holds tensors, numbers, text, lists and dicts only, so that it is read "
        "without running code. Return these, or give the class a to_dict()."
    )
