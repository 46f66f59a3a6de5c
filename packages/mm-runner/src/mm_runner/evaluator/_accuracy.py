"""Accuracy of a classifier."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import override

from mm_runner.errors import ConfigError

from ._metric import BaseMetric

__all__ = ["Accuracy"]


class Accuracy(BaseMetric):
    """Share of samples whose label has the highest score.

    Takes what ``forward(mode='predict')`` returns as ``(scores, labels)``: ``scores`` of shape
    ``(batch, classes)``, ``labels`` of shape ``(batch,)``. Reports ``accuracy``, from 0 to 1.

    Args:
        **kwargs: As in :class:`BaseMetric`.
    """

    @override
    def process(self, data_batch: Any, data_samples: Any) -> None:
        if not (isinstance(data_samples, (list, tuple)) and len(data_samples) == 2):
            raise ConfigError(
                "Accuracy takes (scores, labels) from forward(mode='predict'), got "
                f"{type(data_samples).__name__}."
            )
        scores, labels = data_samples
        # Left on the device: a transfer here would make every step of the validation wait.
        self.results.append(scores.argmax(dim=1) == labels)

    @override
    def sample_results(self) -> list[bool]:
        batches: list[Tensor] = self.results
        return [hit for batch in batches for hit in batch.tolist()]

    @override
    def compute_metrics(self, results: list[bool]) -> dict[str, float]:
        return {"accuracy": sum(results) / len(results)}
