"""Base class of metrics, the accuracy of a classifier, and numbers from results."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from typing_extensions import override

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.errors import ConfigError, did_you_mean
from mm_runner.registry import short_repr


class BaseMetric(ABC):
    """Collects results batch by batch on every rank, and reduces them at the end.

    A subclass defines :meth:`process`, which appends to :attr:`results` one entry *per sample*, and
    :meth:`compute_metrics`. One entry per sample is what lets the samples that pad the ranks to
    equal length be dropped; with one entry per batch they are counted.

    Args:
        collect_device: Accepted for MMEngine's signature, as is ``collect_dir``.
        prefix: Put before every metric's name, as ``prefix/name``.

    Attributes:
        results: What :meth:`process` has collected so far, on this process.
        reported_metrics: All names that :meth:`compute_metrics` can report, on the class; by
            default ``None``: not known. Others that a run asks for are refused at its start.
        dataset_meta: The ``metainfo`` of the dataset, if it has one.
    """

    default_prefix: str | None = None
    reported_metrics: Sequence[str] | None = None

    def __init__(
        self,
        collect_device: str = "cpu",
        prefix: str | None = None,
        collect_dir: str | None = None,
    ) -> None:
        self.collect_device = collect_device
        self.collect_dir = collect_dir
        self.prefix = prefix or self.default_prefix
        self.dataset_meta: Any = None
        self.results: list[Any] = []

    @abstractmethod
    def process(self, data_batch: Any, data_samples: Any) -> None:
        """Process the predictions for one batch.

        Args:
            data_batch: As the loader gave it.
            data_samples: What ``val_step`` or ``test_step`` returned for it.
        """

    @abstractmethod
    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """Reduce the results of all samples, in the order of the dataset, to numbers by name."""

    def reset(self) -> None:
        """Clear the results before an evaluation. Override to clear other state."""
        self.results = []

    def evaluate(self, size: int) -> dict[str, float]:
        """Gather, reduce and forget what was collected.

        Args:
            size: Number of samples in the dataset; what exceeds it is padding.

        Returns:
            The metrics by name, equal on all ranks.

        Raises:
            ConfigError: If :meth:`compute_metrics` returned no dict.
        """
        results = self.results
        # A metric may keep one entry per batch, as MMEngine's guide shows: fewer than samples.
        total = sum(mm_dist.all_gather_object(len(results)))
        warn_of_surplus(self, total, size)
        gathered = mm_dist.collect_results(results, min(size, total))
        metrics: Any = run_on_main(lambda: self.compute_metrics(gathered or []))
        self.reset()
        if not isinstance(metrics, Mapping):
            raise ConfigError(
                f"{type(self).__name__}.compute_metrics returned {short_repr(metrics)}; a dict of "
                "numbers by name is needed."
            )
        return {self._full_name(name): value for name, value in metrics.items()}

    def reported_names(self) -> list[str] | None:
        """Return the full names of what it reports; ``None`` if that is not known."""
        names = {"reported_metrics", "compute_metrics", "evaluate"}
        # A subclass that reports otherwise does not know of the names.
        says_so = next(kind for kind in type(self).__mro__ if not names.isdisjoint(vars(kind)))
        own = vars(says_so).get("reported_metrics")
        return None if own is None else [self._full_name(name) for name in own]

    def _full_name(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name


class Accuracy(BaseMetric):
    """Share of samples whose label has the highest score.

    Takes what ``forward(mode='predict')`` returns as ``(scores, labels)``: ``scores`` of shape
    ``(batch, classes)``, of two classes at least, ``labels`` of shape ``(batch,)``. Reports
    ``accuracy``, from 0 to 1. Arguments are those of :class:`BaseMetric`.

    Raises:
        ConfigError: As it is evaluated, if predictions are anything else, or there are none.
    """

    reported_metrics = ("accuracy",)

    @override
    def process(self, data_batch: Any, data_samples: Any) -> None:
        is_pair = isinstance(data_samples, (list, tuple)) and len(data_samples) == 2
        scores, labels = data_samples if is_pair else (data_samples, None)
        # Of a single score the highest is always the first.
        fits = isinstance(scores, Tensor) and scores.ndim == 2 and scores.shape[1] > 1
        # Labels of another shape would be compared in pairs with all.
        if not fits or getattr(labels, "shape", None) != scores.shape[:1]:
            raise ConfigError(
                "Accuracy takes (scores, labels) from forward(mode='predict'), tensors of shapes "
                "(batch, classes), of two classes at least, and (batch,); "
                f"got {short_repr(scores)} and {short_repr(labels)}."
            )
        # Left on the device: a transfer here would make every step of the validation wait.
        self.results.append(scores.argmax(dim=1) == labels)

    @override
    def evaluate(self, size: int) -> dict[str, float]:
        self.results = [hit for batch in self.results for hit in batch.tolist()]
        return super().evaluate(size)

    @override
    def compute_metrics(self, results: list[bool]) -> dict[str, float]:
        if not results:
            raise ConfigError(
                "Accuracy has no prediction to evaluate: the loader gave no batch. Make its "
                "batch_size smaller, drop_last false, or the dataset larger."
            )
        return {"accuracy": sum(results) / len(results)}


def warn_of_surplus(metric: Any, total: int, size: int) -> None:
    """Warn of more results than samples, unless they only fill up the processes' shares."""
    if total - size >= mm_dist.get_world_size() and mm_dist.is_main_process():
        warnings.warn(
            f"{type(metric).__name__} has {total:,} results of a dataset of {size:,} samples, "
            f"{total - size:,} too many, so its values may be wrong. Keep one result per sample, "
            "and let an iterable dataset give each process its share.",
            stacklevel=3,
        )


def as_number(value: Any) -> int | float | None:
    """Return a number, also that in an array or tensor of one element; ``None`` for all else."""
    size = value.numel() if isinstance(value, Tensor) else getattr(value, "size", None)
    if size == 1 and hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, (int, float)) else None


def score_of(metrics: Mapping[str, Any], name: str, where: str) -> float:
    """Return the metric ``name`` as a number; ``where`` is the argument that asks for it.

    Raises:
        ConfigError: If it is not there, or no number.
    """
    number = as_number(metrics.get(name))
    if number is None:
        given = f"{', '.join(map(repr, metrics)) or 'nothing'}.{did_you_mean(name, metrics)}"
        if name in metrics:
            given = f"{short_repr(metrics[name])} for it; a number is needed."
        raise ConfigError(f"{where}: {name!r} was asked for; the metrics report {given}")
    return float(number)
