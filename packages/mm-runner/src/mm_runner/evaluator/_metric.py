"""The interface of a metric."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import mm_dist
from mm_runner._main_process import run_on_main

__all__ = ["BaseMetric"]


class BaseMetric(ABC):
    """Collects results batch by batch on every rank, and reduces them at the end.

    A subclass defines :meth:`process`, which appends to :attr:`results` one entry *per sample*, and
    :meth:`compute_metrics`. One entry per sample is what lets the samples that pad the ranks to
    equal length be dropped; with one entry per batch they are counted.

    Args:
        collect_device: Accepted for MMEngine's signature: ``"cpu"`` or ``"gpu"``.
        prefix: Put before every metric's name, as ``prefix/name``.
        collect_dir: Directory for the results while they are gathered, if a shared one is wanted.
    """

    default_prefix: str | None = None

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
        """Take in one batch.

        Args:
            data_batch: As the loader gave it.
            data_samples: What ``val_step`` or ``test_step`` returned for it.
        """

    @abstractmethod
    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """Reduce the results of all samples, in the order of the dataset, to numbers by name."""

    def sample_results(self) -> list[Any]:
        """Return one entry per sample; override where :meth:`process` keeps something denser."""
        return self.results

    def evaluate(self, size: int) -> dict[str, float]:
        """Gather, reduce and forget what was collected.

        Args:
            size: Number of samples in the dataset; what exceeds it is padding.

        Returns:
            The metrics by name, equal on all ranks.
        """
        results = self.sample_results()
        # A metric may keep one entry per batch, as MMEngine's guide shows: fewer than samples.
        total = sum(mm_dist.all_gather_object(len(results)))
        gathered = mm_dist.collect_results(
            results, min(size, total), self.collect_device, self.collect_dir
        )
        self.results = []
        metrics = run_on_main(lambda: self.compute_metrics(gathered or []))
        return {self._full_name(name): value for name, value in metrics.items()}

    def _full_name(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name
